"""D8: tokens a second, recomputed, against the floor and the run's own baseline."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gonogo.contract.finding import Severity, Source
from gonogo.contract.heartbeat import Heartbeat, Identity
from gonogo.contract.outcome import Detector
from gonogo.contract.tick import Tick
from gonogo.watch import armed
from gonogo.watch.detectors.slow import Slow, Speed, _read
from gonogo.watch.lines import Arrival
from gonogo.watch.stream import RankStream
from gonogo.watch.view import Beat, Run, View
from tests.watch.streams import (
    EPOCH,
    IDENTITY,
    T0,
    Said,
    Ticking,
    World,
    order_of,
    watch,
    without_sections,
)


def run_of(watch_settings: dict[str, Any] | None = None, **fields: Any) -> World:
    order = order_of(watch_settings, steps=5000, **fields)
    return World(order, alive_every_s=5).boot()


def test_the_injected_slowness_is_found_within_six_slowed_steps() -> None:
    (halt,) = watch(run_of().steps(19).steps(8, step_s=2.5)).halts
    assert (halt.detector, halt.rank, halt.section) == ("slow", None, None)
    assert halt.step is not None
    assert 20 <= halt.step <= 25
    assert (halt.threshold, halt.source) == (3.5, Source.PLAN)
    assert halt.value == pytest.approx(5.0, rel=0.05)


def test_single_slow_steps_are_silent() -> None:
    world = run_of().steps(19)
    for step_s in (2.5, 0.5, 0.5, 2.5, 0.5, 0.5, 2.5):
        world.steps(1, step_s=step_s)
    assert watch(world).halts == []


def test_slowness_within_the_ratio_is_silent() -> None:
    assert watch(run_of().steps(19).steps(30, step_s=1.6)).halts == []


def test_a_clock_of_numbers_that_no_sum_holds_is_no_end_of_the_watch() -> None:
    world = run_of({"slow": {"floor_tok_s": 100.0, "warmup_steps": 2}}).steps(20)
    for rank in world.ranks:
        for place, said in enumerate(rank.lines):
            line = json.loads(said.raw)
            mono = 1.7e308 if line["step"] % 2 else line["mono"]
            rank.lines[place] = Said(said.mono, json.dumps({**line, "mono": mono}).encode())
    assert watch(world).state.streams[0].completed == 20


def test_a_slow_start_is_no_baseline() -> None:
    assert watch(run_of().steps(5, step_s=3.0).steps(40)).halts == []
    (halt,) = watch(run_of().steps(5, step_s=3.0).steps(15).steps(8, step_s=2.5)).halts
    assert halt.value == pytest.approx(5.0, rel=0.05)


def test_checkpoint_and_eval_are_no_step_time() -> None:
    world = run_of().steps(19)
    for _ in range(8):
        world.pause("checkpoint", 4.0).pause("eval", 3.0).steps(1)
    assert watch(world).halts == []


def test_time_between_steps_in_no_section_is_step_time() -> None:
    world = run_of().steps(19)
    for _ in range(8):
        world.pause(None, 2.5).steps(1)
    assert watch(world).named(Severity.HALT) == {"slow"}


@pytest.mark.parametrize("at", [75, 110, 118])
def test_half_speed_that_begins_within_the_baseline_warns(at: int) -> None:
    found = watch(run_of({}).steps(at, step_s=2.0).steps(500, step_s=4.2), interval_s=1.0)
    (warn,) = found.of(Severity.WARN)
    assert (warn.detector, warn.threshold) == ("slow", 1.33)
    assert warn.value == pytest.approx(2.1, rel=0.05)
    assert "fastest part of the baseline" in warn.text
    assert found.halts == []


@pytest.mark.parametrize("part_x", [1.25, 0.6])
def test_a_start_that_was_no_faster_or_slower_warns_of_nothing(part_x: float) -> None:
    world = run_of({}).steps(110, step_s=2.0).steps(300, step_s=2.0 * part_x)
    assert watch(world, interval_s=1.0).findings == []


def test_half_speed_warns_then_halts_on_time() -> None:
    world = run_of({}).steps(230, step_s=2.0).steps(500, step_s=4.0)
    found = watch(world, interval_s=1.0)
    (warn,) = found.of(Severity.WARN)
    (halt,) = found.halts
    assert (warn.detector, warn.threshold) == ("slow", 1.33)
    assert (halt.detector, halt.threshold) == ("slow", 1.67)
    slowed = 300.0 < halt.at - (warn.at - 300.0) <= 700.0
    assert slowed


def test_two_thirds_of_the_speed_only_warns() -> None:
    found = watch(run_of({}).steps(230, step_s=2.0).steps(500, step_s=3.2), interval_s=1.0)
    assert found.halts == []
    assert found.named(Severity.WARN) == {"slow"}


def test_a_slowness_that_recovers_in_time_neither_warns_nor_adds_up() -> None:
    world = run_of({}).steps(230, step_s=2.0)
    for _ in range(3):
        world.steps(80, step_s=4.0).steps(100, step_s=2.0)
    assert watch(world, interval_s=1.0).findings == []


def longer(every: int, count: int, times_x: float, *, at: int = 230, step_s: float = 2.0) -> World:
    """After `at` steps every so many-th takes `times_x` times as long."""
    world = run_of({}).steps(at, step_s=step_s)
    for number in range(count):
        world.steps(1, step_s=step_s * (times_x if number % every == 0 else 1.0))
    return world


@pytest.mark.parametrize("every", [3, 4])
def test_every_third_step_that_becomes_ten_times_as_long_warns(every: int) -> None:
    """The median is what it was, and the run takes four times as long."""
    found = watch(longer(every, 300, 10.0), interval_s=1.0)
    (warn,) = found.of(Severity.WARN)
    assert (warn.detector, warn.threshold) == ("slow", 1.67)
    assert "the longer third of the steps" in warn.text
    assert found.halts == []


@pytest.mark.parametrize(
    ("every", "count", "times_x", "at"),
    [(20, 400, 10.0, 230), (3, 30, 10.0, 230), (3, 400, 1.6, 230), (3, 500, 10.0, 0)],
    ids=["one in twenty", "not for long", "a little", "from the start"],
)
def test_such_steps_are_silent_where_they_are_few_or_the_runs_way(
    every: int, count: int, times_x: float, at: int
) -> None:
    assert watch(longer(every, count, times_x, at=at), interval_s=1.0).of(Severity.WARN) == []


def test_slow_boiling_is_measured_against_the_frozen_baseline() -> None:
    world = run_of({})
    step_s = 1.0
    for _ in range(70):
        world.steps(20, step_s=step_s)
        step_s *= 1.012
    assert watch(world, interval_s=2.0).named(Severity.WARN) == {"slow"}


def told(world: World, count: int, *, step_s: float, tokens: int) -> World:
    """Steps whose ends tell so many tokens."""
    for _ in range(count):
        world.open_step()
        world.compute(step_s=step_s)
        for rank in world.ranks:
            rank.say("progress", loss=5.0 - 0.001 * rank.step)
            rank.enter(None)
            rank.say("step_end", tokens=tokens)
            rank.in_step = False
    return world


@pytest.mark.parametrize("floor", [None, 1900.0])
def test_steps_of_more_tokens_may_take_as_much_longer(floor: float | None) -> None:
    world = told(run_of({"slow": {"floor_tok_s": floor}}), 300, step_s=1.0, tokens=1024)
    told(world, 400, step_s=2.0, tokens=2048)
    told(world, 300, step_s=4.0, tokens=4096)
    assert watch(world, interval_s=2.0).findings == []
    told(world, 200, step_s=9.0, tokens=4096)
    assert watch(world, interval_s=2.0).named(Severity.HALT) == {"slow"}


@pytest.mark.parametrize(("step_s", "found"), [(1.0, set()), (2.2, {"slow"})])
def test_a_trainer_that_tells_the_tokens_of_the_whole_run_is_timed_by_its_steps(
    step_s: float, found: set[str]
) -> None:
    world = run_of({})
    for number in range(1, 901):
        told(world, 1, step_s=1.0 if number <= 400 else step_s, tokens=2048 * number)
    assert watch(world, interval_s=2.0).named(Severity.HALT) == found


@pytest.mark.parametrize("ranks", [32, 128])
@pytest.mark.parametrize(("step_s", "found"), [(2.0, set()), (5.0, {"slow"})])
def test_such_a_sum_of_one_of_many_ranks_is_known_late_and_was_no_growth(
    ranks: int, step_s: float, found: set[str]
) -> None:
    """It takes so many steps more until it comes to more than was ordered for all of them."""
    world = run_of({}, identity=IDENTITY.model_copy(update={"tokens_per_step": ranks * 2048}))
    for number in range(1, 901):
        told(world, 1, step_s=2.0 if number <= 500 else step_s, tokens=2048 * number)
    seen = watch(world, interval_s=2.0)
    assert {row.detector for row in seen.findings} == found
    assert seen.named(Severity.HALT) == found


def test_sequences_that_grow_with_every_step_may_take_as_much_longer() -> None:
    """They tell what a sum would, and never more than was ordered."""
    world = run_of({}, identity=IDENTITY.model_copy(update={"tokens_per_step": 8192}))
    for number in range(1, 1100):
        tokens = min(8192, 8 * number)
        told(world, 1, step_s=0.3 + 0.7 * tokens / 1024, tokens=tokens)
    assert watch(world, interval_s=2.0).findings == []


def test_tokens_told_after_the_line_that_ended_the_step_count() -> None:
    """A rank that names no sections ends a step by its progress; `step_end` tells the tokens."""

    def grown(tokens: int) -> set[str]:
        world = run_of({"slow": {"floor_tok_s": 1900.0}})
        world = told(world, 300, step_s=1.0, tokens=1024)
        told(world, 400, step_s=2.0, tokens=tokens)
        for rank in world.ranks:
            rank.lines = [without_sections(said) for said in rank.lines]
        return watch(world, interval_s=2.0).named(Severity.HALT)

    assert grown(2048) == set()
    assert grown(1024) == {"slow"}


def test_sequences_that_grow_are_silent_and_equal_tokens_that_slow_down_are_not() -> None:
    def boiled(grows: bool) -> set[str]:
        world = run_of({})
        for part in range(30):
            growth = 1.0 + part / 15
            told(world, 40, step_s=growth, tokens=int(1000 * (growth if grows else 1.0)))
        return watch(world, interval_s=2.0).named(Severity.HALT)

    assert boiled(grows=True) == set()
    assert boiled(grows=False) == {"slow"}


@pytest.mark.parametrize("telling", [0, 1])
@pytest.mark.parametrize(("grows", "halted"), [(2, set()), (1, {"slow"})])
def test_one_rank_may_tell_the_tokens_of_all(telling: int, grows: int, halted: set[str]) -> None:
    """A pipeline's last rank, or the first one."""
    world = run_of({})
    for step in range(1_000):
        growth = 1 if step < 300 else 2
        world.open_step()
        world.compute(step_s=1.0 * growth)
        for rank in world.ranks:
            tokens = {"tokens": 1024 * min(growth, grows)} if rank.rank == telling else {}
            rank.say("progress", loss=5.0)
            rank.enter(None)
            rank.say("step_end", **tokens)
            rank.in_step = False
    assert watch(world, interval_s=2.0).named(Severity.HALT) == halted


