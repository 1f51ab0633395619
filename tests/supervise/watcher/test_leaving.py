"""Ranks that were asked to leave: those that move are waited for, those that stand are ended."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gonogo.rundir import RunDir
from gonogo.supervise.end_request import (
    HALT_LIMIT_S,
    KILL_NAME,
    EndRequest,
    ask_halt,
    asked_by,
    load_request,
)
from gonogo.supervise.evidence.rounds import Evidence
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.watcher.halting import Halting, Standing
from gonogo.supervise.watcher.journal import Pace
from gonogo.supervise.watcher.rank_probes import Prober
from gonogo.timeline.rank import RankStream
from gonogo.trainer.heartbeat_writer import READ
from tests.supervise.runs import build_test_order


def standing(rank: int = 0, **said: Any) -> RankStream:
    """A rank in the backward pass of step 12."""
    at: dict[str, Any] = {"step": 12, "completed": 11, "section": "backward", "section_seq": 40}
    return RankStream(**{**at, "rank": rank, **said})


RANKS = {0: standing(), 1: standing(1)}
LINE = {0: replace(RANKS[0], heard_mono=70.0), 1: RANKS[1]}
"""The lines that a heartbeat thread keeps writing for a rank that hangs."""


@pytest.mark.parametrize(
    "moved", [{"section": "optimizer"}, {"section_seq": 41}, {"step": 13}, {"done": True}]
)
def test_one_that_moves_gives_all_of_them_their_time_again(moved: dict[str, Any]) -> None:
    standing_ = Standing()
    assert standing_.lasts_s(RANKS, 100.0, may_step=True) == 0.0
    assert standing_.lasts_s(LINE, 159.0, may_step=True) == 59.0
    there = {**RANKS, 1: standing(1, **moved)}
    assert standing_.lasts_s(there, 160.0, may_step=True) == 0.0
    assert standing_.lasts_s(there, 219.0, may_step=True) == 59.0


@pytest.mark.parametrize(
    "busy",
    [{"section": "checkpoint"}, {"section": "eval"}, {"section": None}, {"halt_seen": True}],
    ids=["saves", "evaluates", "names nothing", "leaves"],
)
def test_one_that_may_be_at_work_unheard_is_waited_for(busy: dict[str, Any]) -> None:
    standing_ = Standing()
    there = {**RANKS, 0: standing(**busy)}
    assert standing_.lasts_s(there, 100.0, may_step=True) == 0.0
    assert standing_.lasts_s(there, 1000.0, may_step=True) == 0.0


@pytest.fixture
def halting(tmp_path: Path) -> Halting:
    order = build_test_order("run_x")
    pace = Pace(checkpoint_s=5.0)
    pace.steps_s.append(10.0)
    folder = RunDir(tmp_path)
    nobody = Prober(folder, Place.of({"world_size": 0}))
    return Halting(folder, order, pace, Evidence(folder), nobody, lambda _: 12)


def ask(folder: Path, moving_s: float | None = None) -> None:
    """As a stopped keeper asks: five minutes; or as the watcher asks."""
    told = EndRequest(
        reason="halted",
        ended_by="operator",
        at=time.time() - 1.0,
        leave_s=HALT_LIMIT_S,
        moving_s=moving_s,
    )
    ask_halt(folder, told)


@pytest.mark.parametrize(
    "busy", [{"section": "eval"}, {"section": "checkpoint"}, {"halt_seen": True}]
)
def test_a_run_that_is_halted_while_it_evaluates_or_saves_has_its_time_after_that(
    tmp_path: Path, halting: Halting, busy: dict[str, Any]
) -> None:
    ask(tmp_path, moving_s=4.0)
    for now in (100.0, 110.0, 200.0):
        halting.hurry({**RANKS, 1: standing(1, **busy)}, now)
    halting.hurry({0: standing(step=13), 1: standing(1, step=13)}, 203.9)
    assert not (tmp_path / KILL_NAME).exists()
    halting.hurry({0: standing(step=14), 1: standing(1, step=14)}, 204.0)
    found = load_request(tmp_path / KILL_NAME)
    assert found is not None, "steps that continue are no way to leave"
    assert found.text == "asked to leave, the ranks did not within 4 s"
    assert (found.reason, found.leave_s, found.moving_s) == ("halted", None, None)


def test_a_person_s_request_to_a_run_that_hangs_takes_no_five_minutes(
    tmp_path: Path, halting: Halting
) -> None:
    ask(tmp_path)
    halting.hurry(RANKS, 100.0)
    halting.hurry(LINE, 129.0)
    assert not (tmp_path / KILL_NAME).exists()
    halting.hurry(LINE, 130.0)
    found = load_request(tmp_path / KILL_NAME)
    assert found is not None
    assert (found.reason, found.ended_by, found.until_mono) == ("halted", "operator", None)
    assert found.text == "asked to leave, the ranks did not within 30 s"
    first = asked_by(tmp_path)
    assert first is not None
    assert first.text == ""


def test_a_step_that_takes_long_once_is_no_hang_before_the_plan_calls_it_one(
    tmp_path: Path, halting: Halting
) -> None:
    halting._pace.steps_s[0] = 0.05
    halting._pace.checkpoint_s = 0.1
    limit_s = halting._order.watch.stall.halt_s
    assert limit_s > halting._pace.leaving_s()
    ask(tmp_path)
    halting.hurry(RANKS, 100.0)
    halting.hurry(LINE, 100.0 + limit_s - 0.1)
    assert not (tmp_path / KILL_NAME).exists()
    halting.hurry(LINE, 100.0 + limit_s)
    assert (tmp_path / KILL_NAME).exists()


def test_who_was_not_asked_and_who_cannot_read_it_is_not_hurried(
    tmp_path: Path, halting: Halting
) -> None:
    for now in (0.0, 1000.0):
        halting.hurry(RANKS, now)
    ask(tmp_path)
    (tmp_path / READ).touch()
    for now in (2000.0, 3000.0):
        halting.hurry(RANKS, now)
    assert not (tmp_path / KILL_NAME).exists()
