"""The real transformers.Trainer on a CPU, with a tiny GPT-2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gonogo.contract.heartbeat import Heartbeat
from gonogo.rundir import RunDir
from gonogo.trainer.run_dir import MANIFEST
from tests.trainer.runs import lines_of, run_loop, said, steps_of, write_order

STEPS = [1, 2, 3, 4, 5, 6]


def train(folder: Path, asked: dict[str, object], ranks: int = 1, **order: object) -> int:
    write_order(folder, steps=6, world_size=ranks, **order)
    done = run_loop("hf", folder, json.dumps(asked), ranks=ranks)
    assert "Traceback" not in done.stderr or "raise_at" in asked, done.stderr
    return done.returncode


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.long)])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two batches a step, an evaluation every second step, a checkpoint after three."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    args = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 3}
    assert train(folder, {"args": args}, ranks=request.param) == 0
    return folder


def all_lines(run: Path) -> list[list[Heartbeat]]:
    return [lines_of(run, rank) for rank in RunDir(run).ranks()]


def test_every_step_of_every_rank_is_whole(trained: Path) -> None:
    for lines in all_lines(trained):
        for msg in ("progress", "step_end"):
            assert steps_of(lines, msg) == STEPS
        assert sorted(set(steps_of(lines, "step_start"))) == STEPS
        assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
        assert (lines[0].msg, lines[-1].msg, lines[-1].step) == ("boot", "done", 6)


def test_losses_and_norms_are_those_that_the_trainer_logs(trained: Path) -> None:
    log = [row for row in json.loads((trained / "log.json").read_text()) if "loss" in row]
    losses = pytest.approx([row["loss"] for row in log], rel=1e-5)
    for lines in all_lines(trained):
        progress = said(lines, "progress")
        assert [line.loss for line in progress] == losses
        assert [line.grad_norm for line in progress] == [row["grad_norm"] for row in log]
        assert [line.lr for line in progress] == [row["learning_rate"] for row in log]


def test_evaluations_are_said_with_their_loss_and_section(trained: Path) -> None:
    log = [row for row in json.loads((trained / "log.json").read_text()) if "eval_loss" in row]
    told = said(lines_of(trained), "eval")
    assert [(line.step, line.val_loss) for line in told] == [
        (row["step"], row["eval_loss"]) for row in log
    ]
    assert {line.section for line in told} == {"eval"}
    assert all(line.dt and line.user == {"accuracy": 0.25} for line in told)


def test_checkpoints_are_said_and_sealed(trained: Path) -> None:
    told = said(lines_of(trained), "checkpoint")
    paths = ["checkpoints/checkpoint-3", "checkpoints/checkpoint-6"]
    assert [(line.step, line.path) for line in told] == [(3, paths[0]), (6, paths[1])]
    assert all((trained / path / MANIFEST).exists() for path in paths)
    assert {line.section for line in told} == {"checkpoint"}


@pytest.mark.long
@pytest.mark.parametrize(
    "args",
    [{"torch_compile": True, "torch_compile_backend": "eager"}, {"label_smoothing_factor": 0.1}],
    ids=["compiled", "the loss is not the model's"],
)
def test_other_ways_to_train_tell_the_same(tmp_path: Path, args: dict[str, object]) -> None:
    assert train(tmp_path, {"args": {**args, "save_strategy": "no"}}) == 0
    lines = lines_of(tmp_path)
    log = [row for row in json.loads((tmp_path / "log.json").read_text()) if "loss" in row]
    told = [line.loss for line in said(lines, "progress")]
    assert told == pytest.approx([row["loss"] for row in log], rel=1e-5)
    assert len(told) == 6
    for end in said(lines, "step_end"):
        assert end.step_sections is not None
        assert min(end.step_sections.forward, end.step_sections.backward) > 0
        assert end.tokens == 64


@pytest.mark.long
@pytest.mark.parametrize("every", [1, 500])
def test_a_loss_that_is_not_trained_by_is_not_told(every: int, tmp_path: Path) -> None:
    """The model makes one of its labels, and the Trainer another of its outputs."""
    args = {"logging_steps": every, "save_strategy": "no"}
    write_order(tmp_path, steps=6)
    done = run_loop("hf", tmp_path, json.dumps({"own": True, "args": args}))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("logging_steps=1 to log every step") == (0 if every == 1 else 1)
    told = [line.loss for line in said(lines_of(tmp_path), "progress")]
    log = [row["loss"] for row in json.loads((tmp_path / "log.json").read_text()) if "loss" in row]
    assert told == (pytest.approx(log, rel=1e-5) if every == 1 else [None] * 6)


@pytest.mark.long
def test_a_halt_saves_once_and_ends_the_process_with_3(tmp_path: Path) -> None:
    assert train(tmp_path, {"halt_at": 3, "args": {"save_strategy": "no"}}) == 3
    lines = lines_of(tmp_path)
    assert steps_of(lines, "step_end") == [1, 2, 3]
    assert said(lines, "halt_seen")
    assert [line.path for line in said(lines, "checkpoint")] == ["checkpoints/checkpoint-3"]
    assert not said(lines, "done")
    assert not (tmp_path / "log.json").exists(), "what follows the training is not run"


@pytest.mark.long
def test_it_saves_as_the_order_says_and_stops_at_its_last_step(tmp_path: Path) -> None:
    order = {"steps": 4, "checkpoint": {"every_steps": 3, "every_s": None}}
    write_order(tmp_path, **order)
    args = {"save_strategy": "no", "logging_steps": 500}
    done = run_loop("hf", tmp_path, json.dumps({"args": args}))
    assert done.returncode == 0, done.stderr
    lines = lines_of(tmp_path)
    assert steps_of(lines, "step_end") == [1, 2, 3, 4]
    assert steps_of(lines, "checkpoint") == [3, 4]
    assert all(line.loss is not None for line in said(lines, "progress"))
    assert (lines[-1].msg, lines[-1].step) == ("done", 4)


@pytest.mark.long
def test_what_ends_the_training_is_said(tmp_path: Path) -> None:
    assert train(tmp_path, {"raise_at": 2}) == 1
    last = lines_of(tmp_path)[-1]
    assert (last.msg, last.type, last.text) == ("error", "RuntimeError", "raised on purpose")
