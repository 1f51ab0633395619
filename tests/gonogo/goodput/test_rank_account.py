"""Each second of a rank counts once, for what it was spent on."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.canonical import wire_value
from gonogo.contract.goodput import Part
from gonogo.contract.heartbeat import Heartbeat
from gonogo.goodput.account import RankAccount, add_line

WALL = 1_700_000_000.0


class Rank:
    """Writes lines; `lose` drops the next ones."""

    def __init__(self) -> None:
        self.account, self.now, self.seq, self.boot = RankAccount(), 100.0, 0, "a"

    def say(self, msg: str, step: int = 0, after: float = 0.0, **more: Any) -> Rank:
        self.now += after
        self.seq += 1
        line = {"section": "log", "section_seq": 1, **more}
        beat = Heartbeat(
            ts=WALL + self.now, mono=self.now, pid=1, rank=0, boot=self.boot, seq=self.seq,
            step=step, msg=msg, **line,
        )  # fmt: skip
        add_line(self.account, beat)
        return self

    def lose(self, lines: int = 1) -> Rank:
        self.seq += lines
        return self

    def boot_again(self, after: float = 0.0) -> Rank:
        self.boot, self.seq = self.boot + "+", 0
        return self.say("boot", after=after)

    def steps(self, first: int, last: int, step_s: float = 10.0, gap_s: float = 1.0) -> Rank:
        for step in range(first, last + 1):
            self.say("step_start", step, gap_s).say("step_end", step, step_s)
        return self

    def spent(self) -> dict[str, float]:
        return {part.value: value for part, value in self.account.seconds.items()}


def test_steps_and_what_lies_between_them_are_told_apart() -> None:
    rank = Rank().say("boot").say("loader_ready", after=4.0).steps(1, 3)
    assert rank.account.step_s == 30.0
    assert rank.spent() == {"start": 5.0, "between_steps": 2.0}
    assert (rank.account.base_step, rank.account.step) == (0, 3)


def test_a_checkpoint_and_an_evaluation_take_what_they_say_that_they_took() -> None:
    rank = Rank().say("boot").steps(1, 2).say("eval", 2, after=7.0, dt=6.0)
    rank.say("checkpoint", 2, after=3.0, dt=3.0).steps(3, 3)
    assert rank.spent() == {
        "start": 1.0,
        "evaluation": 6.0,
        "checkpoint": 3.0,
        "between_steps": 1.0 + 1.0 + 1.0,
    }
    assert rank.account.saved_step == 2


def test_a_checkpoint_written_beside_later_steps_takes_its_section_and_keeps_its_step() -> None:
    rank = Rank().say("boot").steps(1, 2).say("section", 2, after=1.0, section="checkpoint")
    rank.say("section", 2, after=3.0, section=None).steps(3, 4)
    rank.say("checkpoint", 4, after=1.0, dt=25.0, path="checkpoints/step_000002").steps(5, 5)
    assert rank.spent() == {"start": 1.0, "checkpoint": 3.0, "between_steps": 1 + 1 + 1 + 1 + 2}
    assert rank.account.saved_step == 2


def test_a_step_that_was_done_before_is_repeated_and_a_new_process_is_a_restart() -> None:
    rank = Rank().say("boot").steps(1, 3).say("step_start", 4, 1.0).say("alive", 4, 5.0)
    rank.boot_again(after=20.0).steps(2, 4)
    assert rank.account.step_s == 40.0
    assert rank.spent()["repeated"] == 5.0 + 20.0  # the step broken off, then 2 and 3 again
    assert rank.spent()["restart"] == 20.0 + 1.0


def test_missing_lines_leave_unknown_time_and_no_step() -> None:
    rank = Rank().say("boot").steps(1, 1).say("step_start", 2, 1.0).lose(5).steps(5, 5, gap_s=40.0)
    assert rank.account.step_s == 20.0
    assert rank.spent()["unknown"] == 40.0


def test_a_trainer_that_tells_no_start_of_a_step_is_timed_from_end_to_end() -> None:
    rank = Rank().say("boot")
    for step in (10, 20, 30):
        rank.say("progress", step, 100.0, section=None, section_seq=0)
        rank.say("step_end", step, 0.0, section=None, section_seq=0)
    assert rank.account.step_s == 200.0
    assert rank.spent() == {"start": 100.0}


def test_time_after_the_halt_was_seen_and_after_the_last_step_belongs_to_the_end() -> None:
    rank = Rank().say("boot").steps(1, 1).say("halt_seen", 1).say("checkpoint", 1, 4.0, dt=3.0)
    rank.say("done", 1, 2.0)
    assert rank.spent() == {"start": 1.0, "checkpoint": 3.0}
    assert (rank.account.part, rank.account.pending_s) == (Part.HALT, 3.0)


MESSAGES = ("boot", "step_start", "step_end", "progress", "checkpoint", "eval", "section", "alive",
            "halt_seen", "done", "something_new")  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.sampled_from(MESSAGES),
            st.integers(0, 6),
            st.floats(-5.0, 100.0),
            st.sampled_from([None, -1.0, 0.5, 1e9]),
            st.sampled_from([None, "eval", "checkpoint", "log"]),
            st.sampled_from([0, 0, 0, 3]),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_whatever_is_said_the_seconds_sum_to_the_time_and_none_is_negative(rows: Any) -> None:
    rank, passed = Rank(), 0.0
    for number, (msg, step, after, dt, section, lost, again) in enumerate(rows):
        rank.lose(lost)
        if again and number % 7 == 6:
            rank.boot, rank.seq = rank.boot + "+", 0
        before = rank.now
        rank.say(msg, step, after, dt=dt, section=section, section_seq=number % 2)
        passed += max(0.0, rank.now - before) if number else 0.0
        assert rank.account.total_s == pytest.approx(passed)
        assert rank.account.pending_s >= 0
        assert all(value >= 0 for value in rank.account.seconds.values())


def test_a_fold_that_is_put_down_goes_on_as_if_it_had_not_been() -> None:
    whole, half = (
        Rank().say("boot").steps(1, 3).say("progress", 3, loss=math.inf) for _ in range(2)
    )
    stored = json.dumps(wire_value(half.account.model_dump(mode="json")), allow_nan=False)
    half.account = RankAccount.model_validate_json(stored)
    for rank in (whole, half):
        rank.say("checkpoint", 3, 2.0, dt=2.0).steps(4, 5)
    assert half.account == whole.account
    assert Part.CHECKPOINT in half.account.seconds
