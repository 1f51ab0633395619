"""`gonogo abandon` as a person meets it: the doctor names the run, and one line ends it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gonogo.rundir import SHIPPED_NAME, save_json
from gonogo.supervise.abandoned_runs import note_refusal
from gonogo.supervise.processes import boot_id, find_process
from tests.cli.test_output_schemas import fits
from tests.cli.typed import typed
from tests.supervise.orders import completed, make_order, make_run_dir


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    """The directory of an ended run that the control plane refuses, in the home `tmp_path`."""
    found = make_run_dir(tmp_path / "runs", make_order())
    save_json(found.exit, completed().wire())
    note_refusal(found.path, "403: not the claim's secret", 5.0)
    return found.path


def rows_of(home: Path) -> list[dict[str, str]]:
    done = typed(home, "doctor", "--json", GONOGO_URL="http://127.0.0.1:1")
    return [row for row in json.loads(done.stdout)["checks"] if row["id"] == "runs"]


def test_what_the_doctor_says_is_what_is_typed(tmp_path: Path, refused: Path) -> None:
    (row,) = rows_of(tmp_path)
    assert row["outcome"] == "warn"
    assert "not the claim's secret" in row["text"]
    command = row["text"].rpartition("gonogo ")[2].replace("TEXT", "lost").split()
    done = typed(tmp_path, *command, "--json")
    fits("abandon", json.loads(done.stdout))
    assert (done.returncode, json.loads(done.stdout)["dir"]) == (0, str(refused))
    assert rows_of(tmp_path) == [{"id": "runs", "outcome": "pass", "text": "none is refused"}]
    again = typed(tmp_path, *command)
    assert (again.returncode, "is given up: lost" in again.stdout) == (0, True)


def test_a_living_run_is_not_given_up(tmp_path: Path, refused: Path) -> None:
    me = find_process(os.getpid())
    assert me is not None
    state = {"pid": me.pid, "start_ticks": me.start_ticks, "boot_id": boot_id()}
    save_json(refused / "keeper.json", state)
    done = typed(tmp_path, "abandon", refused.name, "--reason", "lost")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "lives" in done.stderr
    assert not (refused / SHIPPED_NAME).exists()


def test_it_wants_a_reason_and_a_run(tmp_path: Path, refused: Path) -> None:
    assert typed(tmp_path, "abandon", refused.name).returncode == 2
    assert typed(tmp_path, "abandon", refused.name, "--reason", " ").returncode == 2
    done = typed(
        tmp_path, "abandon", refused.name, "--reason", os.fsdecode(b"verloren: Gr\xfc\xdfe")
    )
    assert (done.returncode, done.stderr.count("\n"), "UTF-8" in done.stderr) == (2, 1, True)
    assert not (refused / SHIPPED_NAME).exists()
    assert typed(tmp_path, "abandon", make_order().run, "--reason", "x").returncode == 3