def test_short_steps_that_tell_fewer_tokens_are_not_slow() -> None:
    world = told(run_of({}), 300, step_s=1.0, tokens=2048)
    assert watch(told(world, 900, step_s=0.9, tokens=256), interval_s=2.0).findings == []


def in_blocks(blocks: Sequence[tuple[int, float]]) -> World:
    """A program that is only read, and whose lines come in blocks: so many, after so many seconds.

    Its reader says that it lives, and spreads a block over the time since it last did.
    """
    order = order_of({}, world_size=1, steps=100_000)
    world = World(order.model_copy(update={"patterns": ["x"], "command": ["x"]}))
    (rank,) = world.ranks
    rank.section, rank.section_seq = None, 0
    for number, (lines, seconds) in enumerate(blocks):
        end, alive_s = rank.mono + seconds, (0.5, 4.5, 2.0)[number % 3]
        while rank.mono + 5.0 < end - alive_s:
            rank.mono += 5.0
            rank.say("alive")
        began = rank.mono = end - alive_s
        rank.say("alive")
        for line in range(1, lines + 1):
            rank.mono = began + alive_s * line / lines
            rank.step += 1
            rank.say("progress", loss=5.0 - 0.0001 * rank.step)
            rank.lines[-1] = Said(end, rank.lines[-1].raw)
    return world


