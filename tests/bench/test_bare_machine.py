"""A GPU that somebody lends has Python, PyTorch, Triton, numpy, PyYAML and no package of ours."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.gpu.__main__ import STAGES
from bench.gpu.rows import read_rows

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
ROOT = Path(__file__).parents[2]
BARE = [sys.executable, str(Path(__file__).with_name("bare_machine.py"))]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BARE, *arguments], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_the_benchmark_the_trainer_and_the_data_need_nothing_else() -> None:
    stages = [f"bench.gpu.{stage}" for stage in STAGES]
    modules = ["nsa.data", "nsa.train", *stages, "bench.gpu.__main__"]
    done = _run(*modules)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"imported {' '.join(modules)}\n"


@pytest.mark.long
def test_the_trainer_trains_there(tmp_path: Path) -> None:
    stage = ["--stage", "trainer_steps", "--device", "cpu", "--out", str(tmp_path)]
    done = _run("bench.gpu.__main__", "--", *stage)
    assert done.returncode == 0, done.stderr
    rows = [row for row in read_rows(tmp_path / "gpu.jsonl") if row["row"] == "trainer"]
    assert [row["kind"] for row in rows] == ["nsa", "dense"]
    assert all(row["tok_s"] > 0 for row in rows)


@pytest.mark.long
def test_a_module_that_needs_more_is_found_out() -> None:
    done = _run("nsa.data.parquet")
    assert done.returncode == 1
    assert "No module named 'pyarrow'" in done.stderr
