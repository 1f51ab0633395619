"""The real lightning.Trainer on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gonogo.judge.directory import judge_directory
from tests.trainer.runs import exit_codes, lines_of, run_loop, said, steps_of, write_order

STEPS = [1, 2, 3, 4, 5, 6]

pytestmark = pytest.mark.long


def train(folder: Path, asked: dict[str, object], ranks: int = 1, **order: object) -> int:
    write_order(folder, **{"steps": 6, "world_size": ranks, **order})
    done = run_loop("lightning", folder, json.dumps(asked), ranks=ranks)
    assert lines_of(folder), done.stderr
    return done.returncode


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to its end, two batches a step, an evaluation every two steps."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert train(folder, {}) == 0
    return folder


def test_the_loss_of_a_step_is_the_mean_of_its_batches(finished: Path) -> None:
    losses = json.loads((finished / "losses0.json").read_text())
    means = [(first + second) / 2 for first, second in zip(losses[::2], losses[1::2], strict=True)]
    progress = said(lines_of(finished), "progress")
    assert [line.loss for line in progress] == pytest.approx(means, rel=1e-6)
    assert {line.lr for line in progress} == {0.5}


def test_a_judge_sees_steps_losses_and_sections(finished: Path) -> None:
    facts = judge_directory(finished)["facts"]
    row = facts["ranks"]["0"]
    assert (row["last_step"], row["done_step"], row["gaps"]) == (6, 6, 0)
    assert row["missing"]["count"] == row["without_loss"]["count"] == 0
    assert row["tokens"] == [2 * 4 * 16]
    assert facts["identity"]["0"]["params"] == 32
    sections_s = facts["pace"]["0"]["sections_s"]
    assert min(sections_s[name] for name in ("data", "forward", "backward", "optimizer")) > 0


def test_evaluations_are_said_and_the_sanity_check_is_none(finished: Path) -> None:
    lines = lines_of(finished)
    told = said(lines, "eval")
    assert [line.step for line in told] == [2, 4, 6]
    assert all(line.val_loss is not None and line.section == "eval" for line in told)
    assert all(line.dt for line in told)
    assert [line.user for line in told] == [{"val_acc": 0.25}] * 3
    assert lines[2].section == "eval", "the sanity check, before the first step"


def test_its_own_checkpoints_are_said(finished: Path) -> None:
    told = said(lines_of(finished), "checkpoint")
    assert [line.step for line in told] == [3, 6]
    assert (finished / str(told[-1].path)).exists(), "it keeps the last one only"


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_halt_together_with_a_sealed_checkpoint(halted: Path, rank: int) -> None:
    lines = lines_of(halted, rank)
    assert steps_of(lines, "step_end") == [1, 2, 3]
    assert said(lines, "halt_seen")
    assert not said(lines, "done")
    assert not said(lines, "error")
    assert "checkpoints/step_000003" in [line.path for line in said(lines, "checkpoint")]
    folder = halted / "checkpoints" / "step_000003"
    assert sorted(path.name for path in folder.iterdir()) == ["lightning.ckpt", "manifest.json"]


@pytest.fixture(scope="module")
def halted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks that were halted while rank 0 was in step 3."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    write_order(folder, steps=6, world_size=2)
    done = run_loop("lightning", folder, json.dumps({"halt_at": 3}), ranks=2)
    assert exit_codes(done.stderr) == {3}, done.stderr
    return folder


def test_it_saves_as_the_order_says_and_stops_at_its_last_step(tmp_path: Path) -> None:
    cadence = {"every_steps": 2, "every_s": None}
    assert train(tmp_path, {}, steps=3, checkpoint=cadence) == 0
    lines = lines_of(tmp_path)
    assert steps_of(lines, "step_end") == [1, 2, 3]
    ours = [line.step for line in said(lines, "checkpoint") if "step_" in str(line.path)[:17]]
    assert ours == [2, 3]
    assert (lines[-1].msg, lines[-1].step) == ("done", 3)


def test_what_ends_the_training_is_said_with_its_section(tmp_path: Path) -> None:
    assert train(tmp_path, {"raise_at": 2}) == 1
    last = lines_of(tmp_path)[-1]
    assert (last.msg, last.type, last.text) == ("error", "RuntimeError", "raised on purpose")
    assert (last.step, last.section) == (2, "forward")


def test_a_batch_in_which_two_optimizers_step_is_one_step(tmp_path: Path) -> None:
    assert train(tmp_path, {"pair": True}) == 0
    lines = lines_of(tmp_path)
    assert steps_of(lines, "step_end") == STEPS
    assert (lines[-1].msg, lines[-1].step) == ("done", 6)
    told = [line.loss for line in said(lines, "progress")]
    losses = json.loads((tmp_path / "losses0.json").read_text())
    assert told == pytest.approx(losses, rel=1e-6), "of both, though nothing is returned"
    assert {line.lr for line in said(lines, "progress")} == {0.5}, "the larger one"


def test_a_run_of_two_optimizers_is_resumed_after_its_own_step(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(first, {"pair": True, "halt_at": 4}) == 3
    resume = {"path": str(first / "checkpoints" / "step_000004"), "step": 4}
    assert train(second, {"pair": True}, resume_from=resume) == 0
    lines = lines_of(second)
    assert steps_of(lines, "step_end") == [5, 6]
    assert (lines[-1].msg, lines[-1].step) == ("done", 6)


def test_a_loss_scale_that_falls_is_said(tmp_path: Path) -> None:
    """No update was applied, and nothing else of the run shows it: its losses are finite."""
    assert train(tmp_path, {"overflow": True}) == 0
    progress = said(lines_of(tmp_path), "progress")
    assert [line.loss_scale for line in progress] == [2.0 ** (16 - step) for step in STEPS]
