"""A GPU that somebody lends has Python, PyTorch, Triton, numpy, PyYAML and no package of ours."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BARE = [sys.executable, str(Path(__file__).with_name("bare_machine.py"))]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BARE, *arguments], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_the_benchmark_the_trainer_and_the_data_need_nothing_else() -> None:
    modules = ["nsa.data", "nsa.train", "nsa.trainer", "nsa.attention.proof", "bench.gpu"]
    done = _run(*modules)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"imported {' '.join(modules)}\n"


def test_a_module_that_needs_more_is_found_out() -> None:
    done = _run("nsa.data.parquet")
    assert done.returncode == 1
    assert "No module named 'pyarrow' on a bare machine" in done.stderr
