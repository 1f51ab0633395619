"""D25: attempts that fail one after the other without getting further."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.tick import Tick
from gonogo.contract.watch import RestartStorm as Settings
from gonogo.watch import dump_state, fold, load_state, start
from gonogo.watch.detectors.death import Start, is_storm
from tests.watch.streams import T0, Rank, order_of

NOW = 100_000.0


def starts(*steps: int, every_s: float = 10_000.0) -> list[Start]:
    last = len(steps) - 1
    return [
        Start(at=NOW - (last - at) * every_s, durable_step=step) for at, step in enumerate(steps)
    ]


@pytest.mark.parametrize(
    ("steps", "before", "storm"),
    [
        ((0, 0), 0, False),
        ((0, 0, 0), 0, True),
        ((20, 20, 20), 20, True),
        ((20, 20, 21), 20, False),
        ((21, 20, 20), 20, False),
        ((10, 10, 10), 20, True),
        ((5, 10, 10, 10), 0, False),
        ((5, 10, 10, 10, 10), 0, True),
        ((20, 5, 10, 15), 0, True),
        ((5, 10, 15, 15), 0, False),
        ((), 0, False),
    ],
)
def test_three_attempts_without_a_higher_durable_step(
    steps: tuple[int, ...], before: int, storm: bool
) -> None:
    assert is_storm(starts(*steps), before_step=before, now=NOW, settings=Settings()) is storm


@pytest.mark.parametrize(
    ("every_s", "storm"), [(449.0, True), (450.0, True), (451.0, False)], ids=str
)
def test_five_starts_within_half_an_hour(every_s: float, storm: bool) -> None:
    rows = starts(1, 2, 3, 4, 5, every_s=every_s)
    assert is_storm(rows, before_step=0, now=NOW, settings=Settings()) is storm


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(0, 50), st.integers(1, 4))
def test_attempts_that_always_get_further_and_take_their_time_are_no_storm(
    gains: list[int], before: int, attempts: int
) -> None:
    steps, step = [], before
    for gain in gains:
        step += gain + 1
        steps.append(step)
    settings = Settings(attempts=attempts)
    assert not is_storm(starts(*steps), before_step=before, now=NOW, settings=settings)


def boots(ended: list[int], *, done: bool = False, resumed: int = 0) -> list[Finding]:
    """Boot after boot of one rank, each of which ended steps up to so many; those that halted."""
    order = order_of({}, world_size=1, detectors=["restart_storm"])
    state, findings = start(order), list[Finding]()
    for number, steps in enumerate(ended):
        rank = Rank(0, mono=T0 + 1000.0 * number, alive_every_s=5.0)
        rank.boot = f"boot{number}"
        rank.step = resumed
        rank.say("boot")
        for step in range(resumed + 1, steps + 1):
            rank.step = step
            rank.say("step_start")
            rank.say("step_end")
        if done:
            rank.say("done")
        tick = Tick(n=number, mono=rank.mono, ts=0.0)
        state, found = fold(state, tick, {0: [line.raw for line in rank.lines]})
        findings += found
        state = load_state(order, dump_state(state))
    return findings


@pytest.mark.parametrize(
    ("ended", "halts"),
    [
        ([9, 9, 9, 9, 9, 9], 0),
        ([9, 9, 9, 9, 9, 9, 9], 1),
        ([9, 5, 3, 0, 8, 2, 9, 9], 1),
        ([9, 9, 9, 9, 9, 10, 10, 10, 10, 10], 0),
        ([0, 0, 0, 0, 0], 0),
        ([0, 0, 0, 0, 0, 0], 1),
        ([3, 6, 9, 12, 15, 18, 21, 24], 0),
    ],
)
def test_five_starts_in_place_that_get_no_further_halt(ended: list[int], halts: int) -> None:
    found = boots(ended)
    assert [(row.severity, row.threshold) for row in found] == [(Severity.HALT, 5.0)] * halts


def test_trainings_that_follow_each_other_are_no_storm() -> None:
    assert boots([9] * 10, done=True) == []
