"""What does a pip user get? The wheel is built and opened."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "gonogo", "service", "worker", "nsa")


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in a wheel built from a copy of the tree (building writes beside it)."""
    tree = tmp_path_factory.mktemp("tree")
    ignored = ["--exclude=__pycache__", "--exclude=*.egg-info"]
    packed = subprocess.run(
        ["tar", "-C", str(ROOT), "-c", *ignored, *SOURCES], check=True, capture_output=True
    )
    subprocess.run(["tar", "-C", str(tree), "-x"], check=True, input=packed.stdout)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."]
    built = subprocess.run(command, cwd=tree, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_ships_gonogo_and_no_other_package(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gonogo"}


def test_every_source_file_of_gonogo_is_in_the_wheel(names: set[str]) -> None:
    kinds = {".py", ".yaml", ".json", ".typed"}
    sources = (path for path in (ROOT / "gonogo").rglob("*") if path.suffix in kinds)
    expected = {str(path.relative_to(ROOT)) for path in sources}
    expected |= {"gonogo/py.typed"}
    assert expected <= names


@pytest.mark.parametrize("plan", ["demo", "m7c-125m"])
def test_the_bundled_plans_are_in_the_wheel(names: set[str], plan: str) -> None:
    assert [name for name in names if name.endswith((f"/{plan}.yaml", f"/{plan}.yml"))]


@pytest.mark.parametrize("word", ["plan", "order", "heartbeat", "finding", "decision", "exit"])
def test_the_schemas_are_in_the_wheel(names: set[str], word: str) -> None:
    assert [name for name in names if name.endswith(f"{word}.json")]


def test_the_licence_travels_along(names: set[str]) -> None:
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
