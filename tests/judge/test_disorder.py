"""Clocks that step and lines that are lost: what the decision is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.facts import Facts
from gonogo.judge.directory import judge_directory
from gonogo.judge.facts.record import load_run
from tests.data.make_runs import Rank, exit_of, healthy_ranks, order_of, save_run
from tests.judge.test_forgery import AGENT, facts_of, restarted_ranks


def saved(folder: Path, ranks: list[Rank]) -> Path:
    save_run(folder, order_of(), ranks, exit_of(ranks, agent=AGENT))
    return folder


def set_back(folder: Path, by_s: float) -> Path:
    """A run whose wall clock is set back before every rank restarts in place."""
    ranks = restarted_ranks(order_of())
    for rank in ranks:
        for line in rank.lines:
            if line["boot"] == rank.boot_id:
                line["ts"] -= by_s
    return saved(folder, ranks)


@pytest.mark.parametrize("by_s", [0.0, 3_600.0])
def test_a_wall_clock_that_is_set_back_before_a_restart_changes_no_verdict(
    by_s: float, tmp_path: Path
) -> None:
    folder = set_back(tmp_path / "run", by_s)
    found = judge_directory(folder)
    assert found["verdict"] == "GO"
    assert [row["boot"] for row in found["facts"]["boots"]["0"]] == ["boot0", "again0.0"]


def never_written(place: int) -> Callable[[Path], Path]:
    """A line of rank 0 that was lost before anybody read it."""

    def make(folder: Path) -> Path:
        ranks = healthy_ranks(order_of())
        del ranks[0].lines[place]
        return saved(folder, ranks)

    return make


def cut_out(place: int) -> Callable[[Path], Path]:
    """A line of rank 0 that was taken away after the run."""

    def make(folder: Path) -> Path:
        saved(folder, healthy_ranks(order_of()))
        file = folder / "heartbeat_rank0.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        del lines[place]
        file.write_bytes(b"".join(lines))
        return folder

    return make


LOST = {
    "never written": never_written(20),
    "the first one": never_written(0),
    "cut out": cut_out(20),
    "the last one": cut_out(-1),
}


def decided(folder: Path) -> tuple[str, list[dict[str, Any]], Facts]:
    found = judge_directory(folder)
    return str(found["verdict"]), found["criteria"], facts_of(load_run(folder))


@pytest.mark.parametrize("name", LOST)
def test_a_lost_line_passes_nothing_and_halts_nothing(name: str, tmp_path: Path) -> None:
    folder = LOST[name](tmp_path / "run")
    verdict, _, facts = decided(folder)
    assert verdict == "INCONCLUSIVE"
    assert [row.detector for row in facts.findings if row.severity == "halt"] == []
