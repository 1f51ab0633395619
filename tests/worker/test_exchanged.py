"""Does a living run need a file of its release again, once another was installed over it?

`pip install --upgrade` puts new files where the old ones were: what is imported or read for the
first time after that is of another release than what runs.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gonogo.contract.outcome import OutcomeCode
from gonogo.rundir import load_all_lines
from tests.supervise.runs import ROOT, starting, wait_until
from tests.worker.control_plane import FakeControlPlane, RunStore, serving
from tests.worker.test_watcher_process import environ_of

TRAINER = Path("tests") / "supervise" / "heartbeat_trainer.py"


def install(release: Path) -> None:
    """Make a folder of what supervises a run and ships it, and of the test's trainer."""
    for name in ("gonogo", "worker"):
        shutil.copytree(ROOT / name, release / name, ignore=shutil.ignore_patterns("*.pyc"))
    (release / TRAINER).parent.mkdir(parents=True)
    shutil.copy(ROOT / TRAINER, release / TRAINER)


def exchange(release: Path) -> None:
    """Install another release over it, of which nothing fits."""
    for path in list(release.rglob("*")):
        if path.suffix == ".py":
            path.write_text("raise SystemExit('another release was loaded')\n")
        elif path.is_file():
            path.unlink()


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("hang:rank=0,step=12,section=backward", OutcomeCode.STALLED),
        (None, OutcomeCode.COMPLETED),
        ("crash:rank=0,step=12", OutcomeCode.NONZERO_EXIT),
    ],
)
def test_what_lives_needs_no_file_of_its_release_again(
    tmp_path: Path, fault: str | None, reason: OutcomeCode
) -> None:
    """It is watched, halted with evidence, ended and shipped by what it began with."""
    release = tmp_path / "release"
    install(release)
    plane = FakeControlPlane()
    with serving(plane), starting(tmp_path, "worker.keeper_process", release) as new_run:
        run = new_run(
            environ=environ_of(plane), fault=fault, steps=40, world_size=1,
            identity={"world_size": 1}, train={"step_s": 0.2},
        )  # fmt: skip
        store = plane.runs.setdefault(run.order.run, RunStore(token=1))
        run.wait_for_step(3)
        wait_until(lambda: store.telemetry, "its watcher ships")
        exchange(release)
        record = run.wait_for_exit()
        assert record.reason is reason, record.text
        assert run.living() == []
    lines = [line.decode() for line in load_all_lines(run.dir.heartbeat(0))]
    assert store.lines["0"] == lines
    assert store.events()[-1] == "end"
    if reason is OutcomeCode.STALLED:
        evidence = run.halts()[0].evidence
        assert evidence
        assert all((run.path / path).is_file() for path in evidence)
    told = "".join(path.read_text(errors="replace") for path in run.path.glob("*.log"))
    assert "another release" not in told
