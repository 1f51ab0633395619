"""What the pages show; what others wrote is only text."""

from __future__ import annotations

import base64
import json
import re
import socket
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import httpx
import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from gonogo.cli.app import app
from gonogo.judge.failures import explain
from service.db.schema import RunRow
from service.pages.render import STATIC
from tests.service.conftest import Plane
from tests.service.fake_worker import beats

NASTY = "<script>alert(1)</script>"


@pytest.fixture
def pages(plane: Plane) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=plane.context.url, timeout=30, trust_env=False) as client:
        client.get(plane.call("POST", "/sign-in-links").json()["url"])
        yield client


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.text)))


EVIDENCE = {
    "evidence/01_stall/stacks_rank0.txt": "MainThread (thread 1)\n    wait (a.py:1)\n",
    "evidence/01_stall/stacks_rank1.txt": "MainThread (thread 2)\n    spin (a.py:9)\n",
    "evidence/01_stall/stacks_rank2.txt": "MainThread (thread 3)\n    wait (a.py:1)\n",
    "evidence/01_stall/what? #1 at 50%41.txt": "odd name\n",
    "evidence/01_stall/collectives.txt": f"rank 1 did not come {NASTY}\n",
}


def halted(plane: Plane, home: Path) -> tuple[str, str]:
    """Run an experiment that is halted in smoke; return its id and the run's."""
    experiment = plane.submit(name=NASTY, labels={"owner": NASTY, "team": "a"})
    worker = plane.worker(home=home)
    for _ in range(2):
        worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    worker.start(order)
    lines = {rank: beats(order, rank, upto=12, done=False) for rank in range(2)}
    worker.ship(order, lines)
    finding = {
        "v": 1, "detector": "stall", "severity": "halt", "rank": 1, "section": "backward",
        "step": 12, "at": 1.0, "key": "k1", "text": f"rank 1 stands {NASTY}",
        "evidence": list(EVIDENCE),
    }  # fmt: skip
    answer = worker.post(
        f"/runs/{order.run}/findings", {"token": order.token, "findings": [finding]}
    )
    assert answer.status_code == 200, answer.text
    for path, text in EVIDENCE.items():
        content = base64.b64encode(text.encode()).decode()
        report = {"token": order.token, "path": path, "content_b64": content}
        assert worker.post(f"/runs/{order.run}/evidence", report).status_code == 200
    log = {"name": "rank1.log", "start": 0, "end": len(NASTY), "text": NASTY}
    assert worker.telemetry(order, logs=[log]).status_code == 200
    worker.end(order, lines, reason="stalled", by="watchdog", findings=1, code=None)
    plane.wait_state(experiment, "finished")
    return experiment, order.run


def test_an_empty_service_says_how_to_begin(pages: httpx.Client) -> None:
    assert "gonogo submit demo" in text_of(pages.get("/"))
    assert "gonogo worker" in text_of(pages.get("/workers"))
    assert "Nothing has called" in text_of(pages.get("/alerts"))


def test_a_running_experiment_shows_live_numbers_and_how_its_gate_stands(
    plane: Plane, pages: httpx.Client
) -> None:
    experiment = plane.submit()
    worker = plane.worker()
    for _ in range(2):
        worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    worker.start(order)
    worker.ship(order, {rank: beats(order, rank, upto=20) for rank in range(2)})
    answer = pages.get(f"/experiments/{experiment}")
    text = text_of(answer)
    for part in ("20 / 40", "4.3125", "5120", "nothing is decided", "fetch_share", "≤ 0.3"):
        assert part in text
    assert answer.text.count("<polyline") >= 2
    assert 'data-every-s="2"' in answer.text
    assert re.search(r"As of \d{4}-\d\d-\d\d", text)
    assert "Left out: throughput" in text


def test_a_running_experiment_whose_run_is_queued_is_not_shown_as_running(
    plane: Plane, pages: httpx.Client
) -> None:
    experiment, worker = plane.submit(), plane.worker()
    worker.run_through(plane.next_order(worker))
    plane.wait(lambda: plane.experiment(experiment)["waiting_for"], "the next run waits")
    assert plane.experiment(experiment)["state"] == "running"
    for path in ("/", f"/experiments/{experiment}"):
        html = pages.get(path).text
        assert '<span class="state waiting">waiting</span>' in html
        assert '<span class="state running">running</span>' not in html