def test_lines_that_come_in_blocks_are_timed_by_the_block() -> None:
    block = (60, 600.0)
    seen = watch(in_blocks([block] * 20), interval_s=1.0)
    assert (seen.halts, seen.named(Severity.WARN)) == ([], set())
    slower = watch(in_blocks([block] * 12 + [(60, 1_500.0)] * 6), interval_s=1.0)
    assert slower.named(Severity.HALT) == {"slow"}


def printed(
    word: str | None, *, later_s: float, tokens: int | None = None, **ordered: Any
) -> World:
    """A program that is only read: its steps take 2 s, and `later_s` from step 300 on."""
    order = order_of({}, world_size=1, steps=100_000, patterns=["x"], command=["x"], **ordered)
    world = World(order)
    (rank,) = world.ranks
    rank.section, rank.section_seq = None, 0
    told = {name: value for name, value in (("tokens", tokens), ("step_word", word)) if value}
    for step in range(1, 900):
        rank.spend(2.0 if step < 300 else later_s)
        rank.step = step
        rank.say("progress", **told)
    return world


UNKNOWN = IDENTITY.model_copy(update={"tokens_per_step": None})


@pytest.mark.parametrize(
    "word", ["episode", "episodes", "ep", "game", "rollout", "trial", "generation"]
)
def test_episodes_that_become_longer_as_an_agent_learns_warn_and_halt_nothing(word: str) -> None:
    seen = watch(printed(word, later_s=5.0, identity=UNKNOWN), interval_s=1.0)
    assert (seen.halts, seen.named(Severity.WARN)) == ([], {"slow"})


@pytest.mark.parametrize(
    ("word", "tokens", "identity"),
    [
        ("iter", None, UNKNOWN),
        ("step", None, UNKNOWN),
        ("batch", None, UNKNOWN),
        (None, None, UNKNOWN),
        ("episode", 2048, UNKNOWN),
        ("episode", None, IDENTITY),
    ],
    ids=["iter", "step", "batch", "no word", "tells tokens", "tokens are ordered"],
)
def test_an_unchanged_program_that_loses_half_its_speed_is_halted(
    word: str | None, tokens: int | None, identity: Identity
) -> None:
    world = printed(word, later_s=4.0, tokens=tokens, identity=identity)
    assert watch(world, interval_s=1.0).named(Severity.HALT) == {"slow"}


def test_an_attached_trainer_cannot_call_its_steps_episodes() -> None:
    world = run_of({}).steps(300, step_s=2.0, step_word="episode")
    world.steps(400, step_s=5.0, step_word="episode")
    assert watch(world, interval_s=1.0).named(Severity.HALT) == {"slow"}


def restarted(world: World) -> World:
    """Every rank starts anew in place."""
    for rank in world.ranks:
        rank.spend(5.0)
        rank.boot, rank.seq, rank.section, rank.section_seq = "again", 0, "boot", 0
        rank.in_step = False
        rank.say("boot", **world.order.identity.model_dump(mode="json", exclude_none=True))
        rank.enter(None)
    return world


@pytest.mark.parametrize("again_at", [0, 6], ids=["from scratch", "from a checkpoint"])
@pytest.mark.parametrize(("step_s", "found"), [(1.0, set()), (2.2, {"slow"})])
def test_a_sum_of_tokens_that_begins_anew_within_the_first_lines_is_one(
    step_s: float, found: set[str], again_at: int
) -> None:
    world = run_of({})
    for number in range(1, 11):
        told(world, 1, step_s=1.0, tokens=2048 * number)
    for rank in world.ranks:
        rank.step = again_at
    restarted(world)
    for number in range(again_at + 1, 901):
        told(world, 1, step_s=1.0 if number <= 400 else step_s, tokens=2048 * number)
    assert watch(world, interval_s=2.0).named(Severity.HALT) == found


