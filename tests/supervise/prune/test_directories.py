"""Facts of real run directories, and their pruning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gonogo.contract.errors import NotFound
from gonogo.contract.order import Order
from gonogo.judge.directory import judge_directory
from gonogo.rundir import PRUNED_NAME, RunDir, pruned_text, save_json
from gonogo.supervise.locks import holding, keeper_lock
from gonogo.supervise.prune import RunFacts, What, load_facts, prune
from tests.supervise.orders import completed, make_order, make_run_dir, write_beats

NOW = 1_800_000_000.0


def ended_run(home: Path, order: Order | None = None) -> RunDir:
    """A run that ended and was shipped, with a checkpoint."""
    run_dir = make_run_dir(home / "runs", order or make_order())
    write_beats(run_dir, 0, range(5))
    save_json(run_dir.exit, completed().wire())
    save_json(run_dir.path / ".shipped", {"v": 1, "fenced": False})
    step = run_dir.checkpoints / "step_000010"
    step.mkdir(parents=True)
    (step / "model.pt").write_bytes(b"x" * 5000)
    return run_dir


def only(home: Path) -> RunFacts:
    (found,) = load_facts(home)
    return found


def test_the_facts_about_an_ended_run(tmp_path: Path) -> None:
    order = make_order()
    ended_run(tmp_path, order)
    found = only(tmp_path)
    assert (found.run, found.experiment, found.ended_at) == (order.run, order.experiment, 200.0)
    assert found.checkpoint_bytes == 5000 < found.bytes
    assert (found.shipped, found.known, found.living, found.pruned) == (True, True, False, None)


def test_what_keeps_a_run_is_seen(tmp_path: Path) -> None:
    run_dir = ended_run(tmp_path)
    (run_dir.path / ".shipped").unlink()
    assert not only(tmp_path).shipped
    run_dir.exit.write_text("{torn")
    assert only(tmp_path).ended_at is None


def test_a_run_that_no_service_knows_is_its_own_experiment(tmp_path: Path) -> None:
    run_dir = ended_run(tmp_path)
    run = run_dir.path.name
    (run_dir.path / ".shipped").write_text("gonogo run: no service knows of it\n")
    (tmp_path / "decisions").mkdir()
    (tmp_path / "decisions" / "dec_torn.json").write_text("{")
    found = only(tmp_path)
    assert (found.known, found.experiment, found.decided) == (False, run, False)
    (tmp_path / "decisions" / "dec_1.json").write_text(json.dumps({"run": run}))
    assert only(tmp_path).decided
    (run_dir.path / ".shipped").write_text("")
    assert only(tmp_path).known, "what says nothing is a service's"


def test_a_pruned_directory_says_so_and_is_never_judged(tmp_path: Path) -> None:
    run_dir = ended_run(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (run_dir.path / "tb").symlink_to(outside)
    assert prune(run_dir.path, What.ALL, policy="by the policy", now=NOW)
    assert {row.name for row in run_dir.path.iterdir()} <= {
        PRUNED_NAME, ".shipped", ".keeper.lock",
    }  # fmt: skip
    assert (outside / "kept").exists()
    assert pruned_text(run_dir.path) == "it was pruned on 2027-01-15 (by the policy)"
    with pytest.raises(NotFound, match="it was pruned on 2027-01-15"):
        judge_directory(run_dir.path)
    found = only(tmp_path)
    assert (found.pruned, found.bytes, found.shipped) == (What.ALL, 0, True)


def test_without_its_checkpoints_a_run_is_judged_as_before_and_says_what_went(
    tmp_path: Path,
) -> None:
    run_dir = ended_run(tmp_path)
    before = judge_directory(run_dir.path, now=300.0)
    assert prune(run_dir.path, What.CHECKPOINTS, policy="by the policy", now=NOW)
    assert not run_dir.checkpoints.exists()
    after = judge_directory(run_dir.path, now=300.0)
    assert (after["facts"], after["verdict"]) == (before["facts"], before["verdict"])
    assert set(after["not_observed"]) - set(before["not_observed"]) == {
        "its checkpoints were pruned on 2027-01-15 (by the policy)"
    }
    assert only(tmp_path).pruned is What.CHECKPOINTS


def test_what_a_keeper_holds_is_left_alone(tmp_path: Path) -> None:
    run_dir = ended_run(tmp_path)
    with holding(keeper_lock(run_dir.path)) as held:
        assert held
        assert not prune(run_dir.path, What.ALL, policy="", now=NOW)
    assert run_dir.order.exists()
    assert pruned_text(run_dir.path) is None
