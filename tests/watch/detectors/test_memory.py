"""Memory that grows, and memory above its limit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.finding import Act, Finding, Severity, Source
from gonogo.contract.order import Order
from gonogo.contract.records import Tick
from gonogo.watch.detectors.memory import Growth, MemoryLeak, Series, slope_above_zero, slope_of
from gonogo.watch.fold import armed
from gonogo.watch.offline_fold import not_observed
from gonogo.watch.view import Run, View
from tests.watch.detectors.devices import Fold, device_order, sample
from tests.watch.detectors.host import host_order, memory, tell
from tests.watch.standing import standing
from tests.watch.steps import Ran
from tests.watch.streams import EPOCH, T0, Watched, World, watch

# D15: memory that grows until it hits its limit before the last step.


DEVICE = {"uuid": "a", "ts": 1.0, "mono": 1.0, "rank": 0, "mem_total_mb": 3_000.0}


def order(watch: dict[str, Any] | None = None, steps: int = 2_000, **fields: Any) -> Order:
    return host_order(watch, steps=steps, **fields)


def grow(
    world: World,
    count: int,
    mb: Callable[[int, int], float],
    *,
    name: str = "host_rss_mb",
    step_s: float = 0.5,
) -> World:
    """Whole steps; `mb(rank, step)` is what each rank says of its memory."""
    for _ in range(count):
        world.open_step()
        world.compute(step_s=step_s)
        for rank in world.ranks:
            rank.say("progress", loss=5.0, grad_norm=1.0, **{name: mb(rank.rank, rank.step)})
            rank.enter(None)
            rank.say("step_end", tokens=2048)
            rank.in_step = False
    return world


def leaks(seen: Watched, severity: Severity = Severity.WARN) -> list[Finding]:
    return [f for f in seen.of(severity) if f.detector == "memory_leak"]


def of_rank(leaky: int, slope: float, base: float = 1_000.0) -> Callable[[int, int], float]:
    return lambda rank, step: base + (slope * step if rank == leaky else 0.0)


def test_a_leak_that_the_last_step_comes_before_is_none() -> None:
    world = World(order(steps=400)).boot()
    tell(world, host_memory=memory(4_000, 12_000))
    assert watch(grow(world, 200, of_rank(1, 5.0)), stop_at_halt=False).findings == []


def test_without_a_limit_nothing_is_found_and_it_says_so() -> None:
    world = grow(World(order()).boot(), 150, of_rank(0, 50.0))
    seen = watch(world)
    assert seen.findings == []
    assert not armed(seen.state)["memory_leak"]
    assert any("how much host memory" in str(row.found) for row in not_observed(seen.state))


@pytest.mark.parametrize("plan", [True, False], ids=["plan's limit", "the device's memory"])
def test_reserved_device_memory_has_its_own_limit(plan: bool) -> None:
    watch_set = {"memory_limit": {"reserved_mb": 20_000}} if plan else {}
    world = World(order(watch_set)).boot()
    tell(world, devices=[{**DEVICE, "mem_total_mb": 20_000.0}, {"rank": None}])
    grow(world, 110, of_rank(0, 60.0, base=10_000.0), name="gpu_mem_reserved")
    seen = watch(world)
    (warning,) = leaks(seen)
    assert (warning.rank, seen.halts) == (0, [])
    assert warning.text.startswith("reserved device memory of rank 0")
    assert warning.source is (Source.PLAN if plan else Source.DEFAULT)


@pytest.mark.parametrize(
    ("kind", "setting", "tells"),
    [
        ("host_rss_mb", "memory_leak.limit_mb", {"host_memory": memory(4_000, 4_800)}),
        ("gpu_mem_reserved", "memory_limit.reserved_mb", {"devices": [DEVICE]}),
    ],
)
def test_a_limit_of_the_plan_does_not_lift_that_of_the_machine(
    kind: str, setting: str, tells: dict[str, Any]
) -> None:
    detector, _, name = setting.partition(".")
    world = World(order({detector: {name: 1e12}})).boot()
    tell(world, **tells)
    assert leaks(watch(grow(world, 120, of_rank(0, 10.0), name=kind)))


class Grown:
    """A detector that looks at every step from the eighth on, and what it found by step.

    Args:
        watch: settings besides.
        last: the last step of the run; None: nobody says.
        step_s: how long a step takes; None: nobody knows.
        ranks: how many.
        nodes: how many they are on.
    """

    def __init__(
        self,
        watch: dict[str, Any] | None = None,
        *,
        last: int | None = 1_000,
        step_s: float | None = 1.0,
        ranks: int = 1,
        nodes: int = 1,
    ) -> None:
        leak = {"min_samples": 8, "window_samples": 16, **(watch or {})}
        device = {"reserved_mb": leak.pop("reserved_mb", None)}
        settings = {"memory_leak": leak, "memory_limit": device, "slow": {"warmup_steps": 0}}
        run = Run(order=order(settings, steps=last or 1, world_size=ranks, nodes=nodes))
        run = replace(run, order=run.order.model_copy(update={"steps": last}))
        paced = {} if step_s is None else {0: standing(None, for_s=0.0, step_s=step_s)}
        self.view = View(run=run, streams=paced)
        self.detector = MemoryLeak(run)
        self.own: Growth = self.detector.begin()
        self.ran = Ran(order=run.order)
        self.found: list[tuple[int, Finding]] = []

    def tell(self, **observations: Any) -> Grown:
        """Let probes report something at one tick."""
        tick = Tick(n=1, mono=T0, ts=EPOCH, observations=observations)
        self.own, found = self.detector.observe_tick(self.own, tick, self.view)
        assert found == []
        return self

    def step(self, *mb: float | None, name: str = "host_rss_mb") -> Grown:
        """End a step at which each rank says how much memory it has."""
        self.ran.step(each=[{name: value} for value in mb])
        self.own, found = self.detector.observe_step(self.own, self.ran.steps[-1], self.view)
        keys = {row.key for _, row in self.found}
        self.found += [(self.ran.number, row) for row in found if row.key not in keys]
        return self

    def rise(self, steps: int, *rises: float, name: str = "host_rss_mb") -> Grown:
        """End steps over which each rank's memory rises from 1000 MB by so much a step."""
        for _ in range(steps):
            self.step(*(1_000.0 + mb * (self.ran.number + 1) for mb in rises), name=name)
        return self

    def of(self, severity: Severity) -> list[Finding]:
        """Return what was found of one severity."""
        return [row for _, row in self.found if row.severity is severity]

    @property
    def said(self) -> list[tuple[int, str]]:
        """Return step and severity of what was found."""
        return [(step, row.severity.value) for step, row in self.found]