@pytest.mark.parametrize(("step_s", "found"), [(1.0, set()), (5.0, {"slow"})])
def test_a_restart_in_place_keeps_the_baseline(step_s: float, found: set[str]) -> None:
    world = restarted(run_of({}).steps(300, step_s=1.0))
    world.steps(20, step_s=20.0).steps(280, step_s=step_s)
    seen = watch(world, interval_s=2.0)
    assert seen.named(Severity.HALT) == found
    assert all((halt.step or 0) > 300 + 20 + 100 for halt in seen.halts)


@pytest.mark.parametrize(
    ("done", "later_s", "found"),
    [(True, 2.5, set()), (True, 7.0, {"slow"}), (False, 2.5, {"slow"})],
)
def test_a_training_after_another_one_has_a_baseline_of_its_own(
    done: bool, later_s: float, found: set[str]
) -> None:
    """A sweep over sizes, one process: each says done, and the next begins at step 0."""
    world = run_of({}).steps(300, step_s=1.0)
    for rank in world.ranks:
        if done:
            rank.say("done")
        rank.step = 0
    restarted(world).steps(300, step_s=2.5).steps(200, step_s=later_s)
    assert watch(world, interval_s=2.0).named(Severity.HALT) == found


def test_below_the_floor_from_the_start_halts_when_it_lasts() -> None:
    settings = {"slow": {"floor_tok_s": 2048.0}}
    world = run_of(settings).steps(420, step_s=1.4)  # 0.71 of the floor
    (halt,) = watch(world, interval_s=1.0).halts
    assert (halt.detector, halt.source) == ("slow", Source.PLAN)
    assert halt.threshold == pytest.approx(0.8 * 2048)
    assert halt.value == pytest.approx(2048 / 1.41, rel=0.02)
    assert halt.step is not None
    assert halt.step > 20 + 64 + 300 / 1.5


def test_far_below_the_floor_halts_after_a_few_steps() -> None:
    settings = {"slow": {"floor_tok_s": 2048.0}}
    (halt,) = watch(run_of(settings).steps(40, step_s=6.2)).halts
    assert halt.threshold == pytest.approx(0.5 * 2048)
    assert halt.step == 25


@pytest.mark.parametrize("slow_steps", [1, 3, 4])
def test_a_few_pauses_below_the_hard_floor_halt_nobody(slow_steps: int) -> None:
    settings = {"slow": {"floor_tok_s": 2048.0, "floor_over_s": 1e6}}
    world = run_of(settings).steps(30, step_s=0.9)
    for _ in range(20):
        world.steps(slow_steps, step_s=6.0).steps(1, step_s=0.9)
    assert watch(world).halts == []


def test_every_step_below_the_hard_floor_halts_at_the_fifth() -> None:
    settings = {"slow": {"floor_tok_s": 2048.0}}
    world = run_of(settings).steps(30, step_s=0.9).steps(6, step_s=6.1)
    (halt,) = watch(world).halts
    assert (halt.detector, halt.step, halt.rank) == ("slow", 35, None)
    assert halt.value == pytest.approx(2048 / 6.11, rel=0.01)


@pytest.mark.parametrize(("step_s", "burst_s"), [(0.05, 2.0), (1.0, 25.0)])
def test_half_a_minute_of_a_neighbours_load_halts_nobody(step_s: float, burst_s: float) -> None:
    settings = {"slow": {"floor_tok_s": 0.85 * 2048 / step_s, "floor_over_s": 1e6}}
    world = run_of(settings).steps(40, step_s=step_s)
    world.steps(int(burst_s / (3.0 * step_s)), step_s=3.0 * step_s).steps(10, step_s=step_s)
    assert watch(world).halts == []
    (halt,) = watch(world.steps(int(40.0 / (3.0 * step_s)), step_s=3.0 * step_s)).halts
    assert halt.detector == "slow"


def test_a_little_above_the_floor_is_silent() -> None:
    settings = {"slow": {"floor_tok_s": 2048.0}}
    assert watch(run_of(settings).steps(500, step_s=1.2), interval_s=1.0).findings == []


def test_long_steps_need_fewer_of_them() -> None:
    settings = {"slow": {"floor_tok_s": 50.0}}
    (halt,) = watch(run_of(settings).steps(60, step_s=60.0), interval_s=5.0).halts
    assert halt.step is not None
    assert 20 + 16 < halt.step <= 20 + 16 + 6


def test_tokens_are_the_ordered_ones_not_the_reported() -> None:
    settings = {"slow": {"floor_tok_s": 2048.0}}
    world = run_of(settings)
    for _ in range(40):
        world.open_step()
        world.compute(step_s=2.2)
        for rank in world.ranks:
            rank.say("progress", loss=5.0, toks_per_s=1e6)
            rank.enter(None)
            rank.say("step_end", tokens=10**6)
            rank.in_step = False
    assert watch(world).named(Severity.HALT) == {"slow"}


def test_a_plan_without_a_floor_has_only_its_baseline() -> None:
    assert watch(run_of({}).steps(100, step_s=5.0), interval_s=1.0).findings == []


