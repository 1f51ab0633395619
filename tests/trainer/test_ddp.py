"""Plain PyTorch, two real ranks that talk through gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.rundir import RunDir
from tests.trainer.runs import exit_codes, lines_of, run_loop, said, steps_of, write_order


@pytest.fixture(scope="module")
def halted(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run that was halted while rank 0 was in step 3."""
    folder = write_order(tmp_path_factory.mktemp("runs") / "run", steps=6, world_size=2)
    done = run_loop("ddp", folder, "3", ranks=2)
    assert exit_codes(done.stderr) == {3}, done.stderr
    assert done.stdout.count("still talks: False") == 2, done.stdout
    return RunDir(folder)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_both_ranks_leave_after_the_same_step(halted: RunDir, rank: int) -> None:
    lines = lines_of(halted.path, rank)
    assert steps_of(lines, "step_end") == [1, 2, 3]
    assert said(lines, "halt_seen")
    assert not said(lines, "done")
    assert not said(lines, "error")
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))


@pytest.mark.long
def test_the_checkpoint_of_that_step_is_whole(halted: RunDir) -> None:
    folder = halted.checkpoints / "step_000003"
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "model.pt"]


@pytest.mark.long
def test_who_is_done_leaves_gloo_before_python_ends(tmp_path: Path) -> None:
    """Or now and then it aborts, and a run that was complete has a rank that exited with -6."""
    done = run_loop("ddp", write_order(tmp_path / "run", world_size=2), ranks=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("still talks: False") == 2, done.stdout


@pytest.mark.long
def test_under_no_supervisor_the_same_script_trains_to_its_end() -> None:
    done = run_loop("ddp", None, ranks=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("still talks: True") == 2, done.stdout
