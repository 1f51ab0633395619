"""Epochs, ramps, recompiling, a first evaluation, lines in blocks: healthy, so nobody is halted."""

import random
from dataclasses import replace

import pytest

from lab import STANDARD, Part, simulate_part
from lab.rates import NOISES
from lab.variations import EARLY_STEPS, PLAIN, Habits, Reporting, draw_habits


def test_a_run_of_every_habit_is_not_halted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NOISES, "habits", replace(STANDARD, habit_share=1.0))
    part = Part(seed="habits/0", step_s=25.0, ranks=2, hours=1.0, noise="habits")
    assert simulate_part(part).halts == ()


def test_each_run_has_habits_of_its_own() -> None:
    noise, dice = replace(STANDARD, habit_share=0.5), random.Random(1)
    drawn = [draw_habits(noise, dice, 1000) for _ in range(50)]
    assert any(habits.epoch_steps for habits in drawn)
    assert any(not habits.epoch_steps for habits in drawn)
    assert all(at >= EARLY_STEPS for habits in drawn for at in habits.grows_at)
    assert draw_habits(replace(noise, habit_share=0.0), dice, 1000) == replace(
        PLAIN, grows_x=pytest.approx(1.5, abs=0.5)
    )


def test_a_ramp_grows_by_each_of_its_steps() -> None:
    habits = Habits(grows_at=(40, 50), grows_x=2.0)
    assert [habits.grown_x(step) for step in (39, 40, 50)] == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("reporting", "tokens"),
    [
        (Reporting(), True),
        (Reporting(fields_left_out=frozenset({"tokens"})), False),
        (Reporting(messages_left_out=frozenset({"step_end"})), False),
        (Reporting(messages_left_out=frozenset({"alive"})), True),
    ],
)
def test_a_ramp_is_healthy_where_its_tokens_are_told(reporting: Reporting, tokens: bool) -> None:
    assert reporting.tokens is tokens