def test_it_warns_and_halts_at_the_first_look() -> None:
    late = Grown({"limit_mb": 1_100, "halt_eta_s": 2.25}, step_s=0.5).rise(9, 8.0)
    assert late.said == [(8, "warn"), (9, "halt")], "exactly so soon is not soon enough"
    grown = Grown({"limit_mb": 1_100}, step_s=0.5).rise(12, 8.0)
    assert grown.said == [(8, "warn"), (8, "halt")]
    (warning,), (halt,) = grown.of(Severity.WARN), grown.of(Severity.HALT)
    assert (warning.value, warning.threshold, warning.act) == (2.25, None, None)
    assert (halt.threshold, halt.act) == (3600.0, Act.AT_CHECKPOINT)
    assert [row.key for _, row in grown.found] == [
        "run_1/1/memory_leak/warn/host/0",
        "run_1/1/memory_leak/halt/host/0",
    ]
    assert warning.text == (
        "host memory of rank 0 grows by 8 MB a step, to 1064 MB at step 8: it hits 1100 MB in about"
        " 2 s, before the last of 1000 steps"
    )


@pytest.mark.parametrize(("last", "found"), [(10, 0), (11, 1)])
def test_a_limit_that_the_last_step_comes_before_is_none(last: int, found: int) -> None:
    """At step 8 two steps are left until the limit."""
    grown = Grown({"limit_mb": 1_080}, last=last).rise(8, 8.0)
    assert len(grown.of(Severity.WARN)) == found


@pytest.mark.parametrize(("rise", "rank"), [(6.0, None), (5.75, 1)])
def test_ranks_that_rise_nearly_as_fast_leak_alike(rise: float, rank: int | None) -> None:
    grown = Grown({"limit_mb": 2_000, "rise_ratio": 1e-3}, ranks=2).rise(8, rise, 8.0)
    assert [row.rank for row in grown.of(Severity.WARN)] == [rank]
    assert grown.found[0][1].key.endswith("/all" if rank is None else "/1")


