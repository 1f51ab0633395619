"""D20: no checkpoint that the watcher verified, long after one was due."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.plan import CheckpointCadence
from gonogo.contract.tick import Tick
from gonogo.watch import armed, not_observed, start
from gonogo.watch.detectors.checkpoint_overdue import CheckpointOverdue
from gonogo.watch.stream import RankStream
from gonogo.watch.view import Run, View
from tests.watch.detectors.host import checkpoint, host_order, tell
from tests.watch.standing import NOW, standing
from tests.watch.streams import EPOCH, T0, Watched, World, watch

BY_STEPS = {"every_steps": 20}
BY_TIME = {"every_s": 200.0}
COMPILED = {"engine": {"compile": True}}


def world_with(
    cadence: dict[str, Any], watch: dict[str, Any] | None = None, **fields: Any
) -> World:
    """A run whose watcher looks at checkpoints."""
    order = host_order(
        watch, checkpoint=CheckpointCadence(**cadence), steps=fields.pop("steps", 9_000), **fields
    )
    world = World(order, alive_every_s=5).boot()
    tell(world, checkpoints=[])
    return world


def overdue(seen: Watched) -> list[Finding]:
    return [f for f in seen.findings if f.detector == "checkpoint_overdue"]


def train(world: World, seconds: float, step_s: float = 10.0) -> World:
    return world.steps(round(seconds / step_s), step_s=step_s)


@pytest.mark.parametrize(
    ("cadence", "limit_s"),
    [
        (BY_STEPS, 900.0),
        (BY_TIME, 900.0),
        ({**BY_STEPS, "every_s": 50.0}, 675.0),
        ({"every_steps": 8_000, "every_s": 200.0}, 900.0),
    ],
    ids=["by steps", "by time", "time first", "steps never"],
)
def test_none_at_all_warns_and_then_halts(cadence: dict[str, Any], limit_s: float) -> None:
    seen = watch(train(world_with(cadence), 3 * limit_s), interval_s=2.0)
    warning, halt = overdue(seen)
    assert (warning.severity, halt.severity) == (Severity.WARN, Severity.HALT)
    assert warning.threshold == pytest.approx(limit_s, rel=0.02)
    assert halt.threshold == pytest.approx(2 * limit_s, rel=0.02)
    assert warning.value == pytest.approx(limit_s, rel=0.02)
    assert (halt.rank, halt.section) == (None, None)
    assert "no checkpoint at all has held" in halt.text


@pytest.mark.parametrize("cadence", [{"every_s": 60.0}, {"every_steps": 5}], ids=["s", "steps"])
def test_how_long_the_first_step_takes_is_no_delay(cadence: dict[str, Any]) -> None:
    """It may compile for half an hour: twice 1.5 minutes and ten is less."""
    world = world_with(cadence, train={"engine": {"compile": True}}).steps(1, step_s=1700.0)
    seen = watch(train(world, 600.0), interval_s=2.0)
    assert (overdue(seen), seen.halts) == ([], [])
    assert len(overdue(watch(train(world, 1200.0), interval_s=2.0))) == 2


@pytest.mark.parametrize(
    "every_s", [*(pytest.param(each, marks=pytest.mark.long) for each in (60.0, 1400.0)), 1600.0]
)
def test_within_a_step_no_checkpoint_can_be_saved(every_s: float) -> None:
    """Twice 1.5 minutes and ten are over before a step of 25 minutes is."""
    world, every = world_with({"every_s": every_s}), 1 if every_s < 1500.0 else 2
    world.steps(1, step_s=1500.0)
    for step in range(1 + every, 8, every):
        world.steps(every, step_s=1500.0)
        world.pause("checkpoint", 30.0, "checkpoint")
        tell(world, checkpoints=[checkpoint(step)])
    seen = watch(world, interval_s=2.0)
    assert (overdue(seen), seen.halts) == ([], [])
    warning, halt = overdue(watch(world.steps(7, step_s=1500.0), interval_s=2.0))
    assert warning.threshold == pytest.approx(1.5 * (every * 1500.0 + 30.0) + 600.0, rel=0.02)
    assert halt.severity is Severity.HALT


@pytest.mark.parametrize("longest_s", [100.0, 1200.0])
def test_one_that_is_due_may_wait_for_the_longest_of_the_last_steps(longest_s: float) -> None:
    waited = Waited({"every_s": 100.0})
    for number, step_s in enumerate((3.0, longest_s, 3.0, 3.0)):
        waited.rank.pace.end(number, waited.rank.pace.last_mono + step_s)
    limit_s = 1.5 * max(102.0, longest_s) + 10.0
    assert waited.at(limit_s) == []
    assert limits(waited.at(limit_s + 0.25)) == [(Severity.WARN, limit_s)]


@pytest.mark.parametrize("cadence", [{"every_steps": 20}, {"every_s": 200.0}], ids=["steps", "s"])
def test_what_it_takes_to_save_one_is_expected(cadence: dict[str, Any]) -> None:
    """The watcher reads what was saved after the section; it was overdue within that minute."""
    world = world_with(cadence, {"section_deadline": {"checkpoint": {"halt_s": 5_000}}})
    for count in range(1, 4):
        train(world, 200).pause("checkpoint", 2_500.0, "checkpoint")
        train(world, 60)
        tell(world, checkpoints=[checkpoint(26 * count - 6)])
    assert watch(world, interval_s=2.0).findings == []


def test_what_a_save_beside_later_steps_takes_is_expected_too() -> None:
    waited = Waited({"every_s": 100.0})
    waited.rank.saved_s = (40.0, 50.0, 400.0)
    waited.rank.section_times = (("eval", 700.0), ("checkpoint", 20.0))
    assert limits(waited.at(235.25)) == [(Severity.WARN, 235.0)]


@pytest.mark.parametrize("read_s", [1_500.0, 2_400.0], ids=["late", "later than the next"])
def test_how_long_the_last_one_was_read_shortens_nothing(read_s: float) -> None:
    """Large ones are read for longer than they are saved: the next was due at once, or nearly."""
    world, read_mono = world_with(BY_STEPS), 0.0
    for count in range(1, 5):
        world.steps(20, step_s=90.0).pause("checkpoint", 60.0, "checkpoint")
        read_mono = max(read_mono, world.mono) + read_s
        told = {"checkpoints": [checkpoint(20 * count)]}
        world.probes.append((read_mono, {"observations": told}))
    texts = [finding.text for finding in overdue(watch(world, interval_s=5.0))]
    assert all(text.startswith("no checkpoint at all") for text in texts)
    assert len(texts) == (read_s > 2_000.0)
    assert len(watch(world.steps(120, step_s=90.0), interval_s=5.0).halts) == 1


def test_a_run_without_a_cadence_has_no_deadline() -> None:
    seen = watch(train(world_with({}), 4_000), interval_s=2.0)
    assert seen.findings == []
    assert not armed(seen.state)["checkpoint_overdue"]


def test_a_watcher_that_does_not_look_finds_nothing_and_it_is_said() -> None:
    order = host_order(checkpoint=CheckpointCadence(**BY_STEPS), steps=9_000)
    seen = watch(train(World(order, alive_every_s=5).boot(), 4_000), interval_s=2.0)
    assert seen.findings == []
    assert "checkpoint_overdue: no watcher looked at the checkpoints" in not_observed(seen.state)


def test_checkpoints_that_hold_keep_it_silent() -> None:
    world = world_with(BY_STEPS)
    for count in range(1, 12):
        train(world, 200)
        tell(world, checkpoints=[checkpoint(20 * count)])
    assert watch(train(world, 100), interval_s=2.0).findings == []


def test_the_clock_begins_anew_with_the_last_one_that_held() -> None:
    world = train(world_with(BY_STEPS), 800)
    tell(world, checkpoints=[checkpoint(80)])
    held_at = world.mono
    seen = watch(train(world, 2_000), interval_s=2.0)
    warning, halt = overdue(seen)
    assert warning.at - 1_760_000_000.0 + T0 - held_at == pytest.approx(900, rel=0.02)
    assert "since that of step 80" in halt.text


def test_the_same_checkpoint_verified_again_by_a_new_watcher_is_not_a_new_one() -> None:
    world = train(world_with(BY_STEPS), 200)
    tell(world, checkpoints=[checkpoint(20)])
    train(world, 600)
    tell(world, checkpoints=[checkpoint(20)])
    seen = watch(train(world, 500), interval_s=2.0)
    assert [f.severity for f in overdue(seen)] == [Severity.WARN]


def test_a_truncated_checkpoint_warns_at_once_and_counts_for_nothing() -> None:
    world = train(world_with(BY_STEPS), 200)
    tell(world, checkpoints=[checkpoint(20, text="model.pt has 10 of 20 bytes")])
    seen = watch(train(world, 2_000), interval_s=2.0)
    refused, warning, halt = overdue(seen)
    assert (refused.severity, refused.step) == (Severity.WARN, 20)
    assert "model.pt has 10 of 20 bytes" in refused.text
    assert (warning.severity, halt.severity) == (Severity.WARN, Severity.HALT)
    assert "model.pt has 10 of 20 bytes" in halt.text


def test_what_is_deleted_before_it_is_read_is_unknown_and_halts_nothing() -> None:
    world = world_with(BY_STEPS)
    for count in range(1, 20):
        train(world, 200)
        tell(world, checkpoints=[{**checkpoint(20 * count), "verified": False, "gone": True}])
    seen = watch(world, interval_s=2.0)
    assert seen.findings == []
    assert [f.severity for f in overdue(watch(train(world, 2_000), interval_s=2.0))] == [
        Severity.WARN,
        Severity.HALT,
    ], "once none is claimed any more the time runs on"


def test_one_that_could_not_be_looked_at_is_told_once_and_halts_nothing() -> None:
    world = world_with(BY_STEPS)
    for _ in range(19):
        train(world, 200)
        tell(world, checkpoints=[{**checkpoint(20, text="TypeError: no"), "gone": True}])
    told = overdue(watch(world, interval_s=2.0))
    assert [f.severity for f in told] == [Severity.WARN]
    assert "could not be looked at" in told[0].text
    assert "TypeError: no" in told[0].text


@pytest.mark.parametrize("steps", [0, 20], ids=["before the first step", "in mid-run"])
def test_the_steps_of_a_cadence_begin_anew_with_one_that_is_gone(steps: int) -> None:
    """What is due is due by the time that steps take, not by how soon it was told as gone."""
    world = world_with(BY_STEPS, resume_step=40).steps(steps, step_s=100.0)
    train(world.pause(None, 20.0), 10.0 * bool(steps))
    tell(world, checkpoints=[{**checkpoint(40 + steps), "verified": False, "gone": True}])
    world.pause(None, 20.0).steps(25, step_s=100.0)
    assert overdue(watch(world, interval_s=5.0)) == []


def test_a_truncated_checkpoint_is_told_without_a_cadence_too() -> None:
    world = train(world_with({}), 20)
    tell(world, checkpoints=[checkpoint(2, text="torn")])
    tell_again = train(world, 20)
    tell(tell_again, checkpoints=[checkpoint(2, text="torn")])
    assert len(overdue(watch(train(world, 20)))) == 1


def test_evaluations_between_checkpoints_are_no_delay() -> None:
    world = world_with(BY_STEPS)
    for count in range(1, 4):
        train(world, 100).pause("eval", 1_200.0, "eval")
        train(world, 100)
        tell(world, checkpoints=[checkpoint(20 * count)])
    assert watch(world, interval_s=2.0).findings == []


def test_a_long_checkpoint_that_is_being_written_belongs_to_its_section() -> None:
    deadline = {"section_deadline": {"checkpoint": {"halt_s": 5_000}}}
    world = train(world_with(BY_TIME, deadline), 210)
    world.pause("checkpoint", 2_500.0, "checkpoint")
    tell(world, checkpoints=[checkpoint(21)])
    assert watch(train(world, 20), interval_s=2.0).findings == []


def test_a_resumed_run_counts_from_its_checkpoint() -> None:
    world = train(world_with(BY_STEPS, resume_step=1_000), 190)
    tell(world, checkpoints=[checkpoint(1_000)])
    seen = watch(train(world, 1_000), interval_s=2.0)
    assert [f.severity for f in overdue(seen)] == [Severity.WARN]


def test_time_that_the_watcher_was_away_does_not_count() -> None:
    world = train(world_with(BY_TIME), 5_000)

    def ticking(end: float) -> list[tuple[float, float]]:
        early = [(T0 + second, 0.0) for second in range(300)]
        return [*early, (T0 + 4_300.0, 4_000.0), *((T0 + 4_300.0 + s, 0.0) for s in range(1, 300))]

    seen = watch(world, ticking=ticking)
    assert overdue(seen) == []


def test_a_run_that_ended_its_last_step_is_left_alone() -> None:
    world = train(world_with(BY_STEPS, steps=30), 300)
    world.pause("eval", 1_700.0)
    assert overdue(watch(world, interval_s=2.0)) == []


def test_the_plan_sets_the_limits() -> None:
    settings = {"checkpoint_overdue": {"overdue_x": 1.1, "grace_s": 10, "halt_x": 1.5}}
    seen = watch(train(world_with(BY_TIME, settings), 600), interval_s=2.0)
    warning, halt = overdue(seen)
    assert (warning.threshold, halt.threshold) == (
        pytest.approx(230, abs=0.3),
        pytest.approx(345, abs=0.4),
    )
    assert (warning.source, halt.source) == ("plan", "plan")


@given(
    every=st.integers(5, 60),
    late=st.lists(st.integers(0, 200), min_size=5, max_size=5),
    step_s=st.sampled_from([1.0, 5.0, 20.0]),
)
@settings(max_examples=8, deadline=None)
def test_checkpoints_that_hold_within_the_grace_are_never_overdue(
    every: int, late: list[int], step_s: float
) -> None:
    world = world_with({"every_steps": every})
    for count, late_s in enumerate(late, start=1):
        train(world, every * step_s, step_s).pause("checkpoint", float(late_s), "checkpoint")
        tell(world, checkpoints=[checkpoint(every * count)])
    assert overdue(watch(world, interval_s=2.0)) == []


class Waited:
    """One rank that ended its first step at `NOW`, and ticks at exactly so many seconds later."""

    def __init__(self, cadence: dict[str, Any], *, looks: bool = True, **settings: float) -> None:
        order = host_order(
            {"checkpoint_overdue": {"grace_s": 10.0, **settings}},
            checkpoint=CheckpointCadence(**cadence),
            steps=1000,
            world_size=1,
        )
        run = Run(order=order)
        told: dict[str, Any] = {"started_mono": NOW - 5.0, "first_s": 5.0, "completed_steps": 1}
        self.rank: RankStream = standing("forward", for_s=0.0, steps=0, **told)
        self.view = View(run=run, streams={0: self.rank})
        self.rule = CheckpointOverdue(run)
        assert self.rule.ticks, "the fold would show it none"
        self.own = self.rule.begin()
        self._looks = looks

    def at(
        self,
        seconds: float,
        *,
        late_s: float = 0.0,
        saved: int | None = None,
        gone: int | None = None,
    ) -> list[Finding]:
        """Return what a tick finds; `saved`, `gone`: steps of what it verifies, and of one lost."""
        rows = [] if saved is None else [checkpoint(saved)]
        if gone is not None:
            rows.append({**checkpoint(gone), "verified": False, "gone": True})
        observed: dict[str, Any] = {"checkpoints": rows} if self._looks else {}
        tick = Tick(n=1, mono=NOW + seconds, ts=EPOCH, late_s=late_s, observations=observed)
        self.own, found = self.rule.observe_tick(self.own, tick, self.view)
        return found

    def again(self, seconds: float, *, step: int = 0, **told: Any) -> None:
        """The rank has started again in place, and ended the step after `step` since."""
        known = {"boot": "again", "completed_steps": 1, "completed": step + 1, "step": step + 1}
        for name, value in {**known, "started_mono": NOW + seconds, **told}.items():
            setattr(self.rank, name, value)


def limits(found: list[Finding]) -> list[tuple[Severity, float | None]]:
    return [(finding.severity, finding.threshold) for finding in found]


def test_each_limit_has_to_be_passed_and_is_told_once() -> None:
    waited = Waited({"every_s": 100.0})
    assert waited.at(160.0) == []
    assert limits(waited.at(160.25)) == [(Severity.WARN, 160.0)]
    assert waited.at(320.0) == []
    assert limits(waited.at(320.25)) == [(Severity.HALT, 320.0)]
    assert waited.at(320.5) == []


def test_a_checkpoint_is_due_at_the_step_of_its_cadence() -> None:
    waited = Waited({"every_steps": 20})
    waited.rank.completed = 19
    assert waited.at(50.0) == []
    waited.rank.completed = 20
    assert waited.at(100.0) == []
    waited.rank.completed = 21
    assert waited.at(160.0) == []
    assert limits(waited.at(160.25)) == [(Severity.WARN, 160.0)]


@pytest.mark.parametrize(("name", "first"), [("overdue_x", "warn"), ("halt_x", "halt")])
def test_each_limit_tells_where_it_came_from(name: str, first: str) -> None:
    found = Waited({"every_s": 100.0}, **{name: 2.0}).at(1e4)
    assert {row.severity.value for row in found if row.source is Source.PLAN} == {first}


def test_evaluations_lengthen_the_limit_also_while_one_lasts() -> None:
    waited = Waited({"every_s": 100.0})
    waited.at(0.0)
    waited.rank.evaluated_s = 50.0
    assert waited.at(210.0) == []
    assert limits(waited.at(210.25)) == [(Severity.WARN, 210.0)]
    assert waited.at(370.0) == []
    assert limits(waited.at(370.25)) == [(Severity.HALT, 370.0)], "counted once, not `halt_x` times"
    waited = Waited({"every_s": 100.0})
    waited.at(0.0)
    waited.rank.section, waited.rank.section_mono = "eval", NOW + 110.0
    assert waited.at(1_000.0) == []


def test_what_was_evaluated_before_the_last_checkpoint_lengthens_nothing() -> None:
    """Thirty evaluations of five minutes would add two hours and a half to each limit."""
    world = world_with({"every_s": 600.0})
    for count in range(1, 9):
        train(world, 200).pause("eval", 300.0, "eval")
        train(world, 200)
        tell(world, checkpoints=[checkpoint(40 * count)])
    train(world, 200).pause("eval", 300.0, "eval")
    warning, halt = overdue(watch(train(world, 4_500), interval_s=2.0))
    assert (warning.severity, halt.severity) == (Severity.WARN, Severity.HALT)
    assert warning.threshold == pytest.approx(1.5 * 600.0 + 600.0 + 300.0, rel=0.01)
    assert halt.threshold == pytest.approx(2.0 * (1.5 * 600.0 + 600.0) + 300.0, rel=0.01)


def test_nothing_is_overdue_on_a_late_tick_while_one_is_written_or_after_the_end() -> None:
    for told in ({}, {"section": "checkpoint"}, {"completed": 1000}, {"done": True}):
        waited = Waited({"every_s": 100.0})
        waited.at(0.0)
        for name, value in told.items():
            setattr(waited.rank, name, value)
        assert bool(waited.at(161.0)) is not bool(told)
    waited = Waited({"every_s": 100.0})
    waited.at(0.0)
    assert waited.at(161.0, late_s=0.8) == []


@pytest.mark.parametrize("cadence", [{"every_steps": 20}, {"every_s": 100.0}], ids=["steps", "s"])
def test_one_that_is_verified_on_waking_counts_from_then(cadence: dict[str, Any]) -> None:
    """A watcher was stopped for half an hour; the first that it sees then is a checkpoint."""
    waited = Waited(cadence)
    waited.at(0.0)
    waited.rank.completed = 20
    assert waited.at(1800.0, late_s=1790.0, saved=20) == []
    waited.rank.completed = 40
    assert waited.at(1900.0) == []
    assert waited.at(1960.0) == []
    assert limits(waited.at(1960.25)) == [(Severity.WARN, 160.0)]


@pytest.mark.parametrize(
    ("cadence", "looks", "over", "is_armed", "says"),
    [
        ({"every_s": 100.0}, True, False, True, False),
        ({"every_s": 100.0}, True, True, False, False),
        ({"every_s": 100.0}, False, False, False, True),
        ({"every_steps": 5}, False, False, False, True),
        ({}, True, False, False, False),
        ({}, False, False, False, False),
    ],
)
def test_it_is_armed_by_a_cadence_and_a_watcher_that_looks_until_the_end(
    cadence: dict[str, Any], looks: bool, over: bool, is_armed: bool, says: bool
) -> None:
    waited = Waited(cadence, looks=looks)
    waited.rank.done = over
    waited.at(0.0)
    assert waited.rule.armed(waited.own, waited.view) is is_armed
    assert bool(waited.rule.missing(waited.own, waited.view)) is says
    assert looks or waited.at(1e6) == []


@pytest.mark.parametrize(
    ("cadence", "saved", "ended", "after"),
    [
        ({"every_steps": 5}, None, 4, None),
        ({"every_steps": 5}, None, 5, 0),
        ({"every_steps": 5}, 5, 9, None),
        ({"every_steps": 5}, 5, 10, 5),
        ({"every_s": 100.0}, None, 99, None),
        ({}, None, 99, None),
    ],
)
def test_steps_that_no_checkpoint_holds_though_one_was_due_are_told(
    cadence: dict[str, Any], saved: int | None, ended: int, after: int | None
) -> None:
    waited = Waited(cadence)
    waited.at(0.0, saved=saved)
    waited.rank.completed = ended
    text = (
        f"no checkpoint after step {after} was seen to hold, though {ended} steps ended and one"
        " was due every 5"
    )
    told = waited.rule.missing(waited.own, waited.view)
    assert told == (None if after is None else text)


def test_a_rank_that_has_ended_no_step_yet_owes_no_checkpoint() -> None:
    waited = Waited({"every_steps": 5})
    waited.at(0.0)
    waited.rank.completed = 5
    assert waited.rule.missing(waited.own, waited.view) is not None
    waited.view.streams[1] = standing("forward", for_s=0.0, steps=0)
    assert waited.rule.missing(waited.own, waited.view) is None


def test_another_training_after_one_that_saved_nothing_has_the_time_since_it_began() -> None:
    waited = Waited({"every_s": 100.0})
    waited.at(0.0)
    waited.again(100.0, another=True)
    assert waited.at(150.0) == waited.at(260.0) == []
    assert limits(waited.at(260.25)) == [(Severity.WARN, 160.0)]


def test_a_checkpoint_that_was_verified_before_any_line_begins_the_clock() -> None:
    waited = Waited({"every_s": 100.0})
    waited.view.streams.clear()
    tick = Tick(n=1, mono=NOW, ts=EPOCH, observations={"checkpoints": [checkpoint(5)]})
    waited.own, found = waited.rule.observe_tick(waited.own, tick, waited.view)
    assert found == waited.at(160.0) == []
    (warning,) = waited.at(160.25)
    assert (warning.threshold, warning.step) == (160.0, 0)


def test_without_a_watcher_it_is_said_to_see_nothing() -> None:
    (processes, *_) = not_observed(start(host_order(), watched=False))
    assert "checkpoint_overdue" in processes


def restart(world: World, step: int, boot: str = "again", ranks: tuple[int, ...] = (0, 1)) -> World:
    """These ranks start again in place, one after another, and go on from a step."""
    for rank in (world.ranks[number] for number in ranks):
        rank.spend(5.0)
        rank.boot, rank.seq, rank.section, rank.section_seq = boot, 0, "boot", 0
        rank.in_step, rank.step = False, step
        rank.say("boot", **world.order.identity.model_dump(mode="json", exclude_none=True))
        rank.enter(None)
        world.meet()
    return world


def saving(world: World, *steps: int) -> World:
    """Trains on, each time for 200 s, after which a checkpoint holds; 0: none is saved."""
    for step in steps:
        train(world, 200)
        if step:
            tell(world, checkpoints=[checkpoint(step)])
    return world


def trained(cadence: dict[str, Any], *, done: bool = False, **fields: Any) -> World:
    """A run that has saved its checkpoints up to that of step 140."""
    world = saving(world_with(cadence, **fields), *range(20, 141, 20))
    for rank in world.ranks:
        if done:
            rank.say("done")
    return world


@pytest.mark.parametrize("done", [True, False], ids=["the next fold", "from scratch"])
@pytest.mark.parametrize("cadence", [BY_STEPS, BY_TIME], ids=["by steps", "by time"])
def test_a_training_that_begins_again_has_checkpoints_of_its_own(
    cadence: dict[str, Any], done: bool
) -> None:
    world = restart(trained(cadence, done=done), 0)
    saving(world, *range(20, 121, 20))
    assert overdue(watch(world, interval_s=2.0)) == []
    began = world.mono
    warning, halt = overdue(watch(train(world, 2_000), interval_s=2.0))
    assert warning.at - EPOCH + T0 - began == pytest.approx(900, abs=20)
    assert "since that of step 120" in halt.text


@pytest.mark.parametrize("done", [True, False], ids=["the next fold", "from scratch"])
@pytest.mark.parametrize("cadence", [BY_STEPS, BY_TIME], ids=["by steps", "by time"])
def test_a_training_that_begins_again_and_saves_nothing_is_overdue(
    cadence: dict[str, Any], done: bool
) -> None:
    world = restart(trained(cadence, done=done), 0)
    began = world.mono
    warning, halt = overdue(watch(train(world, 2_000), interval_s=2.0))
    assert (warning.severity, halt.severity) == (Severity.WARN, Severity.HALT)
    assert warning.at - EPOCH + T0 - began == pytest.approx(900, abs=20)
    assert halt.at - EPOCH + T0 - began == pytest.approx(1_800, abs=20)
    assert "since all ranks began again" in halt.text


def test_each_training_is_told_of_as_its_own() -> None:
    world = trained(BY_TIME)
    bad = checkpoint(20, text="torn")
    for boot in ("second", "third"):
        restart(world, 0, boot)
        tell(world.steps(2, step_s=10.0), checkpoints=[bad])
        train(world, 1_000)
        tell(world, checkpoints=[checkpoint(100)])
    told = [finding.text for finding in overdue(watch(world, interval_s=2.0))]
    assert len(told) == 4
    assert sum(text.startswith("checkpoints/step_000020 claims") for text in told) == 2


def test_a_restart_that_resumes_from_the_last_checkpoint_begins_no_new_time() -> None:
    """One that dies again and again before it saves would never be overdue."""
    world = trained(BY_TIME)
    for attempt in range(20):
        restart(train(world, 150), 140, f"again{attempt}")
    assert [f.severity for f in overdue(watch(world, interval_s=2.0))] == [
        Severity.WARN,
        Severity.HALT,
    ]


@pytest.mark.parametrize("cadence", [BY_STEPS, BY_TIME], ids=["by steps", "by time"])
@pytest.mark.parametrize("told", [140, 0], ids=["told at once", "told with the first step"])
def test_a_restart_that_resumes_and_saves_on_is_left_alone(
    cadence: dict[str, Any], told: int
) -> None:
    world = restart(train(trained(cadence), 100), told)
    for rank in world.ranks:
        rank.step = 140
    saving(world, *range(160, 261, 20))
    assert overdue(watch(world, interval_s=2.0)) == []
    began = world.mono
    warning, _ = overdue(watch(train(world, 2_000), interval_s=2.0))
    assert warning.at - EPOCH + T0 - began == pytest.approx(900, abs=20)


@pytest.mark.parametrize("step", [0, 20, 40], ids=["from scratch", "below the last", "the last"])
@pytest.mark.parametrize("cadence", [{"every_steps": 5}, {"every_s": 60.0}], ids=["steps", "s"])
def test_how_long_a_start_in_place_takes_is_no_delay(cadence: dict[str, Any], step: int) -> None:
    """Its first step may compile for half an hour, as that of the first start may."""
    world = saving(world_with(cadence, train=COMPILED), 20, 40)
    world = restart(train(world, 60), step).steps(1, step_s=1_700.0)
    assert watch(saving(world, step + 20, step + 40), interval_s=2.0).halted() == []


@pytest.mark.parametrize("cadence", [{"every_steps": 5}, {"every_s": 60.0}], ids=["steps", "s"])
def test_nor_is_that_of_one_rank_for_which_the_others_wait(cadence: dict[str, Any]) -> None:
    world = train(saving(world_with(cadence, train=COMPILED), 20, 40), 60)
    restart(world, 46, ranks=(1,)).open_step()
    world.compute(step_s=[10.0, 1_700.0])
    world.close_step()
    assert watch(saving(world, 66, 86), interval_s=2.0).halted() == []


def test_one_that_compiles_again_and_again_and_saves_nothing_is_overdue() -> None:
    world = saving(world_with({"every_s": 60.0}, train=COMPILED), 20)
    since = world.mono
    for attempt in range(10):
        restart(train(world, 400), 20, f"again{attempt}").steps(1, step_s=1_700.0)
    told = overdue(watch(world, interval_s=2.0))
    assert [finding.severity for finding in told] == [Severity.WARN, Severity.HALT]
    for finding, starts, limit_s in zip(told, (1, 3), (690.0, 1_380.0), strict=True):
        passed_s = finding.at - EPOCH + T0 - since
        assert passed_s == pytest.approx(limit_s + starts * 1_700.0, abs=20)


def test_a_start_in_place_is_no_delay_for_as_long_as_it_may_take() -> None:
    """The boot 300 s, the first step 900 s: who goes on starting is overdue all the same."""
    waited = Waited({"every_s": 100.0})
    assert waited.at(100.0) == []
    waited.again(0.0, first_mono=NOW + 100.0, started_mono=None, completed_steps=0, top_step=1)
    assert waited.at(1_360.0) == []
    assert limits(waited.at(1_360.25)) == [(Severity.WARN, 1_360.0)]
    waited.again(0.0, first_mono=NOW + 100.0, top_step=1)
    waited.rule.observe_tick(waited.own, Tick(n=1, mono=NOW + 1_500.0, ts=EPOCH), waited.view)
    assert waited.at(1_520.0) == []
    assert limits(waited.at(1_520.25)) == [(Severity.HALT, 1_520.0)]


@pytest.mark.parametrize(("ahead", "waits"), [(0, True), (1, True), (2, False)])
def test_a_rank_without_which_another_went_on_by_a_step_more_is_no_start(
    ahead: int, waits: bool
) -> None:
    """It died in a step that the other one may have ended; who goes further needs it no more."""
    waited = Waited({"every_s": 100.0})
    assert waited.at(100.0) == []
    told: dict[str, Any] = {"completed_steps": 0, "completed": 0, "step": 0, "top_step": 30}
    waited.again(0.0, first_mono=NOW + 100.0, **told | {"started_mono": None})
    other = standing("forward", for_s=0.0, steps=0, started_mono=NOW - 5.0, first_s=5.0, rank=1)
    other.completed = other.completed_steps = 30 + ahead
    waited.view.streams[1] = other
    assert (waited.at(160.25) == []) is waits


def test_a_checkpoint_that_is_verified_during_a_start_counts_from_then() -> None:
    waited = Waited({"every_s": 100.0})
    assert waited.at(50.0) == []
    waited.again(0.0, first_mono=NOW + 100.0, started_mono=None, completed_steps=0, top_step=30)
    waited.rank.step = 30
    assert waited.at(110.0) == []
    assert waited.at(200.0, saved=20) == []
    waited.again(0.0, first_mono=NOW + 100.0, top_step=30, completed=31)
    assert waited.at(300.0) == []
    assert waited.at(460.0) == []
    assert limits(waited.at(460.25)) == [(Severity.WARN, 260.0)]


def test_one_that_starts_from_scratch_again_and_again_is_overdue() -> None:
    world = trained(BY_TIME)
    for attempt in range(14):
        train(restart(world, 0, f"again{attempt}"), 150)
    assert [f.severity for f in overdue(watch(world, interval_s=2.0))] == [
        Severity.WARN,
        Severity.HALT,
    ]


def test_trainings_that_are_over_before_a_checkpoint_is_due_owe_none() -> None:
    """Twenty short trials in a row, each of which says that it is done."""
    world = world_with(BY_TIME)
    for trial in range(20):
        train(world, 150)
        for rank in world.ranks:
            rank.say("done")
        restart(world, 0, f"trial{trial}")
    assert overdue(watch(train(world, 150), interval_s=2.0)) == []
    _, halt = overdue(watch(train(world, 2_000), interval_s=2.0))
    assert "since all ranks began again" in halt.text


def test_one_that_goes_on_after_it_was_done_and_saves_nothing_is_overdue() -> None:
    world = world_with(BY_TIME)
    for part in range(20):
        train(world, 150)
        for rank in world.ranks:
            rank.say("done")
        step = world.ranks[0].step
        for rank in restart(world, 0, f"part{part}").ranks:
            rank.step = step
    assert [f.severity for f in overdue(watch(world, interval_s=2.0))] == [
        Severity.WARN,
        Severity.HALT,
    ]


def test_a_restart_below_the_checkpoint_that_the_run_was_begun_with() -> None:
    world = restart(saving(world_with(BY_TIME, resume_step=1_000), 1_020, 1_040), 0)
    saving(world, *range(20, 121, 20))
    assert overdue(watch(world, interval_s=2.0)) == []


def test_the_last_checkpoint_of_the_training_before_may_be_verified_late() -> None:
    world = restart(trained(BY_TIME, done=True), 0)
    train(world, 50)
    tell(world, checkpoints=[checkpoint(160)])
    train(world, 150)
    tell(world, checkpoints=[checkpoint(20)])
    saving(world, *range(40, 121, 20))
    assert overdue(watch(world, interval_s=2.0)) == []


@pytest.mark.parametrize("cadence", [BY_STEPS, BY_TIME], ids=["by steps", "by time"])
def test_a_boot_of_one_rank_alone_changes_nothing(cadence: dict[str, Any]) -> None:
    """A helper that a rank starts, with its environment, may begin a boot of it."""
    world = trained(cadence)
    stray = world.ranks[1]
    restart(world, 0, "stray", ranks=(1,))
    world.ranks.remove(stray)
    saving(world, *range(160, 261, 20))
    world.ranks.append(stray)
    assert overdue(watch(world, interval_s=2.0, stop_at_halt=False)) == []
    world.ranks.remove(stray)
    train(world, 2_000)
    world.ranks.append(stray)
    found = overdue(watch(world, interval_s=2.0, stop_at_halt=False))
    assert [finding.severity for finding in found] == [Severity.WARN, Severity.HALT]
    assert "since that of step 260" in found[1].text


def test_one_rank_that_begins_late_is_waited_for() -> None:
    world = trained(BY_TIME)
    restart(world, 0, ranks=(0,))
    train(restart(world.pause(None, 100.0), 0, ranks=(1,)), 1)
    saving(world, *range(20, 121, 20))
    assert overdue(watch(world, interval_s=2.0)) == []


def test_the_steps_that_were_told_as_gone_are_counted_anew_too() -> None:
    world = world_with(BY_STEPS)
    for count in range(1, 11):
        train(world, 200)
        tell(world, checkpoints=[{**checkpoint(20 * count), "verified": False, "gone": True}])
    found = overdue(watch(train(restart(world, 0), 2_000), interval_s=2.0))
    assert [finding.severity for finding in found] == [Severity.WARN, Severity.HALT]


@pytest.mark.parametrize(
    "told",
    [{"top_step": 1}, {"idle_boots": 1}, {"another": True}],
    ids=lambda told: next(iter(told)),
)
def test_who_begins_again_has_the_time_since_its_first_step_began(told: dict[str, Any]) -> None:
    waited = Waited({"every_s": 100.0})
    waited.at(0.0, saved=20)
    waited.again(100.0, **told)
    assert waited.at(150.0) == waited.at(260.0) == []
    (warning,) = waited.at(260.25)
    assert (warning.value, warning.threshold) == (160.25, 160.0)
    assert warning.key == "run_1/1/checkpoint_overdue/warn/again1/step0"
    assert "since all ranks began again" in warning.text


def test_who_goes_on_from_the_last_one_that_held_goes_on_from_that() -> None:
    """A later one was deleted before it was read, so that steps count from there."""
    waited = Waited({"every_s": 100.0})
    waited.at(0.0, saved=20)
    waited.rank.completed = 45
    waited.at(50.0, gone=40)
    waited.again(100.0, step=20, top_step=45)
    (warning,) = waited.at(300.0)
    assert "since that of step 20" in warning.text


@pytest.mark.parametrize(
    ("saved", "last"), [(30, "since that of step 30"), (31, "since all ranks began again")]
)
def test_one_beyond_all_that_ranks_have_told_since_counts_for_the_time_alone(
    saved: int, last: str
) -> None:
    waited = Waited({"every_s": 100.0})
    waited.at(0.0, saved=20)
    waited.again(100.0, top_step=20)
    waited.at(110.0)
    waited.rank.step = 30
    assert waited.at(200.0, saved=saved) == waited.at(360.0) == []
    found = waited.at(520.25)
    assert limits(found) == [(Severity.WARN, 160.0), (Severity.HALT, 320.0)]
    assert all(last in row.text for row in found)


TERABYTES = int(4.8e12)
"""Of a model of 405 B parameters: hours, at the 500 MB/s at which the watcher reads at most."""


def told_as_read(world: World, step: int, reads_bytes: int = TERABYTES) -> None:
    path = checkpoint(step)["path"]
    tell(world, checkpoints=[{"path": path, "verified": False, "reads_bytes": reads_bytes}])


def test_what_it_takes_to_read_a_large_one_is_no_delay() -> None:
    """Saved every half hour, and read for 160 minutes; twice 1.5 times that and ten are 110."""
    world = train(world_with({"every_s": 1800.0}), 1800.0, 60.0)
    for step in (30, 190):
        told_as_read(world, step)
        train(world, 9600.0, 60.0)
        tell(world, checkpoints=[checkpoint(step)])
    seen = watch(world, interval_s=5.0)
    assert (overdue(seen), seen.halts) == ([], [])


@pytest.mark.parametrize("after", [{"text": "is damaged"}, None], ids=["damaged", "ever read"])
def test_one_that_is_read_lengthens_a_limit_no_more_than_that_takes(
    after: dict[str, Any] | None,
) -> None:
    """50 GB at 50 MB/s are a thousand seconds; a reader that hangs excuses no trainer for ever."""
    world = train(world_with(BY_TIME), 200.0)
    told_as_read(world, 20, int(50e9))
    train(world, 100.0)
    if after is not None:
        tell(world, checkpoints=[checkpoint(20, **after)])
    seen = watch(train(world, 3000.0), interval_s=2.0)
    halt = next(row for row in overdue(seen) if row.severity is Severity.HALT)
    assert halt.threshold == pytest.approx(1800.0 + (0.0 if after else 1000.0), rel=0.02)


@pytest.mark.parametrize("suspended_s", [30.0, 36_000.0])
@pytest.mark.parametrize("every_s", [60.0, 400.0])
def test_an_evaluation_that_is_suspended_is_no_delay_of_what_is_saved_after_it(
    every_s: float, suspended_s: float
) -> None:
    """It has gone on for 27 minutes by then: twice 1.5 minutes and ten is less."""
    world = world_with({"every_s": every_s})
    for step in (6, 12, 18):
        train(world, 60.0)
        tell(world, checkpoints=[checkpoint(step)])
    for rank in world.ranks:
        rank.enter("eval")
        rank.spend(1_620.0)
    world.suspend(suspended_s)
    for rank in world.ranks:
        rank.spend(120.0)
        rank.enter(None)
    train(world, 60.0)
    seen = watch(world, interval_s=2.0)
    assert (overdue(seen), seen.halts) == ([], [])
    passed_s = 1.5 * every_s + 600.0
    warning, halt = overdue(watch(train(world, 4 * passed_s), interval_s=2.0))
    assert (warning.severity, halt.severity) == (Severity.WARN, Severity.HALT)
    assert warning.threshold == pytest.approx(passed_s + 1_740.0, rel=0.05)
