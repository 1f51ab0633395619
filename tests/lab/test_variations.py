"""Epochs, ramps, recompiling, a first evaluation, lines in blocks: healthy, so nobody is halted."""

import random
from dataclasses import replace

import pytest

from gonogo.contract.tick import ProcessState
from lab import STANDARD, Part, simulate_part
from lab.ranks import Rank, Wall
from lab.rates import NOISES
from lab.variations import EARLY_STEPS, PLAIN, Habits, Reporting, draw_habits
from lab.watcher import Watcher
from tests.watch.streams import order_of


@pytest.mark.parametrize("number", range(2))
def test_a_run_of_every_habit_is_not_halted(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setitem(NOISES, "habits", replace(STANDARD, habit_share=1.0))
    part = Part(seed=f"habits/{number}", step_s=25.0, ranks=2, hours=2.0, noise="habits")
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


def test_progress_of_rank_0_alone_leaves_the_ends_of_the_others_steps() -> None:
    reporting = Reporting(rank_0_logs=True)
    assert [reporting.tells("progress", 1, rank) for rank in (0, 1)] == [True, False]
    assert reporting.tells("step_end", 1, 1)
    silent = replace(reporting, messages_left_out=frozenset({"step_end"}))
    assert silent.tells("progress", 1, 1)


def test_lines_are_read_in_blocks_and_an_end_with_them() -> None:
    rank = Rank(0, now=0.0, offset=0.0, wall=Wall())
    watcher = Watcher(
        order_of({}),
        [rank],
        noise=replace(STANDARD, messy_share=0.0),
        wall=Wall(),
        dice=random.Random(1),
        now=0.0,
        lag_s=10.0,
    )
    for rank.now in (3.0, 10.0, 12.0):
        rank.say("alive")
    read = {now: [line.seq for line in watcher._arrived(now).get(0, [])] for now in (9.9, 15.0)}
    assert read == {9.9: [], 15.0: [1, 2]}
    assert watcher._due() == pytest.approx(2.0)  # an idle tick comes before the rest can be read
    watcher.probe(12.0, 0, ProcessState.DEAD, code=0)
    assert watcher._probes[0][0] == 20.0
