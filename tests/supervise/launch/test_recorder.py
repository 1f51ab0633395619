"""Is the flight recorder on in whatever torch a program has, and no newer torch made to warn?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gonogo.supervise.launch.recorder import recorder_names

NEW, OLD = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
PACKAGES = "lib/python3.11/site-packages"


def environment(root: Path, *installed: str, packages: str = PACKAGES) -> Path:
    """Make a folder of Python with a torch in it; returns where its programs are."""
    for name in installed:
        (root / packages / name).mkdir(parents=True)
    programs = root / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "torchrun"):
        (programs / name).touch(mode=0o755)
    return programs


@pytest.mark.parametrize(
    ("installed", "older"),
    [("torch-2.13.0+cpu", False), ("torch-2.9.0", False), ("torch-2.8.0", True),
     ("torch-1.13.1", True), ("torchvision-0.24.0", True)],
)  # fmt: skip
def test_the_older_name_is_given_where_torch_is_older_or_not_found(
    tmp_path: Path, installed: str, older: bool
) -> None:
    programs = environment(tmp_path, f"{installed}.dist-info")
    names = recorder_names({"command": ["torchrun", "train.py"]}, str(programs))
    assert int(names[NEW]) >= 1000
    assert (OLD in names) == older


def test_a_program_by_its_place_has_the_torch_beside_it(tmp_path: Path) -> None:
    first = environment(tmp_path / "a", "torch-2.13.0.dist-info")
    second = environment(tmp_path / "b", "torch-2.4.0.dist-info")
    assert OLD in recorder_names({"command": [str(second / "python")]}, str(first))
    order = {"command": ["a/bin/python"], "cwd": str(tmp_path)}
    assert OLD not in recorder_names(order, str(second))


def test_what_has_no_packages_has_those_of_the_python_that_it_would_start(tmp_path: Path) -> None:
    programs = environment(tmp_path / "venv", "torch-2.13.0.dist-info")
    bare = environment(tmp_path / "bare")
    (bare / "run.sh").touch(mode=0o755)
    path = f"{programs}{os.pathsep}{bare}"
    assert OLD not in recorder_names({"command": ["run.sh"]}, path)
    assert OLD in recorder_names({"command": ["run.sh"]}, str(bare)), "nobody knows"


def test_of_two_the_oldest_counts(tmp_path: Path) -> None:
    programs = environment(tmp_path, "torch-2.13.0.dist-info")
    (tmp_path / "local/lib/python3.12/dist-packages/torch-2.6.0.dist-info").mkdir(parents=True)
    assert OLD in recorder_names({"command": ["python"]}, str(programs))


def test_an_entry_has_the_torch_of_this_interpreter() -> None:
    assert OLD not in recorder_names({"entry": "nsa.train"}, "/nowhere")
