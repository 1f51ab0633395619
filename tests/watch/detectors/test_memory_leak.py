"""D15: memory that grows until it hits its limit before the last step."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Act, Finding, Severity, Source
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order
from gonogo.contract.tick import Tick
from gonogo.planning.source import bundled_plan
from gonogo.watch import armed, not_observed
from gonogo.watch.detectors.memory_leak import Growth, MemoryLeak, _grown, _is_kept
from gonogo.watch.series import SCALES, Series
from gonogo.watch.tokens import TokenGrowth
from gonogo.watch.view import Run, View
from tests.watch.detectors.host import host_order, memory, tell
from tests.watch.standing import standing
from tests.watch.steps import Ran, feed
from tests.watch.streams import (
    EPOCH,
    T0,
    Watched,
    World,
    order_of,
    watch,
    without_sections,
)

DEMO = bundled_plan("demo")["watch"]
HEALTHY_DEMO = (
    [598.9, 650.3, 659.3, 662.3, 662.4, 662.4, 663.4, 663.4, 663.4, 663.4, 665.2, 665.2, 665.2]
    + [665.2, 665.3, 667.0, 667.0, 667.0, 667.0, 667.0, 669.2, 669.3, 669.3, 669.3]
    + [669.8] * 8
    + [671.0] * 8
)
"""Resident MB of rank 0 in the demo's smoke phase, as recorded."""


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


def test_a_leak_that_hits_the_limit_warns_with_the_time_that_is_left() -> None:
    world = World(order()).boot()
    tell(world, host_memory=memory(4_000, 12_000))
    seen = watch(grow(world, 120, of_rank(1, 5.0)), stop_at_halt=False)
    (warning,) = leaks(seen)
    assert (warning.rank, warning.act) == (1, None)
    assert warning.value == pytest.approx(8_000 / 5.0 * 0.51, rel=0.05)
    assert "rank 1 grows by 5 MB a step" in warning.text


def on_device(
    count: int,
    reserved: Callable[[int], float],
    allocated: float,
    tokens: Callable[[int], int],
    *,
    labelled: bool = True,
) -> Watched:
    """A run of 2000 steps whose device has 22 GB; `allocated` is MB kept by each step.

    A rank that is not `labelled` ends a step by its progress; `step_end` tells the tokens.
    """
    world = World(order({"memory_limit": {"reserved_mb": 22_000}})).boot()
    for _ in range(count):
        world.open_step()
        world.compute(step_s=0.5)
        for rank in world.ranks:
            told = {"gpu_mem_reserved": reserved(rank.step)}
            told["gpu_mem_alloc"] = 4_000 + allocated * rank.step
            rank.say("progress", loss=5.0, grad_norm=1.0, **told)
            rank.enter(None)
            rank.say("step_end", tokens=tokens(rank.step))
            rank.in_step = False
    for rank in () if labelled else world.ranks:
        rank.lines = [without_sections(said) for said in rank.lines]
    return watch(world, stop_at_halt=False)


@pytest.mark.parametrize("labelled", [True, False])
def test_device_memory_that_grows_with_the_sequences_is_no_leak(labelled: bool) -> None:
    said = {"labelled": labelled}
    longer = on_device(
        150, lambda step: 10_000 + 60.0 * step, 20.0, lambda step: 512 + 16 * step, **said
    )
    assert leaks(longer) == []
    assert longer.halts == []


def test_once_the_sequences_are_as_long_as_they_get_a_leak_is_one() -> None:
    tokens = [min(1_024, 8 * step) for step in range(221)]
    seen = on_device(220, lambda step: 10_000 + 50.0 * step, 20.0, tokens.__getitem__)
    (halt,) = seen.halts
    assert (halt.detector, halt.act) == ("memory_leak", Act.AT_CHECKPOINT)
    assert halt.step is not None
    assert halt.step > 128 + 64


