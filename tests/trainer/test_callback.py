"""The beginning of loops with callbacks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gonogo.trainer.callback import CallbackBeat, largest_rate
from tests.trainer.runs import lines_of, steps_of, write_order


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that resumes after step 2, of a program without a launcher."""
    run = write_order(tmp_path / "run", resume_from={"path": "checkpoints/step_000002", "step": 2})
    monkeypatch.setenv("GONOGO_RUN_DIR", str(run))
    monkeypatch.delenv("RANK", raising=False)
    return run


def test_the_checkpoint_is_known_before_the_loop_says_which_rank_it_is(run: Path) -> None:
    told = CallbackBeat(None, None)
    assert told.resume_from == run / "checkpoints/step_000002"
    assert (told.resume_step, told.steps) == (2, 4), "of four steps"


@pytest.mark.parametrize(
    ("ordered", "step"),
    [(2, 0), (0, 2)],
    ids=["it begins afresh", "it resumes where only weights were meant"],
)
def test_a_loop_that_begins_elsewhere_than_ordered_is_refused(
    run: Path, ordered: int, step: int
) -> None:
    write_order(run, resume_from={"path": "checkpoints/step_000002", "step": ordered})
    told = CallbackBeat(None, None)
    with pytest.raises(ValueError, match=f"begins after step {step}") as refused:
        told.begin(None, rank=0, world_size=1, step=step, last_step=4)
    told.end(refused.value)


def test_a_second_training_of_a_process_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GONOGO_RUN_DIR", str(write_order(tmp_path / "run", steps=1)))
    monkeypatch.delenv("RANK", raising=False)
    model = torch.nn.Linear(1, 1)
    told = CallbackBeat(None, None)
    told.begin(model, rank=0, world_size=1, step=0, last_step=None)
    assert told.end_step(1.0, None).stop
    told.end()
    said = lines_of(tmp_path / "run")
    assert said[-1].msg == "done"
    told.begin(model, rank=0, world_size=1, step=0, last_step=None)
    assert not told.end_step(1.0, None).stop, "nobody ordered how long it is"
    told.end()
    assert lines_of(tmp_path / "run") == said


@pytest.mark.parametrize(
    ("begins", "told"),
    [(0, [1, 2, 1, 2, 3, 4]), (1, [1, 2, 2, 3, 4]), (2, [1, 2, 3, 4])],
    ids=["afresh", "from a checkpoint", "where it was"],
)
def test_one_that_begins_again_before_its_end_counts_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: int, told: list[int]
) -> None:
    monkeypatch.setenv("GONOGO_RUN_DIR", str(write_order(tmp_path / "run", steps=4)))
    monkeypatch.delenv("RANK", raising=False)
    model = torch.nn.Linear(1, 1)
    beat = CallbackBeat(None, None)
    beat.begin(model, rank=0, world_size=1, step=0, last_step=None)
    assert not any(beat.end_step(1.0, None).stop for _ in range(2))
    beat.begin(model, rank=0, world_size=1, step=begins, last_step=None)
    assert [beat.end_step(1.0, None).stop for _ in range(begins, 4)][-1]
    beat.end()
    assert steps_of(lines_of(tmp_path / "run"), "step_end") == told


@pytest.mark.parametrize(
    ("rates", "told"),
    [([0.1], 0.1), ([0.0, 0.1], 0.1), ([None, 0.1], 0.1), ([None, None], None), ([0.0], 0.0)],
)
def test_the_rate_of_an_optimizer_is_the_largest_of_its_parts(
    rates: list[float | None], told: float | None
) -> None:
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1)]} for _ in rates], lr=1.0)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    assert largest_rate(optimizer) == told