def test_it_is_armed_by_its_baseline() -> None:
    assert not armed(watch(run_of().steps(10)).state)[Detector.SLOW]
    assert armed(watch(run_of().steps(20)).state)[Detector.SLOW]


def test_a_step_end_that_was_lost_still_counts_for_its_step() -> None:
    world = run_of().steps(19).steps(5, step_s=2.5)
    for rank in world.ranks:
        rank.lines = [
            line
            for line in rank.lines
            if not (b'"step_end"' in line.raw and b'"step": 22,' in line.raw)
        ]
    (halt,) = watch(world).halts
    assert halt.step == 24


def test_a_jump_over_countless_steps_costs_no_memory() -> None:
    world = run_of({}).steps(3)
    for rank in world.ranks:
        rank.step = 10**12
    assert watch(world.steps(3)).halts == []


LEAST_S = 0.25
"""Shorter than every step: what holds at one step end is found at the next."""
EXACT: dict[str, Any] = {
    "warmup_steps": 0,
    "baseline_steps": 4,
    "window_steps": 4,
    "hard_floor_over_steps": 0,
    "warn_ratio": 1.5,
    "halt_ratio": 3.0,
    "warn_over_s": LEAST_S,
    "over_s": LEAST_S,
    "floor_over_s": LEAST_S,
}
"""A baseline and windows of four steps; what a test asks about it changes."""


class Timed:
    """Ends of steps, of exactly so many seconds, as the rule is shown them."""

    def __init__(
        self, tokens_per_step: int | None = 2048, *, is_read: bool = False, **settings: Any
    ) -> None:
        read: dict[str, Any] = {"patterns": ["x"], "command": ["x"]} if is_read else {}
        order = order_of({"slow": {**EXACT, **settings}}, steps=5000, **read)
        identity = order.identity.model_copy(update={"tokens_per_step": tokens_per_step})
        run = Run(order=order.model_copy(update={"identity": identity}))
        self.view = View(run=run)
        self.rule = Slow(run)
        self.own = self.rule.begin()
        self.found: list[tuple[Severity, int | None, str]] = []
        """What, at which step it was found, and in which episode; each key once."""
        self.texts: list[str] = []
        self._keys: set[str] = set()
        self._mono = 1000.0
        self._labelled = not is_read
        self.boot(0, "first")

    def boot(self, rank: int, boot: str) -> "Timed":
        """Let a rank begin anew, at step 0."""
        stream = RankStream(rank=rank, boot=boot, labelled=self._labelled)
        stream.pace.end(0, self._mono)
        self.view.streams[rank] = stream
        return self

    def ends(
        self,
        seconds: Sequence[float],
        rank: int = 0,
        told: int = 1,
        stride: int = 1,
        word: str | None = None,
    ) -> "Timed":
        """End so many steps after the other, the last of them told by so many lines."""
        stream = self.view.streams[rank]
        for step_s in seconds:
            self._mono += step_s
            step = (stream.pace.last_step or 0) + stride
            stream.pace.end(step, self._mono)
            for _ in range(told):
                self._tell(stream, step, word)
        return self

    def _tell(self, stream: RankStream, step: int, word: str | None) -> None:
        line = Heartbeat.model_validate(
            {
                "v": 1, "ts": EPOCH, "mono": self._mono, "pid": 1, "rank": stream.rank,
                "boot": stream.boot, "seq": step, "step": step, "msg": "step_end",
                "step_word": word,
            }
        )  # fmt: skip
        tick = Tick(n=step, mono=self._mono, ts=EPOCH)
        beat = Beat(line=line, arrival=Arrival.NEW, tick=tick)
        self.own, findings = self.rule.observe_line(self.own, beat, self.view)
        for finding in findings:
            if finding.key not in self._keys:
                self._keys.add(finding.key)
                episode = finding.key.rpartition("/")[2]
                self.found.append((finding.severity, finding.step, episode))
                self.texts.append(finding.text)


WARN, HALT = Severity.WARN, Severity.HALT


@pytest.mark.parametrize(
    ("step_s", "found"),
    [(1.5, []), (1.625, [(WARN, 8, "step7")]), (3.0, [(WARN, 7, "step6")])],
    ids=["at the limit of a warning", "beyond it", "at the limit of a halt"],
)
def test_the_relative_limits_have_to_be_passed(
    step_s: float, found: list[tuple[Severity, int, str]]
) -> None:
    timed = Timed().ends([1.0] * 4).ends([step_s] * 4)
    assert timed.found == found


def test_the_relative_limit_of_a_halt_has_to_be_passed() -> None:
    assert (HALT, 8, "step7") in Timed().ends([1.0] * 4).ends([3.25] * 4).found


@pytest.mark.parametrize(
    ("count", "fast", "step_s", "warned"),
    [
        (64, 32, 2.0, "2.00 times the fastest part of the baseline"),
        (64, 32, 2.25, "2.25 times the fastest part of the baseline"),
        (64, 32, 2.5, "1.67 times the baseline"),
        (63, 31, 2.0, None),
        (160, 21, 2.0, "2.00 times the fastest part of the baseline"),
        (160, 20, 2.0, None),
        (4, 2, 2.0, None),
        (4, 4, 1.75, "1.75 times the baseline"),
    ],
    ids=[
        "two parts", "just within it", "beyond it", "too few for two", "four parts", "no fifth",
        "too few for any", "no part is faster",
    ],
)  # fmt: skip
def test_a_run_that_was_slower_in_its_baseline_is_held_against_its_fastest_part(
    count: int, fast: int, step_s: float, warned: str | None
) -> None:
    """Against one of four at most, each of 32 steps or more; once it is slower, against all."""
    timed = Timed(baseline_steps=count)
    timed.ends([2.0] * (count - fast)).ends([1.0] * fast).ends([step_s] * 6)
    assert [text.partition(" for ")[0] for text in timed.texts] == (
        [] if warned is None else [f"steps have taken {warned}"]
    )


