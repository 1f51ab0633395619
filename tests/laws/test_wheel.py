"""What does a pip user get? The wheel is built, opened, and used where nothing else is there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.laws.recipe import run_recipe

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "gonogo", "lab", "service", "worker", "nsa")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree (building writes beside it)."""
    tree = tmp_path_factory.mktemp("tree")
    ignored = ["--exclude=__pycache__", "--exclude=*.egg-info"]
    packed = subprocess.run(
        ["tar", "-C", str(ROOT), "-c", *ignored, *SOURCES], check=True, capture_output=True
    )
    subprocess.run(["tar", "-C", str(tree), "-x"], check=True, input=packed.stdout)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."]
    built = subprocess.run(command, cwd=tree, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (found,) = (tree / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """Names of the files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def required(rows: list[str] | None, extras: frozenset[str] = frozenset()) -> Iterator[Requirement]:
    """Yield the requirements that apply here, of `Requires-Dist` rows."""
    for requirement in map(Requirement, rows or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": e}) for e in extras | {""}):
            yield requirement


def needed(wheel: Path) -> dict[str, Distribution]:
    """Return what the wheel says it needs, and what that needs, as it is installed here."""
    (meta,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA"))
    lines = zipfile.ZipFile(wheel).read(meta).decode().split("\n\n")[0].splitlines()
    rows = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-D")]
    found: dict[str, Distribution] = {}
    waiting = list(required(rows))
    while waiting:
        requirement = waiting.pop()
        if requirement.name.lower() not in found:
            there = distribution(requirement.name)
            found[requirement.name.lower()] = there
            waiting += required(there.requires, frozenset(requirement.extras))
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, what it says it needs, and nothing else; no network."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    here = Path(sysconfig.get_path("purelib"))
    there = Path(sysconfig.get_path("purelib", "venv", {"base": str(place)}))
    for one in needed(wheel).values():
        for file in one.files or ():
            target = there / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(here / file, target)
    command = [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "install"]
    installed = [*command, "--no-index", "--no-deps", "--quiet", str(wheel)]
    subprocess.run(installed, check=True, capture_output=True)
    return place


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


@pytest.mark.long
def test_the_wheel_alone_supervises_a_run_as_the_heartbeat_page_says(
    environment: Path, tmp_path: Path
) -> None:
    (tmp_path / "docs/examples").mkdir(parents=True)
    shutil.copy2(ROOT / "docs/examples/trainer.py", tmp_path / "docs/examples")
    (tmp_path / "scratch").mkdir()
    path = f"{environment / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"
    run = run_recipe(tmp_path, {"PATH": path, "HOME": str(tmp_path)}, tmp_path / "scratch")
    assert not (run.path / ".torchrun").exists(), "no torch, so no torchrun"
    assert (environment / "bin/py-spy").exists()


ATTACHED = """
import gonogo.trainer

with gonogo.trainer.attach() as beat:
    for step in range(1, beat.steps + 1):
        beat.step(loss=5 - step / 100, tokens=64)
        if beat.should_halt():
            break
"""


def torch_beside(place: Path) -> Path:
    """Make a folder that holds torch and what it needs, by links, for a PYTHONPATH to name."""
    here = Path(sysconfig.get_path("purelib"))
    waiting, seen = ["torch"], set[str]()
    place.mkdir()
    while waiting:
        name = waiting.pop()
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # what this platform's torch does without
        seen.add(name)
        for file in found.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (place / top).exists():
                (place / top).symlink_to(here / top)
        wanted = {row.name for row in required(found.requires)}
        waiting += sorted(wanted - seen)
    return place


def gonogo(environment: Path, home: Path, *words: str, **environ: str) -> str:
    """Run a command of the wheel, which must end with 0, and return what it prints."""
    done = subprocess.run(
        [str(environment / "bin/gonogo"), *words],
        cwd=home,
        env={
            "PATH": f"{environment / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": str(home),
            "GONOGO_HOME": str(home / "gonogo"),
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_what_was_recorded(environment: Path, home: Path) -> None:
    """Let the wheel judge, replay and verify the one run of a home."""
    (run,) = (home / "gonogo/runs").iterdir()
    judged = json.loads(gonogo(environment, home, "judge", str(run), "--json"))
    assert judged["verdict"] == "GO"
    replayed = json.loads(gonogo(environment, home, "replay", "last", "--json"))
    assert replayed["equal"], replayed
    assert "run_directory" in replayed["checked"]
    assert "1 decision" in gonogo(environment, home, "verify")


def test_the_wheel_alone_runs_replays_and_verifies(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ATTACHED)
    gonogo(environment, tmp_path, "run", "--steps", "20", "--", "python", "mine.py")
    check_what_was_recorded(environment, tmp_path)


@pytest.mark.long
def test_the_wheel_and_torch_run_the_script_of_the_trainers_page(
    environment: Path, tmp_path: Path
) -> None:
    page = (ROOT / "docs/how-to/attach.md").read_text()
    (script,) = re.findall(r"```python\n(# train\.py\n.*?)```", page, re.S)
    (call,) = re.findall(r"```sh\ngonogo (run .* python train\.py)\n```", page)
    (tmp_path / "train.py").write_text(script)
    torch = str(torch_beside(tmp_path / "torch"))
    gonogo(environment, tmp_path, *call.split(), PYTHONPATH=torch)
    check_what_was_recorded(environment, tmp_path)


@pytest.mark.parametrize("module", ["service", "worker", "nsa", "torch", "prometheus_client"])
def test_the_environment_of_the_wheel_holds_nothing_of_the_applications(
    environment: Path, module: str
) -> None:
    command = [str(environment / "bin/python"), "-c", f"import {module}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=environment)
    assert f"No module named '{module}'" in done.stderr
