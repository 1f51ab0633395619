"""The parts of a run's wall time sum to the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.goodput import Part, goodput_of, seconds_of
from gonogo.goodput.account import STEP, RankAccount, RunTimes, account_experiment, account_run

TIMES = RunTimes(opened_at=1000.0, placed_at=1010.0, ended_at=1200.0)
#: First line 5 s after the claim; 20 steps of 5 s from step 1 on, checkpoints after 8 and 16.
ACCOUNT = RankAccount(
    mono=120.0, first_ts=1015.0, moved_ts=1135.0, part=Part.BETWEEN_STEPS, boots=1,
    base_step=0, step=20, step_s=100.0,
    seconds={Part.START: 6.0, Part.CHECKPOINT: 10.0, Part.BETWEEN_STEPS: 4.0},
    saved_step=16,
)  # fmt: skip


def spent(
    times: RunTimes, account: RankAccount | None = ACCOUNT, now: float = 1200.0
) -> dict[str, float]:
    found = account_run(times, account, now)
    assert sum(found.values()) == pytest.approx((times.ended_at or now) - times.opened_at)
    assert all(value >= 0 for value in found.values())
    return {part.value: value for part, value in found.items() if value}


def test_all_steps_of_a_run_that_completed_are_productive() -> None:
    assert spent(replace(TIMES, completed=True)) == {
        "queue": 10.0, "start": 5.0 + 6.0, "productive": 100.0, "checkpoint": 10.0,
        "between_steps": 4.0, "halt": 65.0,
    }  # fmt: skip


def test_a_run_that_was_halted_keeps_what_its_last_checkpoint_holds() -> None:
    found = spent(replace(TIMES, found_at=1180.0))
    assert (found["preserved"], found["repeated"]) == (80.0, 20.0)
    assert (found["stall"], found["halt"]) == (45.0, 20.0)


def test_a_later_attempt_says_what_was_really_kept() -> None:
    assert spent(replace(TIMES, resumed_steps=(8,)))["preserved"] == 40.0
    assert spent(replace(TIMES, resumed_steps=(16, 8)))["repeated"] == 60.0
    assert "preserved" not in spent(replace(TIMES, resumed_steps=(16, 0)))


def test_a_step_counts_once_as_lost_over_the_attempts_of_a_phase() -> None:
    first = account_run(replace(TIMES, resumed_steps=(16,)), ACCOUNT, 0.0)
    second_told = ACCOUNT.model_copy(update={"base_step": 16, "step": 36, "saved_step": 0})
    second = account_run(replace(TIMES, again=True, completed=True), second_told, 0.0)
    both = {part: first[part] + second[part] for part in Part}
    assert both[Part.REPEATED] == 20.0
    assert both[Part.PRESERVED] + both[Part.PRODUCTIVE] == 180.0
    assert second[Part.RESTART] == 11.0
    assert second[Part.START] == 0.0


def test_a_run_that_goes_on_is_unknown_since_its_last_line() -> None:
    going = replace(TIMES, ended_at=None)
    assert spent(going)["unknown"] == 65.0
    in_a_step = ACCOUNT.model_copy(update={"part": STEP, "pending_s": 7.0})
    assert spent(going, in_a_step)["unknown"] == 65.0
    assert spent(going, in_a_step)["productive"] == 100.0


def test_a_run_that_said_nothing_was_preparing_until_it_was_halted() -> None:
    assert spent(TIMES, None) == {"queue": 10.0, "start": 190.0}
    assert spent(replace(TIMES, found_at=1100.0), None)["halt"] == 100.0
    assert spent(replace(TIMES, placed_at=None), None) == {"queue": 200.0}


def test_a_rank_that_tells_more_time_than_there_was_is_not_believed() -> None:
    assert spent(replace(TIMES, ended_at=1050.0)) == {"queue": 10.0, "unknown": 40.0}


MOMENT = st.floats(0.0, 500.0)


@given(
    opened=MOMENT, claimed=st.none() | MOMENT, ended=st.none() | MOMENT, found=st.none() | MOMENT,
    first=MOMENT, moved=MOMENT, step_s=st.floats(0, 50), pending=st.floats(0, 50),
    part=st.sampled_from([STEP, Part.START, Part.BETWEEN_STEPS, Part.HALT]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    resumed=st.lists(st.integers(0, 30), max_size=2), step=st.integers(0, 30),
    parts=st.dictionaries(st.sampled_from([Part.START, Part.UNKNOWN, Part.CHECKPOINT]),
                          st.floats(0, 20)),
)  # fmt: skip
def test_whatever_the_clocks_say_the_parts_sum_to_the_wall_time(
    opened, claimed, ended, found, first, moved, step_s, pending, part, flags, resumed, step, parts
) -> None:  # type: ignore[no-untyped-def]
    account = RankAccount(
        first_ts=first, moved_ts=moved, part=part, boots=1, pending_s=pending,
        base_step=0, step=step, step_s=step_s, seconds=parts,
        saved_step=step // 2,
    )  # fmt: skip
    times = RunTimes(
        opened_at=opened, placed_at=claimed, ended_at=ended, found_at=found, again=flags[0],
        completed=flags[1], unseen_end=flags[2], resumed_steps=tuple(resumed),
    )  # fmt: skip
    parts_of_run = account_run(times, account, 400.0)
    wall_s = max(0.0, (400.0 if ended is None else ended) - opened)
    assert sum(parts_of_run.values()) == pytest.approx(wall_s, abs=0.002)
    assert all(value >= 0 for value in parts_of_run.values())


def test_the_time_between_runs_belongs_to_decisions_and_before_the_first_to_the_queue() -> None:
    run = {Part.PRODUCTIVE: 50.0}
    found = account_experiment(0.0, 200.0, [(10.0, 60.0, run), (80.0, 130.0, run)], 999.0)
    assert {part.value: value for part, value in found.items() if value} == {
        "queue": 10.0, "productive": 100.0, "decision": 20.0 + 70.0,
    }  # fmt: skip
    assert account_experiment(0.0, None, [], 30.0)[Part.QUEUE] == 30.0


def test_the_ratio_is_of_the_time_with_devices_and_counts_the_unknown_as_not_productive() -> None:
    shown = goodput_of({Part.QUEUE: 100.0, Part.PRODUCTIVE: 60.0, Part.PRESERVED: 30.0,
                        Part.UNKNOWN: 10.0})  # fmt: skip
    assert (shown.ratio, shown.held_s, shown.wall_s) == (0.9, 100.0, 200.0)
    assert goodput_of({Part.QUEUE: 5.0}).ratio is None
    assert sum(seconds_of(shown).values()) == 200.0
