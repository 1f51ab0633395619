"""Reports with the numbers of the heartbeats, written on request and after the end."""

from __future__ import annotations

import json
import socket
from typing import Any

from gonogo.contract.order import Order, ResumePoint
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.gate.rules import build_rules
from gonogo.planning.source import bundled_plan
from tests.judge.runs import build_run_record
from tests.service.conftest import Plane
from tests.service.fake_worker import beats
from tests.service.report.views import numbers_of, order_of


def made(order: Order, rank: int, **more: Any) -> list[str]:
    """Beats of uneven steps."""
    rows = [json.loads(line) for line in beats(order, rank, **more)]
    for number, row in enumerate(rows):
        row["mono"] += 0.013 * (number * number % 7) * rank
        row["ts"] = row["mono"]
    return [json.dumps(row) for row in rows]


def test_the_numbers_are_the_judges_over_two_boots() -> None:
    order = order_of()
    lines = {rank: made(order, rank, upto=25, done=False) for rank in range(2)}
    later = order.model_copy(update={"attempt": 2, "resume_from": ResumePoint(path="x", step=20)})
    for rank in range(2):
        again = [json.loads(line) for line in made(later, rank)]
        for row in again:
            row["mono"] += 1_000.0
            row["ts"] += 1_000.0
        lines[rank] += [json.dumps(row) for row in again]
    facts = build_facts(build_run_record(order, lines), build_rules(order))
    for rank in numbers_of(order, lines):
        pace = facts.pace[str(rank.rank)]
        assert rank.last_step == facts.ranks[str(rank.rank)].last_step == 40
        assert rank.median("step_s") == pace.median_step_s
        assert rank.section_s == pace.sections_s
        assert rank.series["tok_s"].count == pace.steps


def test_the_report_of_a_finished_experiment_lies_in_the_home(plane: Plane) -> None:
    plan = bundled_plan("demo")
    experiment = plane.submit({**plan, "phases": plan["phases"][1:3]})
    home = plane.home / "runs"
    home.mkdir()
    worker = plane.worker(host=socket.gethostname(), home=home)
    orders = []
    for _ in range(2):
        order = plane.next_order(worker)
        orders.append(order)
        (home / order.run).mkdir()
        worker.run_through(order)
    plane.wait_state(experiment, "finished")
    url, folder = f"/experiments/{experiment}/report", plane.home / "reports" / experiment
    answer = plane.call("GET", url)
    text = answer.text
    assert answer.headers["content-type"].startswith("text/markdown")
    assert text.startswith("# GO: ")
    assert (folder / "report.md").read_text() == text
    for order in orders:
        lines = [json.loads(line) for line in beats(order, 0)]
        losses = [line["loss"] for line in lines if line["msg"] == "progress"]
        assert order.run in text
        assert f"| {losses[0]:.4f} | {losses[-1]:.4f} |" in text
        record = (home / order.run / "order.json").read_bytes()
        row = f"| `order.json` | {len(record)} |"
        assert row in text
    pictures = sorted(path.name for path in folder.glob("*.svg"))
    named = [f"{o.phase}-{what}.svg" for o in orders for what in ("loss", "sections", "speed")]
    assert {*named, "overview.svg"} <= set(pictures)
    for name in pictures:
        assert f"]({name})" in text
        got = plane.call("GET", f"{url}/{name}")
        assert got.headers["content-type"] == "image/svg+xml"
        assert got.content == (folder / name).read_bytes()
    page = plane.call("GET", url, params={"format": "html"})
    assert page.headers["content-type"].startswith("text/html")
    assert (folder / "report.html").read_text() == page.text
    assert page.text.count("<svg") == len(pictures)
    for elsewhere in ("http://", "https://", "url(", "<link", "<script", "@import"):
        assert elsewhere not in page.text.replace(plane.context.url, "")
    for path in ("..%2f..%2fkey.svg", "none.svg"):
        assert plane.call("GET", f"{url}/{path}").status_code == 404


def test_a_report_needs_a_key_and_an_experiment(plane: Plane) -> None:
    assert plane.http.get("/api/v1/experiments/exp_x/report").status_code == 401
    assert plane.call("GET", "/experiments/exp_x/report").status_code == 404
