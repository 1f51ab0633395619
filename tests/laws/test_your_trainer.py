"""Does docs/how-to/attach.md work as it stands? Every block is saved and run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gonogo.rundir import RunDir
from tests.trainer.runs import ROOT, environment, lines_of, said, steps_of

PAGE = (ROOT / "docs/how-to/attach.md").read_text()
PASSED = ["completed", "identity", "coverage", "preflight", "no_halt_finding"]
SECTIONS = {"Plain PyTorch": 20, "transformers": 12, "Lightning": 12, "Accelerate": 16}


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, code) of every block."""
    return re.findall(r"```(\w+)\n(.*?)```", text, re.S)


def is_file(code: str) -> str | None:
    """The name that the page gives to a block, in its first line."""
    named = re.match(r"# ([\w.]+)\n", code)
    return None if named is None else named.group(1)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with every file that the page asks to save."""
    place = tmp_path / "mine"
    place.mkdir()
    for _, code in blocks(PAGE):
        name = is_file(code)
        if name is not None:
            (place / name).write_text(code)
    (tmp_path / "scratch").mkdir()
    return place


def follow(
    title: str, folder: Path, more: str = "", code: int = 0
) -> tuple[RunDir, dict[str, Any]]:
    """Run the commands of a section; returns the run directory and what the judge says of it.

    Args:
        title: of the section.
        folder: that holds the files of the page.
        more: options of `gonogo run` besides those of the page.
        code: with which the last command ends.
    """
    commands = [code for kind, code in blocks(section(title)) if kind == "sh" and not is_file(code)]
    scratch = folder.parent / "scratch"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = environment(None, PATH=path, TMPDIR=str(scratch), GONOGO_HOME=str(scratch / "home"))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands).replace(" -- ", f"{more} -- ")],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == code, done.stdout + done.stderr
    (run,) = (scratch / "home" / "runs").iterdir()
    judged = subprocess.run(
        ["gonogo", "judge", str(run), "--json"], env=env, capture_output=True, text=True
    )
    return RunDir(run), json.loads(judged.stdout)


def test_every_block_of_the_page_is_saved_or_run() -> None:
    of_sections = [block for title in SECTIONS for block in blocks(section(title))]
    assert of_sections == blocks(PAGE)
    assert {kind for kind, _ in of_sections} == {"python", "sh"}
    assert all(is_file(code) for kind, code in of_sections if kind == "python")


@pytest.mark.long  # each imports torch twice or more; the adapters have quicker tests of their own
@pytest.mark.parametrize("title", SECTIONS)
def test_a_script_of_the_page_is_supervised_and_judged_as_the_page_says(
    title: str, folder: Path
) -> None:
    run, decision = follow(title, folder)
    criteria = {row["id"]: row["outcome"] for row in decision["criteria"]}
    assert [name for name, outcome in criteria.items() if outcome == "pass"] == PASSED
    assert decision["verdict"] == "GO"
    lines = lines_of(run.path)
    assert steps_of(lines, "step_end") == list(range(1, SECTIONS[title] + 1))
    assert all(line.loss is not None for line in said(lines, "progress"))
    assert all(line.tokens for line in said(lines, "step_end"))
    assert [row for row in decision["findings"] if row["severity"] == "halt"] == []


BREAKING = """
import os, signal, time
whole, calls = torch.Tensor.backward, []

def backward(loss, *args, **kwargs):
    calls.append(loss)
    if len(calls) == 6:
        {fault}
    return whole(loss, *args, **kwargs)

torch.Tensor.backward = backward
"""
"""What goes wrong in the sixth backward of somebody's script."""
FAULTS = {
    "hang": ("time.sleep(600)", "stall", "backward"),
    "nan": ("loss = loss * float('nan')", "non_finite", None),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", "process_death", None),
}
"""Fault → its line, the detector that finds it, and the section that it names."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("transformers", "hang"),
        ("transformers", "nan"),
        ("Lightning", "hang"),
        ("Lightning", "kill"),
        ("Accelerate", "nan"),
    ],
)
def test_a_fault_in_a_script_of_the_page_is_found_and_named(
    title: str, kind: str, folder: Path
) -> None:
    line, detector, section_ = FAULTS[kind]
    (name,) = (is_file(code) for kind_, code in blocks(section(title)) if kind_ == "python")
    script = folder / str(name)
    broken = script.read_text().replace(
        "\nimport torch\n", f"\nimport torch\n{BREAKING.format(fault=line)}\n", 1
    )
    assert "calls.append" in broken
    script.write_text(broken)
    soon = " --stall-s 10" if kind == "hang" else ""
    _, decision = follow(title, folder, more=soon, code=10)
    assert decision["verdict"] == "NO_GO"
    halt = next(row for row in decision["findings"] if row["severity"] == "halt")
    assert (halt["detector"], halt["rank"]) == (detector, None if kind == "nan" else 0)
    assert halt["step"] in ((6, 7) if kind == "nan" else (6,)), halt
    assert section_ in (None, halt["section"])
    assert decision["cause"]["unknown"] is False or decision["cause"]["look"]
