"""Epochs, ramps, recompiling, a first evaluation, lines in blocks: healthy, so nobody is halted."""

from dataclasses import replace

from lab.noise import STANDARD, Habits
from lab.plan import Part
from lab.run import simulate_part


def test_a_run_of_every_habit_is_not_halted() -> None:
    noise = replace(STANDARD, habit_share=1.0)
    part = Part(seed="habits/0", step_s=25.0, ranks=2, hours=1.0, noise=noise)
    assert simulate_part(part).halts == ()


def test_a_ramp_grows_by_each_of_its_steps() -> None:
    habits = Habits(grows_at=(40, 50), grows_x=2.0)
    assert [habits.grown_x(step) for step in (39, 40, 50)] == [1.0, 2.0, 4.0]
