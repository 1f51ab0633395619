"""Epochs, ramps, recompiling, a first evaluation, lines in blocks: healthy, so nobody is halted."""

from dataclasses import replace

from lab.noise import STANDARD
from lab.run import Part, simulate_part


def test_a_run_of_every_habit_is_not_halted() -> None:
    noise = replace(STANDARD, habit_share=1.0)
    part = Part(seed="habits/0", step_s=25.0, ranks=2, hours=1.0, noise=noise)
    assert simulate_part(part).halts == ()
