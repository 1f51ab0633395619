"""Does a report name the bytes that a run left, and say which are those that were judged?"""

from __future__ import annotations

import base64
import json
import os
import socket
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from gonogo.contract.api import ArtifactView
from service.evidence.artifacts import list_artifacts
from service.queries.runs import load_run
from service.report import files
from service.report.files import SealedFile, load_files
from service.report.markdown import build_report
from service.report.sections import artifact_parts
from tests.service.conftest import Plane
from tests.service.fake_run import save_checkpoint
from tests.service.fake_worker import FakeWorker, beats
from tests.service.report.views import decision, report_view, run_report


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """SQLite alone: the statements are plain."""
    return sqlite_url


def row_of(text: str, name: str) -> str:
    return next(row for row in text.splitlines() if row.startswith(f"| `{name}` |"))


def halted_and_resumed(plane: Plane, worker: FakeWorker) -> tuple[str, str]:
    """A phase whose first attempt ended at step 30 and whose second went on after step 20."""
    experiment = plane.submit()
    for _ in range(2):
        worker.run_through(plane.next_order(worker))
    first = plane.next_order(worker)
    assert worker.home is not None
    folder = worker.home / first.run
    folder.mkdir()
    save_checkpoint(folder, step=20)
    (folder / "k_stats.csv").write_text("step,layer,distance_blocks\n1,0,6.5\n")
    hot = {"steps": [3], "hot_spots": [{"name": "aten::mm", "calls": 1, "share": 1.0}]}
    (folder / "profile.json").write_text(json.dumps(hot))
    worker.start(first)
    lines = {rank: beats(first, rank, upto=30) for rank in range(2)}
    worker.ship(first, lines)
    plane.call("POST", f"/experiments/{experiment}/halt", json={"reason": "lunch"})
    worker.end(first, lines, "halted", "operator", code=3)
    plane.wait_state(experiment, "awaiting_decision")
    plane.call("POST", f"/experiments/{experiment}/resume", json={"reason": "back"})
    second = plane.next_order(worker)
    assert second.resume_from is not None
    worker.run_through(second)
    plane.wait(lambda: plane.experiment(experiment)["phases"][2]["verdict"] == "GO", "a GO")
    return experiment, first.run


@pytest.mark.long
def test_a_resumed_run_is_told_from_its_files(plane: Plane) -> None:
    home = plane.home / "runs"
    home.mkdir()
    worker = plane.worker(host=socket.gethostname(), home=home)
    experiment, run = halted_and_resumed(plane, worker)
    text = plane.call("GET", f"/experiments/{experiment}/report").text
    part = text.split("## smoke: GO, 2 attempts")[1].split("\n## ")[0]
    assert "Done again after a resume, and left out: attempt 1: steps 21 to 30." in part
    assert "| rank 0 | 40 | 0.2 s |" in part
    assert "| 0 | 6.5 |" in part
    assert "| `aten::mm` | 1 | 0 s | 0 s | 100.0 % |" in part
    first = part.split("### Attempt 2")[0]
    order = (home / run / "order.json").read_bytes()
    sealed = f"| {len(order)} | `{sha256(order).hexdigest()}` | as judged |"
    assert row_of(first, "order.json").endswith(sealed)
    beats_file = sha256((home / run / "heartbeat_rank1.jsonl").read_bytes()).hexdigest()
    assert beats_file in row_of(first, "heartbeat_rank1.jsonl")
    told = text.split("## Timeline")[1].split("\n## ")[0]
    for line in ("halt is asked for: lunch", "attempt 2 is queued (resume after step 20)"):
        assert line in told
    (home / run / "exit.json").write_text("{}")
    again = plane.call("GET", f"/experiments/{experiment}/report").text
    assert "**DIFFERS from the file that was judged**" in row_of(
        again.split("## smoke: GO, 2 attempts")[1], "exit.json"
    )


