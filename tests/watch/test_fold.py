"""The fold: its laws, on generated streams."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.outcome import Detector
from gonogo.contract.records import Tick
from gonogo.watch.fold import dump_state, fold, identity_ok, look, near, start
from gonogo.watch.registry import detector_names
from tests.watch.streams import DEMO, EPOCH, T0, Said, World, every, order_of, watch


def healthy(seed: int, *, world_size: int = 2, steps: int = 30) -> World:
    """A healthy run with all that healthy runs do: jitter, pauses, checkpoints, evaluations."""
    dice = random.Random(seed)
    step_s = dice.uniform(0.05, 1.2)
    sigma = dice.choice([0.02, 0.1, 0.25])
    world = World(order_of(steps=steps, world_size=world_size))
    world.boot(boot_s=dice.uniform(0.5, 20), load_s=dice.uniform(0.1, 4))
    paused = [-steps] * 2  # three slow steps of five would be a slow run, rightly found
    for step in range(1, steps + 1):
        first = 3.0 if step == 1 else 1.0
        data_s = [dice.expovariate(1 / 0.02) for _ in world.ranks]
        if dice.random() < 0.05 and step - paused[-2] > 6:
            paused.append(step)
            data_s[dice.randrange(world_size)] += dice.uniform(0.5, 4.0)
        world.open_step(data_s=data_s)
        world.compute(step_s=[first * step_s * dice.lognormvariate(0, sigma) for _ in world.ranks])
        world.close_step()
        if step % 10 == 0:
            world.pause("checkpoint", dice.uniform(0.1, 20), "checkpoint")
        if step % 15 == 0:
            world.pause("eval", dice.uniform(0.1, 30))
    return world.finish()


def essence(findings: list[Finding]) -> list[tuple[str, str, int | None, str | None]]:
    """What decides: a finding without its times (and the last reported place of a dead rank)."""
    return [
        (
            f.detector,
            f.severity.value,
            f.rank,
            None if f.detector == Detector.PROCESS_DEATH else f.section,
        )
        for f in findings
        if f.severity in (Severity.HALT, Severity.WARN)
    ]


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6), world_size=st.integers(1, 4))
def test_a_healthy_run_never_halts_and_empty_ticks_change_nothing(
    seed: int, world_size: int
) -> None:
    found = watch(healthy(seed, world_size=world_size), check_law=True)
    assert found.halts == []
    assert found.of(Severity.WARN) == []
    assert found.of(Severity.INFO) == []
    assert identity_ok(found.state) is True


@settings(max_examples=4, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rank=st.integers(0, 2),
    step=st.integers(4, 20),
    section=st.sampled_from(["forward", "backward", "data"]),
)
def test_a_hang_anywhere_is_found_in_time_with_its_culprit(
    seed: int, rank: int, step: int, section: str
) -> None:
    world = before_fault(seed, step)
    world.open_step()
    world.hang(rank, section, 40.0)
    (halt,) = watch(world).halts
    assert (halt.rank, halt.section, halt.step) == (rank, section, step)
    limit_s = 10.0 if section == "data" else max(5.0, 8 * (snapshot_m(world) or 0))
    assert halt.since is not None
    assert limit_s < halt.at - halt.since <= limit_s + 2.0


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6), rank=st.integers(0, 2), step=st.integers(1, 20))
def test_a_death_anywhere_is_found_within_a_second(seed: int, rank: int, step: int) -> None:
    world = before_fault(seed, step)
    world.open_step()
    at = EPOCH + world.mono - T0
    world.probe(rank, "dead", signal=9, exit_at=at)
    (halt,) = watch(world).halts
    assert (halt.detector, halt.rank) == ("process_death", rank)
    assert halt.at - at <= 1.0


def before_fault(seed: int, step: int) -> World:
    """Three ranks that have done all steps before `step`."""
    step_s = random.Random(seed).uniform(0.1, 0.5)
    world = World(order_of(steps=60, world_size=3)).boot()
    dice = random.Random(seed + 1)
    for _ in range(1, step):
        world.open_step()
        world.compute(step_s=[step_s * dice.lognormvariate(0, 0.1) for _ in world.ranks])
        world.close_step()
    return world


def snapshot_m(world: World) -> float | None:
    """The run's median step, as the watch sees it."""
    return watch(world, stop_at_halt=False).state.view.median_step_s()


def noisy(world: World, seed: int) -> World:
    """The same world with a fifth of its lines doubled and a fifth out of order."""
    dice = random.Random(seed)
    for rank in world.ranks:
        lines = list(rank.lines)
        for index in range(1, len(lines) - 1):
            if dice.random() < 0.2:
                lines[index], lines[index + 1] = (
                    Said(lines[index].mono, lines[index + 1].raw),
                    Said(lines[index + 1].mono, lines[index].raw),
                )
        rank.lines = [
            copy for line in lines for copy in ([line, line] if dice.random() < 0.2 else [line])
        ]
    return world