def test_a_halted_experiment_says_why_and_shows_the_evidence(
    plane: Plane, pages: httpx.Client, tmp_path: Path
) -> None:
    experiment, run = halted(plane, tmp_path)
    answer = pages.get(f"/experiments/{experiment}")
    text = text_of(answer)
    assert f"Why: smoke: stall (rank 1, backward): rank 1 stands {NASTY}" in text
    for part in (
        "NO GO", "skipped", "stalled (policy), by watchdog", "gonogo replay dec_", "by local admin",
        f"owner={NASTY}", "team=a", "took",
    ):  # fmt: skip
        assert part in text
    typed = plane.experiment(experiment)["next"][0]["command"]
    assert typed == f"gonogo artifacts {run} evidence/01_stall/stacks_rank1.txt"
    assert typed in text
    for page in (f"/runs/{run}/artifacts", f"/experiments/{experiment}?run={run}"):
        links = re.findall(rf'href="(/runs/{run}/artifacts/[^"]+)"', pages.get(page).text)
        shown = {pages.get(unescape(link)).text for link in links}
        assert set(EVIDENCE.values()) <= shown, page
    stood = f"rank 1 did not come {NASTY} rank 1: spin (a.py:9) ranks 0, 2: wait (a.py:1)"
    assert stood in text
    assert "data-every-s" not in answer.text
    first = plane.experiment(experiment)["phases"][0]["runs"][0]
    earlier = text_of(pages.get(f"/experiments/{experiment}?run={first}"))
    assert f"{first} · first" in earlier
    assert "all 2 ranks reached step 1" in earlier
    assert "NO GO" in text_of(pages.get("/"))
    alerts = text_of(pages.get("/alerts"))
    assert "finding.halt" in alerts
    assert "unsubscribed" in alerts
    assert_only_text(pages, experiment, run)
    assert_files_are_shown(plane, pages, experiment, tmp_path / run)


def assert_only_text(pages: httpx.Client, experiment: str, run: str) -> None:
    """What others wrote is no markup, and no page runs a script of its own text."""
    for path in (
        "/", "/alerts", "/workers", f"/experiments/{experiment}", f"/runs/{run}/logs/rank1.log",
        f"/runs/{run}/artifacts", f"/experiments/{experiment}?run={NASTY}",
        f"/sign-in?next=/{NASTY}",
    ):  # fmt: skip
        answer = pages.get(path)
        assert answer.status_code == 200, path
        assert NASTY not in answer.text
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-inline" not in policy
        assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son\w+=", answer.text), path
    answer = pages.get("/experiments/%3Cscript%3Ealert(1)")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "there is no experiment" in answer.text
    assert "<script>" not in answer.text


def assert_files_are_shown(
    plane: Plane, pages: httpx.Client, experiment: str, folder: Path
) -> None:
    run = folder.name
    assert NASTY in unescape(pages.get(f"/runs/{run}/logs/rank1.log").text)
    assert pages.get(f"/runs/{run}/logs/passwd").status_code == 404
    folder.mkdir(exist_ok=True)
    row = plane.context.store.read(lambda session: session.get_one(RunRow, run))
    (folder / "order.json").write_text(json.dumps(row.order))
    (folder / "env.json").write_text("{}")
    here = update(RunRow).where(RunRow.id == run).values(host=socket.gethostname())
    plane.context.store.write(lambda session: session.execute(here) and None)
    assert "env.json" in text_of(pages.get(f"/runs/{run}/artifacts"))
    answer = pages.get(f"/runs/{run}/artifacts/env.json")
    assert (answer.status_code, answer.text) == (200, "{}")
    assert "sandbox" in answer.headers["content-security-policy"]
    assert pages.get(f"/runs/{run}/artifacts/..%2f..%2fkey").status_code in (404, 422)
    report = pages.get(f"/experiments/{experiment}/report")
    assert report.headers["content-type"].startswith("text/html")
    assert "<h1>NO_GO" in report.text
    assert "<svg" in report.text
    assert "script-src" not in report.headers["content-security-policy"]


def test_static_files_need_no_session_and_change_their_address(plane: Plane) -> None:
    for name in sorted(STATIC):
        answer = plane.http.get(f"/static/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(STATIC[name])
        assert "immutable" in answer.headers["cache-control"]
    assert plane.http.get("/static/render.py").status_code == 404


def test_a_refused_launch_is_told_once_wherever_one_looks(
    plane: Plane, pages: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user must repair what a host refuses to start, so it is not tried three times."""
    experiment, worker = plane.submit(), plane.worker()
    why = "command 'train' is not allowed on this host (GONOGO_WORKER_ALLOW of its worker names"
    order = plane.next_order(worker)
    worker.state(order, "check")
    worker.end(order, {}, "start_failed", "trainer", code=None, text=why)
    view = plane.wait_state(experiment, "finished")
    assert (view["verdict"], len(view["phases"][0]["runs"])) == ("NO_GO", 1)
    where = {"URL": plane.context.url, "API_KEY": plane.key(), "HOME": str(plane.home)}
    for name, value in where.items():
        monkeypatch.setenv(f"GONOGO_{name}", value)
    for command in ("show", "watch"):
        assert why in CliRunner().invoke(app, [command, experiment]).stdout
    assert why in text_of(pages.get(f"/experiments/{experiment}"))
    assert why in text_of(pages.get("/alerts"))


def test_a_known_failure_is_shown_with_its_cause_and_what_helps(
    plane: Plane, pages: httpx.Client
) -> None:
    experiment = plane.submit(set={"remedies": {}, "confirm": {"on": []}})
    worker = plane.worker()
    worker.end(plane.next_order(worker), {0: []}, "oom", code=1)
    plane.wait_state(experiment, "finished")
    known = explain("out_of_memory")
    assert known is not None
    shown = text_of(pages.get(f"/experiments/{experiment}"))
    assert f"diagnosis: out of memory: {known.cause}" in shown
    assert f"what helps: {known.remedy}" in shown