@pytest.mark.parametrize(
    ("values", "rises"),
    [
        ([100.0 + x for x in range(64)], True),
        ([100.0 + 0.01 * x for x in range(64)], False),
        ([164.0 - x for x in range(64)], False),
        ([100.0 if x < 32 else 150.0 for x in range(64)], False),
        ([100.0 + x + 20.0 * (x % 5 == 0) for x in range(64)], True),
        ([100.0 + 40.0 * (x % 2) for x in range(64)], False),
        ([100.0 + 8.0 * (x // 8) for x in range(64)], True),
    ],
    ids=["line", "one per cent", "falls", "one jump", "line with spikes", "saw", "many stairs"],
)
def test_only_a_rise_that_continues_is_one(values: list[float], rises: bool) -> None:
    assert (slope_of([*enumerate(values)], 0.05) > 0) is rises


def test_the_bound_is_above_zero_by_chance_as_seldom_as_it_says() -> None:
    dice = random.Random(7)
    runs = ([(x, dice.gauss(0, 5)) for x in range(24)] for _ in range(300))
    assert 0.02 <= sum(slope_above_zero(points) > 0.0 for points in runs) / 300 <= 0.12


# D16: device memory above the plan's limit, host_memory memory above 90 % of the group's.


RESERVED = {"memory_limit": {"reserved_mb": 60_000}}


def reserved(values: list[Any], watch: dict[str, Any] | None = None) -> Fold:
    fold = Fold(device_order(RESERVED if watch is None else watch, world_size=1))
    for step, value in enumerate(values, start=1):
        fold.step(step, gpu_mem_reserved=value)
    return fold


@pytest.mark.parametrize(
    ("values", "halts"),
    [
        ([60_000] * 9, False), ([60_001, 60_001], False), ([60_001] * 3, True),
        ([60_001, 60_001, 59_000, 60_001, 60_001], False),
        ([60_001, None, 60_001, None, 60_001], True), ([60_001, 60_001, "NaN", "Infinity"], False),
        ([60_001, 60_001, 0, 60_001], False), ([None] * 9, False), ([0] * 9, False),
    ],
)  # fmt: skip
def test_three_lines_running_above_the_limit_halt(values: list[Any], halts: bool) -> None:
    fold = reserved(values)
    assert fold.said() == [("memory_limit", "halt", 0)] * halts


def test_without_a_limit_there_is_nothing_to_exceed() -> None:
    fold = reserved([10**9] * 9, watch={})
    fold.devices([sample(T0 + n, 0, mem_used_mb=1e9) for n in range(9)])
    assert fold.findings == []
    assert armed(fold.state)["memory_limit"] is False


def in_use(values: list[float | None], fold: Fold | None = None) -> Fold:
    fold = fold or Fold(device_order(RESERVED))
    for number, value in enumerate(values):
        fold.devices([sample(T0 + number, 1, mem_used_mb=value)], after_s=1.0)
    return fold


@pytest.mark.parametrize(
    ("values", "halts"),
    [
        ([61_000.0] * 3, True), ([61_000.0, None, 61_000.0, 61_000.0], True),
        ([61_000.0, 61_000.0, 100.0, 61_000.0, 61_000.0], False), ([60_000.0] * 9, False),
        ([None] * 9, False),
    ],
)  # fmt: skip
def test_where_lines_do_not_say_the_device_does(values: list[float | None], halts: bool) -> None:
    assert in_use(values).said() == [("memory_limit", "halt", 1)] * halts


def of_host(used_mb: float, limit_mb: float | None = 100.0, **ranks: float) -> dict[str, Any]:
    named = {name.removeprefix("r"): mb for name, mb in ranks.items()}
    return {"host_memory": {"used_mb": used_mb, "limit_mb": limit_mb, "ranks": named}}


def seen(rows: list[dict[str, Any]]) -> Fold:
    fold = Fold()
    for row in rows:
        fold.now += 5.0
        fold.tick(row)
    return fold


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([of_host(90.0, r0=80.0)] * 9, []),
        ([of_host(91.0, r0=80.0)] * 2, []),
        ([of_host(91.0, r0=80.0)] * 3, ["halt"]),
        ([of_host(91.0, r0=80.0), of_host(91.0, r0=80.0), of_host(10.0, r0=8.0)] * 3, []),
        ([of_host(91.0, r0=5.0, r1=5.0)] * 9, ["warn"]),
        ([of_host(91.0)] * 9, ["warn"]),
        ([of_host(91.0, None, r0=80.0)] * 9, []),
        ([of_host(91.0, 0.0, r0=80.0)] * 9, []),
        ([{"host_memory": {"used_mb": "much"}}] * 9, []),
        ([{"host_memory": None}] * 9, []),
    ],
    ids=[
        "at the limit", "too few", "over it", "with breaks", "somebody else's", "nobody says whose",
        "no limit", "a limit of nothing", "no number", "nothing",
    ],
)  # fmt: skip
def test_host_memory_halts_only_when_the_ranks_fill_it(
    rows: list[dict[str, Any]], expected: list[str]
) -> None:
    assert [found.severity.value for found in seen(rows).findings] == expected


A, B = of_host(91.0, r0=80.0), of_host(92.0, r1=80.0)


def test_a_rise_of_exactly_the_ratio_does_not_count() -> None:
    values = [100.0, 100.0, *(102.0 + number / 4 for number in range(12))]
    assert slope_of([*enumerate([*values, 106.25, 106.25])], 0.0625) == 0.0
    assert slope_of([*enumerate([*values, 106.5, 106.5])], 0.0625) > 0.0


def test_a_device_without_a_rank_or_known_memory_is_no_limit() -> None:
    detector = MemoryLeak(Run(order=order()))
    rows = [{**DEVICE, "rank": None}, {**DEVICE, "mem_total_mb": None}]
    tick = Tick(n=1, mono=T0, ts=EPOCH, observations={"devices": rows})
    own, _ = detector.observe_tick(Growth(), tick, View(run=Run(order=order())))
    assert own.device_mb == {}


def host(used_mb: float, limit_mb: float | None = 100.0, **ranks: float) -> dict[str, Any]:
    named = {name.removeprefix("r"): mb for name, mb in ranks.items()}
    return {"host_memory": {"used_mb": used_mb, "limit_mb": limit_mb, "ranks": named}}


@pytest.mark.parametrize(
    ("ranks", "expected"), [({"r0": 47.5}, ["halt"]), ({"r0": 47.25}, ["warn"])]
)
def test_a_halt_needs_half_of_the_used_memory_to_be_the_ranks(
    ranks: dict[str, float], expected: list[str]
) -> None:
    assert [found.severity.value for found in seen([host(95.0, **ranks)] * 3).findings] == expected


@pytest.mark.parametrize("step_s", [20.0, 0.01])
def test_it_halts_when_the_room_left_is_at_most_the_rise(step_s: float) -> None:
    """It hits its limit at step 100; the lowest that is kept then is of step 8.

    With short steps every cache that fills in the first seconds is about to hit it.
    """
    grown = Grown({"limit_mb": 1_800}, step_s=step_s).rise(60, 8.0)
    assert grown.said == [(8, "warn"), (54, "halt")]


@pytest.mark.parametrize(
    ("count", "falls", "rises"),
    [(12, 21, True), (12, 22, False), (40, 319, True), (40, 320, False)],
)
def test_a_third_of_the_pairs_may_fall(count: int, falls: int, rises: bool) -> None:
    """Sen's lower bound at 95 %: (66 - 1.645 * sqrt(12 * 11 * 29 / 18)) / 2 = 21.0 pairs."""
    order = list[int]()
    for number in range(count):  # each is put before as many smaller ones as still have to fall
        place = min(falls, number)
        order.insert(len(order) - place, number)
        falls -= place
    assert (slope_above_zero([(at, float(mb)) for at, mb in enumerate(order)]) > 0.0) is rises


def test_memory_of_zero_or_infinity_is_no_sample() -> None:
    grown = Grown()
    for mb in (0.0, -1.0, math.inf, math.nan, None, 0.5, 1.0):
        grown.step(mb)
    assert grown.own.series["host"][0].number == 2


def test_it_is_armed_by_sixteen_samples_of_every_fourth_step() -> None:
    def armed_after(steps: int) -> bool:
        world = World(order({"memory_leak": {"limit_mb": 9_000}, "slow": {"warmup_steps": 4}}))
        return armed(watch(grow(world.boot(), steps, lambda rank, step: 1_000.0)).state)[
            "memory_leak"
        ]

    assert [armed_after(67), armed_after(68)] == [False, True]


@pytest.mark.parametrize(("per_step", "found_by"), [(1.0, 200), (0.1, 1500), (0.01, 20_000)])
def test_a_slow_rise_is_found_at_a_wider_scale(per_step: float, found_by: int) -> None:
    series = Series()
    for step in range(1, found_by):
        mb = 1000.0 + per_step * step
        series = series.take(step, mb, least=16, most=64, rise_ratio=0.05)
    assert series.slope == pytest.approx(per_step, rel=0.01)
    assert len(series.scales[0]) == 64