def faulty(kind: str) -> World:
    world = World(order_of(), loss=lambda step: "NaN" if kind == "nan" and step >= 15 else 5.0)
    world.boot(**({"dim": 128} if kind == "identity" else {})).steps(19)
    if kind == "slow":
        return world.steps(8, step_s=2.5)
    world.open_step()
    if kind == "freeze":
        world.ranks[0].stopped = True
        world.probe(0, "stopped")
    if kind == "death":
        world.probe(1, "dead", signal=9)
    world.hang(0 if kind == "freeze" else 1, "data" if kind == "freeze" else "backward", 20.0)
    return world


@pytest.mark.parametrize("kind", ["hang", "freeze", "slow", "nan", "identity", "death"])
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_fifth_of_lines_doubled_and_reordered_changes_no_decision(kind: str, seed: int) -> None:
    clean, dirty = watch(faulty(kind)), watch(noisy(faulty(kind), seed))
    assert essence(dirty.findings) == essence(clean.findings)
    assert len(clean.halts) == 1
    assert abs((dirty.halts[0].step or 0) - (clean.halts[0].step or 0)) <= 2


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6))
@example(seed=1153)
def test_a_healthy_run_with_doubled_and_reordered_lines_stays_healthy(seed: int) -> None:
    assert watch(noisy(healthy(seed), seed)).halts == []


@pytest.mark.parametrize("kind", ["hang", "freeze"])
def test_ticks_that_are_all_late_never_halt_on_a_deadline(kind: str) -> None:
    world = faulty(kind)

    def ticking(end: float) -> list[tuple[float, float]]:
        return [(mono, 16.0) for mono, _ in every(16.25)(end)]

    found = watch(world, ticking=ticking)
    assert found.named(Severity.HALT) == set()


def test_the_first_halt_latches_and_later_ones_are_still_told() -> None:
    world = World(order_of(), loss=lambda step: "NaN" if step == 12 else 5.0).boot().steps(12)
    world.open_step()
    world.hang(1, "backward", 10.0)
    found = watch(world, stop_at_halt=False)
    assert [f.detector for f in found.halts] == ["non_finite", "stall"]
    first = found.state.latched
    assert first is not None
    assert first.detector == Detector.NON_FINITE


def test_a_finding_is_told_once_and_its_key_carries_run_and_attempt() -> None:
    found = watch(faulty("hang"), stop_at_halt=False)
    keys = [finding.key for finding in found.findings]
    assert len(keys) == len(set(keys))
    assert all(key.startswith("run_1/1/") for key in keys)
    again = World(order_of(attempt=2)).boot().steps(19)
    again.open_step()
    again.hang(1, "backward", 20.0)
    assert {finding.key for finding in watch(again).findings}.isdisjoint(keys)


def test_a_look_finds_what_a_tick_would_and_changes_nothing() -> None:
    world = World(order_of()).boot().steps(19)
    world.open_step()
    world.hang(1, "backward", 1.0)
    state = watch(world, stop_at_halt=False).state
    before = dump_state(state)
    tick = Tick(n=999, mono=world.mono + 30.0, ts=EPOCH + world.mono + 30.0 - T0)
    found = look(state, tick)
    assert dump_state(state) == before
    assert [finding.key for finding in found] == [f.key for f in fold(state, tick, {})[1]]
    assert found


@pytest.mark.parametrize(
    ("detector", "action", "severity"),
    [
        (Detector.STALL, {}, Severity.HALT),
        (Detector.STALL, {"action": "warn"}, Severity.WARN),
        (Detector.GRADIENTS, {"action": "warn"}, Severity.WARN),
        (Detector.GRADIENTS, {"action": "halt"}, Severity.HALT),
    ],
)
def test_a_plan_chooses_whether_a_detector_halts_or_warns(
    detector: Detector, action: dict[str, str], severity: Severity
) -> None:
    world = World(order=order_of({**DEMO, detector: action}, detectors=detector_names()))
    world.boot().steps(40)
    if detector is Detector.STALL:
        world.open_step()
        world.hang(1, "forward", 400.0)
    else:
        world.steps(10, grad_norm=0.0)
    seen = watch(world)
    found = [row for row in seen.findings if row.detector == detector]
    assert {row.severity for row in found} >= {severity}
    assert bool(seen.halts) is (severity is Severity.HALT)
    assert all(f"/{detector}/{row.severity}/" in row.key for row in found)
    assert any(row.act is Act.GATE for row in found) is (severity is Severity.WARN)


def test_near_has_a_row_for_each_detector_and_changes_nothing() -> None:
    world = World(order=order_of(DEMO, detectors=detector_names()))
    state = start(world.order)
    rows = near(state, T0)
    assert set(rows) == set(detector_names())
    assert rows[Detector.NON_FINITE].blind
    state = watch(world.boot().steps(5)).state
    before = dump_state(state)
    assert near(state, world.mono)[Detector.NON_FINITE].blind is None
    assert dump_state(state) == before
