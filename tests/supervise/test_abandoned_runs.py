"""May a run be given up? Only one that has ended, was refused, and was not taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gonogo.contract.errors import NotFound, Rejected
from gonogo.rundir import SHIPPED_NAME, RunDir, save_json
from gonogo.supervise.abandoned_runs import (
    give_up,
    load_given_up,
    load_refusal,
    load_refusals,
    note_refusal,
)
from gonogo.supervise.locks import holding, keeper_lock
from gonogo.supervise.processes import boot_id, find_process
from tests.supervise.orders import completed, make_order, make_run_dir


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """An ended run that the control plane refuses."""
    found = make_run_dir(tmp_path, make_order())
    save_json(found.exit, completed().wire())
    note_refusal(found.path, "403: not the claim's secret", 5.0)
    return found


def test_a_refused_run_is_given_up_once_and_nothing_of_it_goes(run_dir: RunDir) -> None:
    runs, run = run_dir.path.parent, run_dir.path.name
    before = {path.name: path.read_bytes() for path in run_dir.path.glob("*.json")}
    first = give_up(runs, run, reason="lost", now=9.0)
    assert (first.reason, first.refused) == ("lost", "403: not the claim's secret")
    assert give_up(runs, run, reason="again", now=10.0) == first
    assert load_given_up(run_dir.path) == first
    assert {path.name: path.read_bytes() for path in run_dir.path.glob("*.json")} == before
    assert list(load_refusals(runs)) == []


def lives(run_dir: RunDir) -> None:
    me = find_process(os.getpid())
    assert me is not None
    state = {"pid": me.pid, "start_ticks": me.start_ticks, "boot_id": boot_id()}
    save_json(run_dir.path / "keeper.json", state)


def node_lives(run_dir: RunDir) -> None:
    lives(run_dir)
    (run_dir.path / "keeper.json").rename(run_dir.path / "keeper_node1.json")


def not_ended(run_dir: RunDir) -> None:
    run_dir.exit.unlink()


def shipped(run_dir: RunDir) -> None:
    save_json(run_dir.path / SHIPPED_NAME, {"v": 1, "fenced": False})


def not_refused(run_dir: RunDir) -> None:
    (run_dir.path / ".refused.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lives, "lives"),
        (node_lives, "lives"),
        (not_ended, "has not ended"),
        (shipped, "waits for nothing"),
        (not_refused, "nobody has refused"),
    ],
)
def test_no_other_run_is_given_up(
    run_dir: RunDir, spoil: Callable[[RunDir], None], says: str
) -> None:
    spoil(run_dir)
    with pytest.raises(Rejected, match=says):
        give_up(run_dir.path.parent, run_dir.path.name, reason="lost", now=9.0)
    assert load_given_up(run_dir.path) is None


def test_whoever_sends_a_run_is_not_said_to_be_its_keeper(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gonogo.supervise.abandoned_runs._LOCK_S", 0.1)
    runs, run = run_dir.path.parent, run_dir.path.name
    with holding(keeper_lock(run_dir.path)):
        with pytest.raises(Rejected, match="a worker that sends it; try again"):
            give_up(runs, run, reason="lost", now=9.0)
        assert load_given_up(run_dir.path) is None
    assert give_up(runs, run, reason="lost", now=9.0).reason == "lost"


@pytest.mark.parametrize("name", ["run_1", "../home", "run_01K00000000000000000000009"])
def test_a_run_that_is_not_here_is_said_so(run_dir: RunDir, name: str) -> None:
    with pytest.raises(NotFound, match="there is no run"):
        give_up(run_dir.path.parent, name, reason="lost", now=9.0)


def test_a_refusal_keeps_its_beginning_and_its_last_word(run_dir: RunDir) -> None:
    assert not note_refusal(run_dir.path, "403: not the claim's secret", 8.0)
    assert note_refusal(run_dir.path, "404: no such run", 9.0)
    found = load_refusal(run_dir.path)
    assert found is not None
    assert (found.since, found.text) == (5.0, "404: no such run")
    assert found.way_out == f"gonogo abandon {run_dir.path.name} --reason TEXT"