LOW = [1.0] * 11


@pytest.mark.parametrize(
    ("longer", "found"),
    [
        ([3.25] * 4 + [3.25], True),
        ([3.0] * 4 + [3.0], False),
        ([3.0] * 4 + [900.0], False),
        ([3.0] * 3 + [3.5] * 2, True),
        ([1.0] + [3.5] * 4, False),
    ],
    ids=["above", "at the limit", "the longest is left out", "the last but it is not", "the least"],
)
def test_the_longer_third_are_four_of_sixteen_without_the_longest(
    longer: list[float], found: bool
) -> None:
    timed = Timed(baseline_steps=16, window_steps=16).ends([1.0] * 16)
    timed.ends([*LOW, *longer] * 2)
    assert [(severity, episode[:4]) for severity, _, episode in timed.found] == (
        [(WARN, "step")] * found
    )
    assert all("the longer third" in text for text in timed.texts)


def test_the_longer_third_of_fifteen_is_not_asked() -> None:
    timed = Timed(baseline_steps=16, window_steps=15).ends([1.0] * 16)
    assert timed.ends([*LOW[:10], *[4.0] * 5] * 4).found == []


@pytest.mark.parametrize(("over_s", "step"), [(4.0, 21), (4.25, 22)])
def test_the_longer_third_has_to_be_longer_for_its_seconds(over_s: float, step: int) -> None:
    """Four of them have taken so long at step 20."""
    timed = Timed(baseline_steps=16, window_steps=16, over_s=over_s).ends([1.0] * 16)
    assert timed.ends([*[4.0] * 5, *LOW]).found == [(WARN, step, "step20")]


@pytest.mark.parametrize(("short_s", "halts"), [(0.375, 0), (0.5, 1)])
def test_a_halt_asks_that_the_mean_has_risen_by_more_than_warns(short_s: float, halts: int) -> None:
    """Of five steps three take 2.25 times what is usual; the mean is at 1.5 times, or above."""
    timed = Timed(window_steps=5, halt_ratio=2.0, over_s=9.0).ends([1.0] * 4)
    timed.ends([2.25, short_s, 2.25, short_s, 2.25] * 6)
    assert len([row for row in timed.found if row[0] is HALT]) == halts


@pytest.mark.parametrize(
    ("is_read", "word", "tokens", "halts"),
    [
        (True, "game", None, False),
        (True, "games", None, False),
        (True, "step", None, True),
        (True, None, None, True),
        (True, "game", 2048, True),
        (False, "game", None, True),
    ],
)
def test_a_word_for_steps_of_any_length_halts_nothing_where_it_is_read(
    is_read: bool, word: str | None, tokens: int | None, halts: bool
) -> None:
    timed = Timed(tokens, is_read=is_read).ends([1.0] * 6, word=word).ends([4.0] * 8, word=word)
    assert {row[0] for row in timed.found} == ({WARN, HALT} if halts else {WARN})


@pytest.mark.parametrize(("over_s", "step"), [(4.0, 9), (6.0, 10), (6.25, 11)])
def test_a_condition_has_to_hold_for_its_seconds(over_s: float, step: int) -> None:
    timed = Timed(warn_over_s=over_s).ends([1.0] * 4).ends([2.0] * 8)
    assert timed.found == [(WARN, step, "step7")]


def test_the_seconds_begin_where_the_limit_is_passed_not_where_it_is_reached() -> None:
    timed = Timed(warn_over_s=4.0).ends([1.0] * 4).ends([1.5] * 20).ends([2.0] * 6)
    assert timed.found == [(WARN, 28, "step26")]


def test_what_has_recovered_begins_anew() -> None:
    timed = Timed(warn_over_s=8.0).ends([1.0] * 4)
    for _ in range(4):
        timed.ends([2.0] * 5).ends([1.0] * 5)
    assert timed.found == []
    assert timed.ends([2.0] * 8).found == [(WARN, 51, "step47")]


def test_one_condition_that_ends_leaves_the_other() -> None:
    timed = Timed(warn_over_s=20.0, over_s=20.0).ends([1.0] * 4)
    timed.ends([4.0] * 4).ends([2.0] * 6)
    assert timed.found == [(WARN, 14, "step6")]
    assert timed.ends([4.0] * 4).found == [(WARN, 14, "step6")]


def test_a_plan_that_asks_for_steps_does_not_ask_for_seconds() -> None:
    timed = Timed(over_steps=100).ends([1.0] * 4).ends([4.0] * 99)
    assert {severity for severity, _, _ in timed.found} == {WARN}
    assert (HALT, 104, "step104") in timed.ends([4.0]).found


@pytest.mark.parametrize(("step_s", "halts"), [(3.0, []), (3.25, [9])])
def test_the_last_steps_have_to_pass_the_limit(step_s: float, halts: list[int]) -> None:
    timed = Timed(over_steps=5).ends([1.0] * 4).ends([step_s] * 6)
    assert [step for severity, step, _ in timed.found if severity is HALT] == halts