def test_what_was_shipped_is_told_where_the_directory_is_elsewhere(plane: Plane) -> None:
    experiment = plane.submit()
    worker = plane.worker()
    order = plane.next_order(worker)
    content = base64.b64encode(b"stack").decode()
    report = {
        "token": order.token, "path": "evidence/s.txt", "content_b64": content, "truncated": True,
    }  # fmt: skip
    worker.start(order)
    lines = {rank: beats(order, rank) for rank in range(2)}
    worker.ship(order, lines)
    assert worker.post(f"/runs/{order.run}/evidence", report).status_code == 200
    worker.end(order, lines)
    plane.wait(lambda: plane.experiment(experiment)["phases"][0]["verdict"], "a verdict")
    text = plane.call("GET", f"/experiments/{experiment}/report").text
    cut = f"`{sha256(b'stack').hexdigest()}` | of its first 5 bytes |"
    assert row_of(text, "evidence/s.txt").endswith(cut)
    assert row_of(text, "exit.json").endswith("| as judged |")


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path, row = tmp_path / "a", ArtifactView(path="a", bytes=3, here=True)
    path.write_bytes(b"one")
    first = files._seal(path, row, {}, 9)
    assert first == SealedFile(path="a", bytes=3, sha256=sha256(b"one").hexdigest())
    read = files._digest.cache_info().misses
    assert files._seal(path, row, {}, 9) == first
    assert files._digest.cache_info().misses == read
    path.write_bytes(b"three")
    assert files._seal(path, row, {}, 9).sha256 == sha256(b"three").hexdigest()
    path.unlink()
    assert files._seal(path, row, {}, 9).note.startswith("cannot be read: ")
    os.mkfifo(path)
    assert files._seal(path, row, {}, 9).note.startswith("cannot be read: "), "nor waited for"
    path.unlink()
    path.write_bytes(b"three")
    assert files._seal(path, row, {}, 2).note == "too large to be read for a report"
    said = files._seal(path, row, {"a": "d" * 64}, 2)
    assert (said.sha256, said.note) == ("d" * 64, "as its manifest says")


def test_no_more_is_read_than_a_report_has_time_for_the_smallest_first(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holes cost a trainer nothing, and manifests may be as many and as long as it likes."""
    home = plane.home / "runs"
    plane.submit()
    worker = plane.worker(host=socket.gethostname(), home=home)
    order = plane.next_order(worker)
    folder = home / order.run
    folder.mkdir(parents=True)
    (folder / "order.json").write_text(json.dumps(order.document()))
    worker.start(order)
    for step in (20, 30):
        save_checkpoint(folder, step=step)
    saved = sorted((folder / "checkpoints").iterdir())
    for row in saved:
        (row / "more.bin").write_bytes(b"x" * 100_000)
        document = json.loads((row / "manifest.json").read_text())
        document["files"]["more.bin"] = {"bytes": 100_000, "sha256": "d" * 64}
        (row / "manifest.json").write_text(json.dumps(document))
    with (saved[1] / "manifest.json").open("a") as stream:
        stream.write(" " * 5_000)
    monkeypatch.setattr(files, "MAX_HASHED_IN_ALL", 50_000)
    monkeypatch.setattr(files, "MAX_MANIFEST", 5_000)
    with plane.context.store.open_session() as session:
        run = load_run(session, order.run)
        rows = {row.path: row for row in load_files(session, run, list_artifacts(session, run))[0]}
    assert rows["order.json"].note == ""
    told = {Path(path).parent.name: row for path, row in rows.items() if path.endswith("more.bin")}
    notes = {"as its manifest says": "d" * 64, "too large to be read for a report": None}
    assert {row.note: row.sha256 for row in told.values()} == notes


def test_files_that_are_too_many_are_counted() -> None:
    rows = (SealedFile(path="a|b", bytes=1, sha256="e" * 64),)
    text = build_report(report_view(run_report(files=rows, more_files=7)))
    assert f"| `a\\|b` | 1 | `{'e' * 64}` |  |" in text
    assert "And 7 more." in text


def test_a_run_without_files_says_where_they_are() -> None:
    run = run_report()
    assert artifact_parts(run) == ["In `/runs/x` on gpu-7: nothing of it is here."]
    nowhere = run.artifacts.model_copy(update={"dir": None})
    assert artifact_parts(replace(run, artifacts=nowhere)) == ["It has no directory."]


def test_what_was_judged_is_held_against_what_is_there() -> None:
    judged = decision(facts={"files": {"exit.json": {"bytes": 1, "sha256": "a" * 64}}})
    for digest, words in (("a", "as judged"), ("b", "**DIFFERS from the file that was judged**")):
        rows = (SealedFile(path="exit.json", bytes=1, sha256=digest * 64),)
        text = "\n".join(artifact_parts(run_report(files=rows, decision=judged)))
        assert f"`{digest * 64}` | {words} |" in text
