"""A loop with the real Accelerate, two ranks on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.judge.directory import judge_directory
from tests.trainer.runs import lines_of, run_loop, said, write_order

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks to their end."""
    folder = write_order(tmp_path_factory.mktemp("runs") / "run", steps=5, world_size=2)
    done = run_loop("accelerate", folder, ranks=2)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_judge_sees_steps_losses_and_sections(pair: Path) -> None:
    facts = judge_directory(pair)["facts"]
    for rank in ("0", "1"):
        row = facts["ranks"][rank]
        assert (row["last_step"], row["done_step"], row["gaps"]) == (5, 5, 0)
        assert row["missing"]["count"] == row["without_loss"]["count"] == 0
        assert facts["identity"][rank]["params"] == 9
        assert facts["identity"][rank]["world_size"] == 2
        sections_s = facts["pace"][rank]["sections_s"]
        assert min(sections_s[name] for name in ("data", "forward", "backward", "optimizer")) > 0


def test_both_ranks_say_the_same_loss(pair: Path) -> None:
    told = [[line.loss for line in said(lines_of(pair, rank), "progress")] for rank in (0, 1)]
    assert told[0] == told[1]