@pytest.mark.parametrize(("steps", "halts"), [(4, []), (5, [5])])
def test_after_a_restart_the_last_steps_are_those_since(steps: int, halts: list[int]) -> None:
    timed = Timed(over_steps=5).ends([1.0] * 40).boot(0, "second")
    timed.ends([4.0] * steps)
    assert [step for severity, step, _ in timed.found if severity is HALT] == halts


@pytest.mark.parametrize(
    ("window_steps", "step_s", "first"),
    [
        (64, 30.0, 64),
        (64, 30.25, 16),
        (64, 61.0, 16),
        (64, 8.0, 64),
        (4, 8.0, 4),
        (4, 60.0, 4),
        (16, 60.0, 16),
    ],
)
def test_a_window_may_be_shorter_where_steps_are_long(
    window_steps: int, step_s: float, first: int
) -> None:
    timed = Timed(window_steps=window_steps, floor_tok_s=4096.0)
    timed.ends([step_s] * 70)
    assert timed.found == [(HALT, first + 1, f"step{first}")]


@pytest.mark.parametrize(
    ("step_s", "over_s", "found"),
    [
        (1.0, LEAST_S, []),
        (1.25, LEAST_S, [(HALT, 5, "step4")]),
        (1.25, 5.0, [(HALT, 8, "step4")]),
        (1.25, 5.125, [(HALT, 9, "step4")]),
    ],
    ids=["at the floor", "below it", "for its seconds", "for not quite its seconds"],
)
def test_the_floor_has_to_be_passed_for_its_seconds(
    step_s: float, over_s: float, found: list[tuple[Severity, int, str]]
) -> None:
    timed = Timed(floor_tok_s=4096.0, floor_ratio=0.5, floor_over_s=over_s)
    assert timed.ends([step_s] * 12).found == found


def test_the_seconds_below_the_floor_begin_below_it_not_at_it() -> None:
    timed = Timed(floor_tok_s=4096.0, floor_ratio=0.5, floor_over_s=5.0)
    timed.ends([1.0] * 20).ends([1.25] * 8)
    assert timed.found == [(HALT, 26, "step22")]


@pytest.mark.parametrize(("step_s", "found"), [(10.0, []), (12.5, [(HALT, 15, "step15")])])
def test_each_of_the_last_steps_has_to_be_below_the_hard_floor(
    step_s: float, found: list[tuple[Severity, int, str]]
) -> None:
    timed = Timed(
        20480, floor_tok_s=4096.0, hard_floor_over_steps=5, floor_over_s=1e9, warn_over_s=1e9
    )
    assert timed.ends([7.5] * 10).ends([step_s] * 8).found == found


@pytest.mark.parametrize(("step_s", "at"), [(1.25, 24), (5.0, 6), (7.5, 5)])
def test_steps_below_the_hard_floor_have_to_fill_half_a_minute(step_s: float, at: int) -> None:
    timed = Timed(floor_tok_s=4096.0, hard_floor_over_steps=5, floor_over_s=1e9, warn_over_s=1e9)
    found = timed.ends([0.75] * 10).ends([step_s] * 30).found
    assert [row for row in found if row[2] == "step15"] == [(HALT, 10 + at, "step15")]


@pytest.mark.parametrize(("lines", "found"), [(4, []), (5, [(HALT, 250, "step250")])])
def test_of_ten_steps_that_one_line_ends_a_single_one_may_have_been_slow(
    lines: int, found: list[tuple[Severity, int, str]]
) -> None:
    """A program that tells every tenth step saved a checkpoint, and was halted at its next line."""
    lasts: dict[str, Any] = {"floor_over_s": 1e9, "warn_over_s": 1e9, "over_s": 1e9}
    timed = Timed(20480, floor_tok_s=4096.0, hard_floor_over_steps=5, **lasts)
    timed.view.streams[0].labelled = False
    timed.ends([75.0] * 20, stride=10).ends([125.0] * lines, stride=10)
    assert timed.found == found


@pytest.mark.parametrize("labelled", [True, False])
def test_a_trainer_that_tells_every_tenth_step_is_judged_by_its_steps(labelled: bool) -> None:
    """Of one that names its sections each line counted as one step: windows took hours."""
    timed = Timed(warmup_steps=20, baseline_steps=100, window_steps=64, over_s=600.0)
    timed.view.streams[0].labelled = labelled
    timed.ends([10.0] * 60, stride=10).ends([40.0] * 25, stride=10)
    (step,) = {row[1] for row in timed.found if row[0] is HALT}
    assert step is not None
    assert 600 + 150 <= step <= 600 + 150 + 80


def test_where_lines_are_missing_their_steps_are_one_sample() -> None:
    """Which of thirty steps took the time nobody knows: they fill no window by themselves."""
    timed = Timed(warmup_steps=1, baseline_steps=8, window_steps=16, warn_over_s=1.0)
    timed.ends([1.0] * 40).ends([90.0], stride=30)
    assert len(timed.own.window) == 16
    assert timed.own.window.count(3.0) == 1
    assert timed.ends([1.0] * 8).found == []


def test_an_episode_below_the_hard_floor_begins_below_it_not_at_it() -> None:
    timed = Timed(
        65536, floor_tok_s=4096.0, hard_floor_ratio=0.5, hard_floor_over_steps=2, floor_over_s=1e9
    )
    assert timed.ends([32.0] * 10).ends([40.0] * 3).found == [(HALT, 12, "step12")]