@pytest.mark.parametrize(("allocated", "halts"), [(0.0, 0), (20.0, 1)])
def test_device_memory_that_is_reserved_in_pieces_and_not_kept_warns_only(
    allocated: float, halts: int
) -> None:
    seen = on_device(120, lambda step: 10_000 + 120.0 * (step // 2), allocated, lambda _: 2_048)
    assert (len(leaks(seen)), len(seen.halts)) == (1, halts)


def test_reserved_memory_that_rises_in_every_step_is_a_leak_whatever_is_allocated() -> None:
    seen = on_device(120, lambda step: 10_000 + 60.0 * step, 0.0, lambda _: 2_048)
    (halt,) = seen.halts
    assert (halt.detector, halt.act) == ("memory_leak", Act.AT_CHECKPOINT)


def test_a_leak_that_the_last_step_comes_before_is_none() -> None:
    world = World(order(steps=400)).boot()
    tell(world, host_memory=memory(4_000, 12_000))
    assert watch(grow(world, 200, of_rank(1, 5.0)), stop_at_halt=False).findings == []


def test_under_an_hour_it_halts_at_the_next_checkpoint() -> None:
    world = World(order()).boot()
    tell(world, host_memory=memory(4_000, 4_900))
    (halt,) = watch(grow(world, 120, of_rank(0, 10.0))).halts
    assert (halt.detector, halt.rank, halt.act) == ("memory_leak", 0, Act.AT_CHECKPOINT)
    assert (halt.threshold, halt.source) == (3600.0, Source.DEFAULT)
    assert halt.value is not None
    assert halt.value < 300


def test_over_an_hour_it_only_warns() -> None:
    world = World(order(steps=20_000)).boot()
    tell(world, host_memory=memory(4_000, 12_000))
    seen = watch(grow(world, 150, of_rank(0, 1.0), step_s=1.0), stop_at_halt=False)
    assert (len(leaks(seen)), seen.halts) == (1, [])


def test_a_long_run_is_sampled_at_every_fourth_step_and_found_all_the_same() -> None:
    world = World(order(steps=50_000)).boot()
    tell(world, host_memory=memory(4_000, 12_000))
    seen = watch(grow(world, 400, of_rank(0, 1.0), step_s=1.0), interval_s=1.0, stop_at_halt=False)
    assert (len(leaks(seen)), seen.halts) == (1, [])


@pytest.mark.parametrize("noise_mb", [0.0, 300.0])
@pytest.mark.parametrize("rises", [True, False], ids=["leak", "mapped files"])
def test_resident_memory_that_leaves_the_hosts_alone_hits_nothing(
    rises: bool, noise_mb: float
) -> None:
    dice, world = random.Random(3), World(order(steps=4_000)).boot()
    for step in range(600):
        if step % 10 == 0:
            used_mb = 20_000.0 + (20.0 * step if rises else 0.0) + dice.uniform(0.0, noise_mb)
            tell(world, host_memory=memory(used_mb, 40_000.0))
        grow(world, 1, lambda rank, step: 4_000.0 + 10.0 * step)
    seen = watch(world, interval_s=1.0)
    assert len(leaks(seen, Severity.HALT)) == len(leaks(seen)) == int(rises)
    assert armed(seen.state)["memory_leak"]


def test_a_limit_of_the_plan_holds_whatever_the_host_uses() -> None:
    world = World(order({"memory_leak": {"limit_mb": 7_000}}, steps=4_000)).boot()
    for _ in range(20):
        tell(world, host_memory=memory(20_000.0, 50_000.0))
        grow(world, 10, lambda rank, step: 4_000.0 + 10.0 * step)
    assert len(leaks(watch(world), Severity.HALT)) == 1


def test_without_a_limit_nothing_is_found_and_it_says_so() -> None:
    world = grow(World(order()).boot(), 150, of_rank(0, 50.0))
    seen = watch(world)
    assert seen.findings == []
    assert not armed(seen.state)["memory_leak"]
    assert any("how much host memory" in text for text in not_observed(seen.state))


def test_it_is_armed_once_samples_and_a_limit_are_there() -> None:
    world = World(order()).boot()
    tell(world, host_memory=memory(4_000, 12_000))
    assert not armed(watch(grow(world, 60, of_rank(0, 0.0))).state)["memory_leak"]
    assert armed(watch(grow(world, 40, of_rank(0, 0.0))).state)["memory_leak"]


def test_ranks_that_leak_alike_share_what_is_left_and_none_is_named() -> None:
    world = World(order(world_size=4)).boot()
    tell(world, host_memory=memory(4_000, 4_600))
    seen = watch(grow(world, 100, lambda rank, step: 1_000 + 2.0 * step))
    (halt,) = seen.halts
    assert halt.rank is None
    assert halt.value == pytest.approx(600 / (4 * 2.0) * 0.51, rel=0.05)


def test_the_plans_own_limit_is_one_ranks() -> None:
    watch_set = {"memory_leak": {"limit_mb": 2_000}}
    world = grow(World(order(watch_set)).boot(), 120, of_rank(1, 8.0))
    (halt,) = watch(world).halts
    assert (halt.rank, halt.source) == (1, Source.PLAN)
    assert "hits 2000 MB" in halt.text


@pytest.mark.parametrize("plan", [True, False], ids=["plan's limit", "the device's memory"])
def test_reserved_device_memory_has_its_own_limit(plan: bool) -> None:
    watch_set = {"memory_limit": {"reserved_mb": 20_000}} if plan else {}
    world = World(order(watch_set)).boot()
    tell(world, devices=[{"rank": 0, "uuid": "a", "mem_total_mb": 20_000.0}, {"rank": None}])
    grow(world, 110, of_rank(0, 60.0, base=10_000.0), name="gpu_mem_reserved")
    (halt,) = watch(world).halts
    assert (halt.detector, halt.rank) == ("memory_leak", 0)
    assert halt.text.startswith("reserved device memory of rank 0")
    assert halt.source is (Source.PLAN if plan else Source.DEFAULT)


def test_the_same_device_memory_all_the_time_is_no_leak() -> None:
    world = World(order({"memory_limit": {"reserved_mb": 10_500}})).boot()
    grow(world, 300, of_rank(0, 0.0, base=10_000.0), name="gpu_mem_reserved")
    assert watch(world).findings == []


def test_a_restarted_rank_begins_anew() -> None:
    world = World(order({"memory_leak": {"limit_mb": 2_000}})).boot()
    grow(world, 70, of_rank(1, 8.0))
    for rank in world.ranks:
        rank.boot, rank.seq, rank.step, rank.section_seq = f"again{rank.rank}", 0, 0, 0
        rank.enter("boot")
    world.boot()
    seen = watch(grow(world, 60, of_rank(1, 8.0)), stop_at_halt=False)
    assert leaks(seen, Severity.HALT) == []


@pytest.mark.parametrize("how", [{"signal": 9}, {"code": 0}], ids=["killed", "leaves early"])
def test_a_rank_that_dies_while_a_leak_waits_for_its_checkpoint_is_a_finding(
    how: dict[str, int],
) -> None:
    """Its peers stand in a collective: else they would be called a stall."""
    world = World(order()).boot()
    tell(world, host_memory=memory(4_000, 4_900))
    grow(world, 120, of_rank(0, 10.0))
    world.probe(1, "dead", **how)
    world.ranks[0].spend(5.0)
    leak, death = watch(world, stop_at_halt=False).halts
    assert (leak.detector, leak.act) == ("memory_leak", Act.AT_CHECKPOINT)
    assert (death.detector, death.rank, death.act) == ("process_death", 1, Act.NOW)
    world.probe(0, "dead", signal=9)
    world.ranks[0].spend(5.0)
    assert len(watch(world, stop_at_halt=False).halts) == 2


def test_a_healthy_demo_whose_caches_fill_up_is_silent() -> None:
    world = World(host_order(DEMO)).boot()
    tell(world, host_memory=memory(4_000, 12_000))
    grow(world, 40, lambda rank, step: HEALTHY_DEMO[step - 1])
    assert watch(world).findings == []


@pytest.mark.parametrize("base", [-250.0, 0.0, 300.0, 1_000.0, 2_500.0], ids=str)
def test_the_demos_leak_is_found_in_its_forty_steps(base: float) -> None:
    """`leak:rank=0,mb_per_step=50,from=10`, on machines where torch takes more memory or less."""
    world = World(host_order(DEMO)).boot()

    def mb(rank: int, step: int) -> float:
        leaked = 50.0 * max(0, step - 9) if rank == 0 else 0.0
        return base + HEALTHY_DEMO[step - 1] + leaked

    seen = watch(grow(world, 40, mb))
    (halt,) = seen.halts
    assert (halt.detector, halt.rank, halt.act) == ("memory_leak", 0, Act.AT_CHECKPOINT)
    assert halt.step is not None
    assert halt.step <= 24


@pytest.mark.parametrize(("fills", "halts"), [(120, 0), (1_000, 1)], ids=["a cache", "a leak"])
def test_what_rises_halts_once_no_more_is_left_than_it_has_risen(fills: int, halts: int) -> None:
    """A loader's processes touch their copy of an index all through the first epoch."""
    world = World(order({"memory_leak": {"limit_mb": 3_500}}, steps=20_000)).boot()
    grow(world, 340, lambda rank, step: 1_000.0 + 5.0 * rank * min(step, fills), step_s=2.0)
    seen = watch(world, interval_s=1.0, stop_at_halt=False)
    assert (len(leaks(seen)), len(seen.halts)) == (1, halts)


def test_data_kept_in_memory_within_the_first_minute_end_nothing() -> None:
    """Steps of 20 ms, each of which keeps 5 MB of a data set of 2.5 GB; 18 GB are free."""
    world = World(order(steps=15_000)).boot()
    tell(world, host_memory=memory(5_700, 24_000))
    grow(world, 800, lambda rank, step: 230.0 + 5.0 * (rank == 0) * min(step, 500), step_s=0.02)
    seen = watch(world, interval_s=1.0, stop_at_halt=False)
    assert (len(leaks(seen)), seen.halts) == (1, [])


@given(st.randoms(use_true_random=False), st.sampled_from(["jitter", "saw", "jumps", "fills"]))
@settings(max_examples=12, deadline=None)
def test_healthy_memory_of_many_kinds_never_halts(rng: random.Random, kind: str) -> None:
    jump_at = rng.randint(5, 190)

    def mb(rank: int, step: int) -> float:
        base = 3_000 + 100 * rank + rng.gauss(0, 20)
        if kind == "saw":
            return base + 400 * (step % 40) / 40
        if kind == "jumps":
            return base + (800 if step >= jump_at else 0)
        if kind == "fills":
            return base + 1_500 * (1 - 0.93**step)
        return base

    world = World(order(steps=100_000)).boot()
    tell(world, host_memory=memory(20_000, 32_000))
    assert leaks(watch(grow(world, 200, mb), interval_s=1.0), Severity.HALT) == []


@given(slope=st.floats(4.0, 40.0), sigma=st.floats(0.0, 30.0), seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_a_real_leak_is_found_through_noise(slope: float, sigma: float, seed: int) -> None:
    rng = random.Random(seed)
    world = World(order(steps=20_000)).boot()
    tell(world, host_memory=memory(4_000, 4_000 + 100 * slope))
    seen = watch(
        grow(world, 150, lambda rank, step: 2_000 + slope * step * rank + rng.gauss(0, sigma)),
        interval_s=1.0,
    )
    assert [(halt.detector, halt.rank) for halt in seen.halts] == [("memory_leak", 1)]


DEVICE = {"uuid": "a", "ts": 1.0, "mono": 1.0, "rank": 0, "mem_total_mb": 3_000.0}


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
    assert watch(grow(world, 120, of_rank(0, 10.0), name=kind)).halts


def test_a_window_of_fewer_samples_than_are_needed_blinds_nobody() -> None:
    world = World(order({"memory_leak": {"window_samples": 32}})).boot()
    tell(world, host_memory=memory(4_000, 4_800))
    assert watch(grow(world, 120, of_rank(0, 10.0))).halts


class Grown:
    """A detector that looks at every step from the eighth on, and what it found by step.

    Args:
        watch: settings besides.
        last: the last step of the run.
        step_s: how long a step takes; None: nobody knows.
        ranks: how many.
        nodes: how many they are on.
    """

    def __init__(
        self,
        watch: dict[str, Any] | None = None,
        *,
        last: int = 1_000,
        step_s: float | None = 1.0,
        ranks: int = 1,
        nodes: int = 1,
    ) -> None:
        leak = {"min_samples": 8, "window_samples": 16, **(watch or {})}
        device = {"reserved_mb": leak.pop("reserved_mb", None)}
        settings = {"memory_leak": leak, "memory_limit": device, "slow": {"warmup_steps": 0}}
        run = Run(order=order(settings, steps=last, world_size=ranks, nodes=nodes))
        paced = {} if step_s is None else {0: standing(None, for_s=0.0, step_s=step_s)}
        self.view = View(run=run, streams=paced)
        self.detector = MemoryLeak(run)
        self.own: Growth = self.detector.begin()
        self.ran = Ran(order=run.order)
        self.found: list[tuple[int, Finding]] = []

    def tell(self, **observations: Any) -> Grown:
        """Let probes tell something at one tick."""
        tick = Tick(n=1, mono=T0, ts=EPOCH, observations=observations)
        self.own, found = self.detector.observe_tick(self.own, tick, self.view)
        assert found == []
        return self

    def step(self, *mb: float | None, name: str = "host_rss_mb") -> Grown:
        """End a step at which each rank says how much memory it has."""
        self.ran.step(each=[{name: value} for value in mb])
        self.own, found = self.detector.observe_step(self.own, self.ran.steps[-1], self.view)
        self.found += [(self.ran.number, row) for row in found]
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


def test_it_is_found_at_the_first_look_and_halts_when_two_agree() -> None:
    grown = Grown({"limit_mb": 1_136}, step_s=0.5).rise(12, 8.0)
    assert grown.said == [(8, "warn"), (9, "halt")]
    (warning,), (halt,) = grown.of(Severity.WARN), grown.of(Severity.HALT)
    assert (warning.value, warning.threshold, warning.act) == (4.5, None, None)
    assert (halt.threshold, halt.act) == (3600.0, Act.AT_CHECKPOINT)
    assert [row.key for _, row in grown.found] == [
        "run_1/1/memory_leak/warn/host/0",
        "run_1/1/memory_leak/halt/host/0",
    ]
    assert warning.text == (
        "host memory of rank 0 grows by 8 MB a step, to 1064 MB at step 8: it hits 1136 MB in about"
        " 4 s, before the last of 1000 steps"
    )


def test_memory_that_hits_the_limit_with_the_last_step_is_no_leak() -> None:
    assert Grown({"limit_mb": 9_000}).rise(12, 8.0).found == []


def test_memory_above_its_limit_has_no_time_left() -> None:
    assert [row.value for _, row in Grown({"limit_mb": 1_000}).rise(9, 8.0).found] == [0.0, 0.0]


def test_where_nobody_knows_how_long_a_step_takes_it_only_warns() -> None:
    grown = Grown({"limit_mb": 2_000}, step_s=None).rise(12, 8.0)
    assert grown.said == [(8, "warn")]
    assert "it hits 2000 MB, before" in grown.found[0][1].text


def test_less_than_a_megabyte_a_step_is_growth() -> None:
    assert Grown({"limit_mb": 1_400, "rise_ratio": 1e-4}).rise(8, 0.5).said == [(8, "warn")]


@pytest.mark.parametrize(("eta_s", "halted"), [(480.0, 10), (480.25, 9)])
def test_it_halts_below_the_time_and_not_at_it(eta_s: float, halted: int) -> None:
    """At step 9 of 8 MB each, 64 MB are left: 480 seconds."""
    grown = Grown({"limit_mb": 1_136, "halt_eta_s": eta_s}, step_s=60.0).rise(12, 8.0)
    assert grown.said == [(8, "warn"), (halted, "halt")]


@pytest.mark.parametrize("step_s", [20.0, 0.01])
def test_it_halts_once_no_more_is_left_than_it_has_risen_however_soon_that_is(
    step_s: float,
) -> None:
    """It hits its limit at step 100; the lowest that is kept then is of step 8.

    With short steps every cache that fills in the first seconds is about to hit it.
    """
    grown = Grown({"limit_mb": 1_800}, step_s=step_s).rise(60, 8.0)
    assert grown.said == [(8, "warn"), (54, "halt")]


@pytest.mark.parametrize(("rise", "rank"), [(4.0, None), (3.75, 1)])
def test_ranks_that_rise_half_as_fast_leak_alike(rise: float, rank: int | None) -> None:
    grown = Grown({"limit_mb": 2_000, "rise_ratio": 1e-3}, ranks=2).rise(8, rise, 8.0)
    assert [row.rank for row in grown.of(Severity.WARN)] == [rank]
    assert grown.found[0][1].key.endswith("/all" if rank is None else "/1")


def test_a_rank_that_stands_still_beside_one_that_leaks_is_none() -> None:
    grown = Grown({"limit_mb": 2_000}, ranks=2).rise(8, 0.0, 8.0)
    assert [row.rank for row in grown.of(Severity.WARN)] == [1]


@pytest.mark.parametrize(("tellings", "found"), [(2, 1), (3, 0)])
def test_the_hosts_used_memory_has_a_course_when_it_was_told_three_times(
    tellings: int, found: int
) -> None:
    """It stands still, so what the rank takes are mapped files; before, nobody knows."""
    grown = Grown()
    for _ in range(tellings):
        grown.tell(host_memory=memory(4_000, 5_000))
    assert len(grown.rise(8, 8.0).found) == found


def test_a_slow_rise_of_what_the_host_uses_is_one() -> None:
    grown = Grown()
    for _ in range(8):
        grown.tell(host_memory=memory(4_000 + 8 * grown.ran.number, 5_000)).rise(1, 8.0)
    assert [row.value for _, row in grown.found] == [(1_000 - 7 * 8) / 8]


def test_the_hosts_course_begins_anew_where_a_run_goes_back_to_an_earlier_step() -> None:
    """It stood still up to step 100; a leak after a restart from step 20 waits for no step 100."""
    grown = Grown()
    for _ in range(3):
        grown.tell(host_memory=memory(4_000, 5_000))
    grown.rise(100, 0.0).ran.back_to(20)
    for number in range(16):
        grown.tell(host_memory=memory(4_000 + 8 * number, 5_000)).rise(1, 8.0)
    assert grown.found[0][0] == 29


@pytest.mark.parametrize(("planned_mb", "left_steps"), [(1_799, 735 / 8), (1_800, 46.0)])
def test_what_the_host_has_left_is_shared_where_the_plan_leaves_as_much(
    planned_mb: float, left_steps: float
) -> None:
    """Two ranks of 1064 MB at step 8, and 736 MB left."""
    grown = Grown({"limit_mb": planned_mb}, ranks=2).tell(host_memory=memory(4_000, 4_736))
    (warning,) = grown.rise(8, 8.0, 8.0).of(Severity.WARN)
    assert warning.value == left_steps


def test_each_device_has_memory_of_its_own() -> None:
    grown = Grown(ranks=2)
    grown.tell(devices=[{"rank": rank, "mem_total_mb": 1_864.0} for rank in (0, 1)])
    (warning,) = grown.rise(8, 8.0, 8.0, name="gpu_mem_reserved").of(Severity.WARN)
    assert (warning.rank, warning.value) == (None, 100.0)
    assert "reserved device memory grows" in warning.text
    assert "it hits 1864 MB" in warning.text


def test_a_host_that_does_not_say_how_much_it_has_limits_nothing() -> None:
    grown = Grown().tell(host_memory=memory(4_000, None)).rise(9, 8.0)
    assert grown.found == []
    assert not grown.detector.armed(grown.own, grown.view)
    assert grown.detector.missing(grown.own, grown.view) is not None


@pytest.mark.parametrize("said", [{"limit_mb": 9e9}, {}], ids=["the plan", "the host"])
def test_a_limit_that_somebody_says_is_not_missing(said: dict[str, Any]) -> None:
    grown = Grown(said)
    if not said:
        grown.tell(host_memory=memory(4_000, 9e9))
    grown.rise(8, 8.0)
    assert grown.detector.armed(grown.own, grown.view)
    assert grown.detector.missing(grown.own, grown.view) is None


def test_a_limit_of_the_device_arms_nothing_of_the_host() -> None:
    grown = Grown({"reserved_mb": 9e9}).rise(8, 8.0)
    assert not grown.detector.armed(grown.own, grown.view)
    grown.rise(8, 8.0, name="gpu_mem_reserved")
    assert grown.detector.armed(grown.own, grown.view)


def test_host_memory_is_held_against_no_limit_of_the_device() -> None:
    assert Grown({"reserved_mb": 2_000}).rise(8, 8.0).found == []
    grown = Grown().tell(host_memory=memory(4_000, 5_000)).rise(8, 8.0, name="gpu_mem_reserved")
    assert grown.found == []


def test_a_rank_that_stands_still_hits_no_limit_before_those_that_grow() -> None:
    """At step 8 the plan leaves 90 MB to each that grows, and the host 100 MB to all."""
    grown = Grown({"limit_mb": 1_154}, ranks=3).tell(host_memory=memory(4_000, 4_100))
    (warning,) = grown.rise(8, 8.0, 8.0, 0.0).of(Severity.WARN)
    assert warning.value == 90 / 8


def test_memory_that_is_no_amount_is_no_sample() -> None:
    grown = Grown()
    for mb in (0.0, -1.0, math.inf, math.nan, None, 0.5, 1.0):
        grown.step(mb)
    assert grown.own.series["host/0"].taken == 2


def test_a_device_of_no_size_says_nothing() -> None:
    sizes = (0.0, -1.0, 0.5, "80 GB", None, 10**400)
    rows = [{"rank": rank, "mem_total_mb": size} for rank, size in enumerate(sizes)]
    grown = Grown().tell(devices=[*rows, {"rank": None, "mem_total_mb": 5.0}, "a device"])
    assert grown.own.device_mb == {"2": 0.5}


@pytest.mark.parametrize(("last", "taken"), [(20_000, 20), (20_001, 5)])
def test_a_run_of_more_than_20_000_steps_is_sampled_at_every_fourth(last: int, taken: int) -> None:
    assert Grown(last=last).rise(20, 8.0).own.series["host/0"].taken == taken


@pytest.mark.parametrize(
    ("first", "every", "taken"), [(1, 10, 39), (10, 10, 40), (2, 50, 39), (4, 4, 40), (1, 2, 19)]
)
def test_what_is_told_now_and_then_is_sampled_whatever_the_steps(
    first: int, every: int, taken: int
) -> None:
    """Who counts from 0 and logs every tenth step tells of the steps 1, 11, 21."""
    grown = Grown({"limit_mb": 2_000.0}, last=50_000)
    for step in range(1, first + 40 * every):
        told = step >= first and (step - first) % every == 0
        grown.step(1_000.0 + step * 40.0 / every if told else None)
    assert grown.own.series["host/0"].taken == taken
    assert [row.rank for row in grown.of(Severity.HALT)] == [0]


def test_what_is_left_counts_when_memory_is_looked_at() -> None:
    """With sixteen samples at least, a look comes at every second one."""
    grown = Grown({"min_samples": 16}).tell(host_memory=memory(4_000, 1e6)).rise(16, 8.0)
    grown.tell(host_memory=memory(4_000, 4_100))
    assert grown.rise(1, 8.0).found == []
    assert grown.rise(1, 8.0).said == [(18, "warn"), (18, "halt")]


@pytest.mark.parametrize(
    ("step_s", "told"),
    [
        (119.0, "119 s"),
        (120.0, "2 min"),
        (6_000.0, "100 min"),
        (7_199.0, "120 min"),
        (7_200.0, "2.0 h"),
        (1_000_000.0, "277.8 h"),
    ],
)
def test_the_time_that_is_left_is_told_as_a_person_says_it(step_s: float, told: str) -> None:
    """At step 8 one step's 8 MB are left."""
    grown = Grown({"limit_mb": 1_072}, step_s=step_s).rise(8, 8.0)
    assert f" in about {told}, before" in grown.of(Severity.WARN)[0].text


def hosts(*used_mb: float, limit_mb: float = 5_000.0) -> list[dict[str, Any]]:
    """What each of several hosts tells, of which each has one rank."""
    return [memory(mb, limit_mb, {str(node): 1_000.0}) for node, mb in enumerate(used_mb)]


def test_a_host_that_stands_still_hides_no_leak_of_another() -> None:
    """The rank leaks on the host that has more left: of the fullest one alone it was none."""
    grown = Grown(ranks=2, nodes=2)
    for step in range(12):
        said = hosts(4_500.0, 2_000.0 + 8 * step)
        grown.tell(hosts_memory=said, host_memory=said[0]).rise(1, 0.0, 8.0)
    (warning,) = grown.of(Severity.WARN)
    assert (warning.rank, warning.value) == (1, (3_000.0 - 7 * 8) / 8)


def test_a_rank_does_not_fill_the_host_of_another() -> None:
    """Rank 0 maps files, its host stands still; the host of rank 1 is filled by somebody else."""
    grown = Grown(ranks=2, nodes=2)
    for step in range(16):
        grown.tell(hosts_memory=hosts(4_000.0, 4_000.0 + 8 * step)).rise(1, 8.0, 0.0)
    assert grown.found == []


def test_hosts_that_cannot_be_told_apart_or_read_say_nothing() -> None:
    unknown = [
        [memory(4_000.0, 4_100.0, dict.fromkeys(ranks, 1.0))] for ranks in ("", "9", "2", "x")
    ]
    for said in (*unknown, [{}], 7):
        grown = Grown(ranks=2, nodes=2)
        for _ in range(12):
            grown.tell(hosts_memory=said).rise(1, 8.0, 8.0)
        assert grown.found == []
        assert grown.own.hosts == {}


@pytest.mark.parametrize(
    ("told", "more", "kept"),
    [(None, 0.0, True), (900, 0.0, True), (1050, 0.0, True), (1051, 0.051, False)],
    ids=["untold", "smaller", "hardly larger", "larger"],
)
def test_a_step_of_more_tokens_than_any_begins_the_devices_course(
    told: int | None, more: float, kept: bool
) -> None:
    (step,) = Ran().step(tokens=told).steps
    series = {"host/0": Series(boot=""), "device/0": Series(boot="")}
    own = Growth(tokens=TokenGrowth(usual=1000.0), series=series)
    view = View(run=Run(order=order_of({}, identity=Identity(tokens_per_step=1000))))
    after = _grown(own, step, 0.05, view)
    assert (after is own) == (told is None)
    assert after.more == pytest.approx(more)
    assert ("device/0" in after.series) is kept
    assert "host/0" in after.series


@pytest.mark.parametrize(("leak_mb", "found"), [(0.0, False), (40.0, True)])
def test_tokens_that_are_told_as_a_sum_grow_by_nothing(leak_mb: float, found: bool) -> None:
    seen = on_device(200, lambda step: 10_000 + leak_mb * step, leak_mb, lambda step: 2048 * step)
    assert bool(seen.halts) is found


@pytest.mark.parametrize(("leak_mb", "found"), [(0.0, []), (20.0, [Severity.WARN])])
def test_nor_where_it_starts_again_within_its_first_lines(
    leak_mb: float, found: list[Severity]
) -> None:
    ran = Ran(order({"memory_limit": {"reserved_mb": 40_000}}))
    for boot, steps in (("first", 10), ("second", 200)):
        ran.back_to(0, boot)
        for step in range(1, steps + 1):
            mb = 4_000 + leak_mb * step
            ran.step(tokens=2048 * step, gpu_mem_reserved=6_000 + mb, gpu_mem_alloc=mb)
    fed = feed(MemoryLeak, ran, saved_every=50)
    assert [finding.severity for finding in fed.findings] == found


@pytest.mark.parametrize(
    ("slope", "moves", "kept"),
    [(None, 0, True), (0.0, 8, False), (0.0, 9, True), (0.5, 0, True), (-0.5, 8, False)],
)
def test_what_is_allocated_has_to_rise_or_to_be_untold_or_memory_changes_from_step_to_step(
    slope: float | None, moves: int, kept: bool
) -> None:
    """Nine of ten changes are those of nearly every step."""
    values = [float(min(step, moves)) for step in range(11)]
    told = {"device/0": Series(boot="", newest=tuple(enumerate(values)))}
    if slope is not None:
        told["allocated/0"] = Series(boot="", slopes=(slope,) * len(SCALES))
    assert _is_kept(Growth(series=told), 0) is kept


@pytest.mark.parametrize(("last", "kept"), [(0, True), (1, False), (2, False)])
def test_a_step_that_is_ended_again_may_be_larger(last: int, kept: bool) -> None:
    """What was told of a step before the restart is not what it has now."""
    (step,) = Ran().step(tokens=1051).steps
    tokens = TokenGrowth(usual=1000.0, step=last or 1)
    own = Growth(last_step=last, tokens=tokens, series={"device/0": Series(boot="")})
    view = View(run=Run(order=order_of({}, identity=Identity(tokens_per_step=1000))))
    assert ("device/0" in _grown(own, step, 0.05, view).series) is kept


@pytest.mark.parametrize(("more", "kept"), [(1050, True), (1051, False)])
def test_what_sums_were_taken_for_is_no_growth(more: int, kept: bool) -> None:
    """Up to twice what is ordered they look like steps of more and more tokens."""
    first, second = Ran().step(tokens=2100).step(tokens=2100 + more).steps
    tokens = TokenGrowth(usual=100.0, rises_by=1000.0, before=1100)
    own = Growth(tokens=tokens, more=10.0, series={"device/0": Series(boot="")})
    view = View(run=Run(order=order_of({}, identity=Identity(tokens_per_step=1000))))
    known = _grown(own, first, 0.05, view)
    assert (known.tokens.sums, known.more, "device/0" in known.series) == (True, 0.0, True)
    after = _grown(replace(known, last_step=1), second, 0.05, view)
    assert ("device/0" in after.series) is kept
