"""Is the import law of pyproject.toml kept, and does the checker see every package?"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
ADAPTERS = {"hf": "transformers", "lightning": "lightning"}
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter over `tree` without its cache."""
    command = [sys.executable, "-c", LINT, "--no-cache"]
    return subprocess.run(command, cwd=tree, check=False, capture_output=True, text=True)


def test_nobody_breaks_the_import_law() -> None:
    checked = lint_imports(ROOT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


FLOORS = {
    "gonogo/judge": ("follow_up", "gate", "compare", "facts"),
    "gonogo/supervise": (
        *("keeper", "launch", "watcher"),
        *("evidence", "devices", "host", "preflight", "prune"),
    ),
    "worker": ("claims", "engine", "host", "shipping"),
}
PACKAGES = (
    *("service", "worker", "nsa", "lab", "gonogo/contract", "gonogo/judge", "gonogo/planning"),
    *("gonogo/supervise", "gonogo/trainer", "gonogo/observer", "gonogo/cli", "gonogo/goodput"),
    *("gonogo/timeline", "gonogo/watch", "gonogo/ledger"),
    *("nsa/attention", "nsa/attention/gpu", "nsa/data", "nsa/model"),
    *(f"{house}/{floor}" for house, floors in FLOORS.items() for floor in floors),
    *(f"service/{path.name}" for path in (ROOT / "service").glob("[!_]*") if path.is_dir()),
)


@pytest.fixture(scope="module")
def lawful_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty packages of the same names under the same law."""
    tree = tmp_path_factory.mktemp("tree")
    (tree / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for name in PACKAGES:
        (tree / name).mkdir(parents=True, exist_ok=True)
        (tree / name / "__init__.py").write_text("")
    for house in ("gonogo", "gonogo/supervise", "service", "worker", "nsa", "nsa/attention"):
        for path in (ROOT / house).glob("*.py"):
            (tree / house / path.name).write_text("")
    for adapter, library in ADAPTERS.items():
        (tree / "gonogo" / "trainer" / f"{adapter}.py").write_text(f"import {library}\n")
    (tree / "nsa" / "attention" / "hf.py").write_text("import transformers\n")
    (tree / "gonogo" / "trainer" / "position.py").write_text("")
    (tree / "lab" / "attached.py").write_text("import gonogo.trainer.position\n")
    for name in ("directory", "failures", "words"):
        (tree / "gonogo" / "judge" / f"{name}.py").write_text("")
    return tree


def test_lawful_packages_pass(lawful_tree: Path) -> None:
    lawful = lint_imports(lawful_tree)
    assert lawful.returncode == 0, lawful.stdout + lawful.stderr


FORBIDDEN = (
    ("service", "import worker"),
    ("worker/claims", "import torch"),
    ("worker/host", "import worker.shipping"),
    ("worker/engine", "import worker.shipping"),
    ("worker/shipping", "import worker.claims"),
    ("worker/shipping", "import redis"),
    ("nsa", "import gonogo"),
    ("nsa/attention", "import nsa.config"),
    ("nsa/attention", "import transformers"),
    ("nsa/attention/gpu", "import nsa.attention.operation"),
    ("gonogo/contract", "import gonogo.judge"),
    ("gonogo/judge", "import httpx"),
    ("gonogo/watch", "import gonogo.judge.gate"),
    ("gonogo/judge/facts", "import gonogo.judge.gate"),
    ("gonogo/judge/compare", "import gonogo.judge.gate"),
    ("gonogo/judge/gate", "import gonogo.judge.compare"),
    ("gonogo/judge", "import gonogo.supervise"),
    ("gonogo/judge", "import lab"),
    ("service", "import lab"),
    ("lab", "import service"),
    ("service/db", "import service.experiments"),
    ("service/experiments", "import service.http"),
    ("service/evidence", "import service.rest"),
    ("service/queries", "import service.evidence"),
    ("service/rest", "import sqlalchemy"),
    ("service/report", "import sqlalchemy"),
    ("service/pages", "import sqlalchemy"),
    ("gonogo/supervise/keeper", "import pydantic"),
    ("gonogo/supervise/keeper", "import gonogo.contract"),
    ("gonogo/supervise/launch", "import gonogo.rundir"),
    ("gonogo/supervise/evidence", "import gonogo.supervise.watcher"),
    ("gonogo/supervise/watcher", "import httpx"),
    ("gonogo/supervise/watcher", "import worker"),
    ("gonogo/trainer", "import pydantic"),
    ("gonogo/trainer", "import torch"),
    ("gonogo/trainer", "import transformers"),
    ("gonogo/trainer", "import gonogo.contract"),
    ("gonogo/cli", "import service"),
    ("gonogo/cli", "import redis"),
    ("gonogo/goodput", "import gonogo.judge"),
)


@pytest.fixture(scope="module")
def broken_law(lawful_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the linter says when every forbidden import is made, each by a module of its own."""
    tree = tmp_path_factory.mktemp("broken") / "tree"
    shutil.copytree(lawful_tree, tree)
    for number, (package, statement) in enumerate(FORBIDDEN):
        (tree / package / f"culprit{number}.py").write_text(statement + "\n")
    broken = lint_imports(tree)
    assert broken.returncode == 1
    return broken.stdout


@pytest.mark.parametrize("number", range(len(FORBIDDEN)))
def test_a_forbidden_import_is_seen(broken_law: str, number: int) -> None:
    package, statement = FORBIDDEN[number]
    culprit = f"{package.replace('/', '.')}.culprit{number}"
    target = statement.removeprefix("import ")
    assert re.search(rf"{re.escape(culprit)} -> {re.escape(target)}\b", broken_law), statement


def test_the_law_covers_every_package_of_the_tree() -> None:
    graph = grimp.build_graph("gonogo", "lab", "service", "worker", "nsa", cache_dir=None)
    for name in (
        "gonogo.contract",
        "gonogo.judge",
        "gonogo.planning",
        "gonogo.supervise",
        "gonogo.trainer",
        "gonogo.goodput",
        "gonogo.cli",
        "lab",
        "service",
        "worker",
        "nsa",
    ):
        assert name in graph.modules