def test_one_rank_is_timed_and_each_of_its_steps_once() -> None:
    timed = Timed(floor_tok_s=4096.0, floor_ratio=0.5)
    timed.ends([0.5]).boot(1, "other").ends([9.0] * 40, rank=1)
    assert timed.found == []
    timed.ends([9.0] * 2, told=3)
    assert timed.found == []
    assert timed.ends([9.0] * 2).found == [(HALT, 5, "step4")]


def test_another_rank_that_starts_anew_keeps_what_the_timed_one_has_shown() -> None:
    timed = Timed(floor_tok_s=4096.0, floor_ratio=0.5).ends([9.0] * 3)
    timed.boot(1, "other").ends([1.0], rank=1)
    assert timed.ends([9.0] * 2).found == [(HALT, 5, "step4")]


@pytest.mark.parametrize(("step_s", "found"), [(1.5, []), (4.0, [(HALT, "halt_ratio")])])
def test_a_run_that_restarts_again_and_again_is_slow_all_the_same(
    step_s: float, found: list[tuple[Severity, str]]
) -> None:
    """No window fills between two restarts; the steps before go on counting."""
    timed = Timed(window_steps=16, warn_ratio=5.0, over_s=600.0).ends([1.0] * 40)
    for number in range(20):
        timed.boot(0, f"boot{number}").ends([step_s] * 10)
    assert [severity for severity, _, _ in timed.found] == [severity for severity, _ in found]


def test_a_restart_that_mends_a_slow_run_ends_what_lasted() -> None:
    timed = Timed(window_steps=16, warn_ratio=5.0, over_s=600.0).ends([1.0] * 40)
    timed.ends([4.0] * 145).boot(0, "second").ends([1.0] * 200)
    assert timed.found == []
    timed = Timed(window_steps=16, warn_ratio=5.0, over_s=600.0).ends([1.0] * 40)
    timed.ends([4.0] * 145).boot(0, "second").ends([4.0] * 24)
    assert [severity for severity, _, _ in timed.found] == [HALT]


def test_what_lasts_over_a_restart_is_asked_of_eight_steps_since() -> None:
    timed = Timed(window_steps=16, warn_over_s=20.0).ends([1.0] * 4).ends([2.0] * 20)
    assert timed.boot(0, "second").ends([2.0] * 10).found == [(WARN, 8, "step16")]


def read_at(tick: int, step: int, mono: float) -> Beat:
    """A line of a program that is only read, as one tick brought it."""
    line = Heartbeat(
        ts=0.0, mono=mono, pid=1, rank=0, boot="boot", seq=1, step=step, msg="progress"
    )
    return Beat(
        line=line, arrival=Arrival.NEW, tick=Tick(n=tick, mono=mono, ts=0.0, interval_s=1.0)
    )


READ = Speed(rank=0, boot="boot", read_n=3, read_mono=50.0, read_step=10)


@pytest.mark.parametrize(
    ("own", "line", "timed"),
    [
        (READ, (4, 14, 58.0), (2.0, 4)),
        (READ, (4, 11, 50.5), (0.5, 1)),
        (READ, (3, 14, 58.0), (0.0, 0)),
        (READ, (4, 10, 58.0), (0.0, 0)),
        (READ, (4, 9, 58.0), (0.0, 0)),
        (READ, (4, 14, 50.0), (0.0, 0)),
        (Speed(rank=0, boot="boot"), (0, 14, 58.0), (0.0, 0)),
    ],
    ids=["steps", "one step", "same tick", "same step", "back", "no time", "first line"],
)
def test_lines_that_are_read_are_timed_from_block_to_block(
    own: Speed, line: tuple[int, int, float], timed: tuple[float, int]
) -> None:
    after, *found = _read(own, read_at(*line))
    assert tuple(found) == timed
    tick, step, mono = line
    taken = (tick, mono, step) if tick != own.read_n else (3, 50.0, 10)
    assert (after.read_n, after.read_mono, after.read_step) == taken


def turns(*, suspended: bool) -> tuple[World, Ticking]:
    """A run of 20 s a step, each of which takes half a minute longer from step 130 on.

    Args:
        suspended: whether its watcher stands still with it, as where jobs take turns on a node.
    """
    world, stops = run_of({}).steps(130, step_s=20.0), list[float]()
    for _ in range(200):
        world.open_step()
        stops.append(world.mono + 5.0)
        for rank in world.ranks:
            rank.spend(5.0)
            rank.mono += 30.0
            rank.spend(15.0)
        world.close_step()

    def ticks(end: float) -> Iterator[tuple[float, float]]:
        mono = T0
        while mono < end:
            ends = [at + 30.0 for at in stops if suspended and at < mono <= at + 30.0]
            late_s = max((at - mono for at in ends), default=0.0)
            yield mono + late_s, late_s
            mono += late_s + 1.0

    return world, ticks


@pytest.mark.parametrize("suspended", [True, False])
def test_the_time_in_which_a_run_was_suspended_with_its_watcher_is_no_steps(
    suspended: bool,
) -> None:
    world, ticking = turns(suspended=suspended)
    found = watch(world, ticking=ticking)
    assert {row.detector for row in found.halts} == (set() if suspended else {"slow"})
    assert ("slow" in {row.detector for row in found.findings}) is not suspended
