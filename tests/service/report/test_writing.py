"""Does the service write a report whose numbers are those of the heartbeats, pictures included?"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.order import Order, ResumePoint
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.gate.rules import build_rules
from gonogo.planning.source import bundled_plan
from tests.data.make_runs import WHOLE_GATE
from tests.judge.records import build_run_record
from tests.service.conftest import Plane
from tests.service.fake_worker import beats
from tests.service.report.views import numbers_of, order_of

PNG = b"\x89PNG\r\n\x1a\n"


def report_of(plane: Plane, experiment: str) -> tuple[str, Path]:
    answer = plane.call("GET", f"/experiments/{experiment}/report")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/markdown")
    return answer.text, plane.home / "reports" / experiment


def made(order: Order, rank: int, **more: Any) -> list[str]:
    """Beats of uneven steps, with a resumed boot and a non-finite loss when asked for."""
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
    numbers = numbers_of(order, lines)
    assert len(numbers) == 2
    for rank in numbers:
        pace = facts.pace[str(rank.rank)]
        assert rank.final_step == facts.ranks[str(rank.rank)].last_step == 40
        assert rank.median_step_s == pace.median_step_s
        assert dict(rank.sections_s) == pace.sections_s
        assert len(rank.tok_s) == pace.steps


def test_a_loss_that_is_not_finite_is_shown_and_not_drawn() -> None:
    order = order_of()
    rows = [json.loads(line) for line in beats(order, 0)]
    last = next(row for row in rows if row["msg"] == "progress" and row["step"] == 40)
    last["loss"] = "NaN"
    (rank,) = numbers_of(order, {0: [json.dumps(row) for row in rows]})
    assert rank.last_loss is not None
    assert math.isnan(rank.last_loss)
    assert [step for step, _ in rank.loss] == list(range(1, 40))


def test_the_report_of_a_finished_experiment_lies_in_the_home(plane: Plane) -> None:
    plan = bundled_plan("demo")
    experiment = plane.submit({**plan, "phases": plan["phases"][1:3]})
    worker = plane.worker()
    runs = []
    for _ in range(2):
        order = plane.next_order(worker)
        runs.append(order)
        worker.run_through(order)
    plane.wait_state(experiment, "finished")
    text, folder = report_of(plane, experiment)
    assert text.startswith("# GO: ")
    assert (folder / "report.md").read_text() == text
    unseen = [part.split("\n\n")[0] for part in text.split("### Not observed\n\n")[1:]]
    assert len(unseen) == len(runs)
    for topic in ("gpu_util: ",):
        assert all(topic in row for row in unseen), (topic, unseen)
    for order in runs:
        lines = [json.loads(line) for line in beats(order, 0)]
        losses = [line["loss"] for line in lines if line["msg"] == "progress"]
        assert order.run in text
        assert f"| {losses[0]:.4f} | {losses[-1]:.4f} |" in text
    pictures = sorted(path.name for path in folder.glob("*.png"))
    shown = ("loss", "sections", "speed", "steps")
    named = [f"{order.phase}-{what}.png" for order in runs if order.steps > 1 for what in shown]
    assert pictures == sorted(
        [*named, "goodput.png", "overview-loss.png", "overview-speed.png", "timeline.png"]
    )
    for name in pictures:
        assert f"]({name})" in text
        assert (folder / name).read_bytes().startswith(PNG)
        got = plane.call("GET", f"/experiments/{experiment}/report/{name}")
        assert got.headers["content-type"] == "image/png"
        assert got.content == (folder / name).read_bytes()
    page = plane.call("GET", f"/experiments/{experiment}/report", params={"format": "html"})
    assert page.headers["content-type"].startswith("text/html")
    assert (folder / "report.html").read_text() == page.text
    assert page.text.count('src="data:image/png;base64,') == len(pictures)
    assert "<table>" in page.text
    for elsewhere in ("http://", "https://", "url(", "<link", "<script", "@import"):
        assert elsewhere not in page.text.replace(plane.context.url, "")
    for path in ("..%2f..%2fkey.png", "none.png"):
        answer = plane.call("GET", f"/experiments/{experiment}/report/{path}")
        assert answer.status_code == 404


@pytest.mark.long
def test_a_final_picture_is_drawn_once_and_a_live_one_again(plane: Plane) -> None:
    experiment = plane.submit(_one_phase("smoke"))
    worker = plane.worker()
    order = plane.next_order(worker)
    worker.start(order)
    lines = {rank: beats(order, rank, upto=5) for rank in range(2)}
    worker.ship(order, lines)
    text, folder = report_of(plane, experiment)
    assert "5 / 40" in text
    assert text.startswith("# no verdict yet")
    live = (folder / "smoke-loss.png").read_bytes()
    whole = {rank: beats(order, rank) for rank in range(2)}
    rest = {rank: whole[rank][len(lines[rank]) :] for rank in whole}
    have = {rank: sum(len(line) + 1 for line in lines[rank]) for rank in lines}
    worker.ship(order, rest, have)
    worker.end(order, whole)
    plane.wait_state(experiment, "finished")
    report_of(plane, experiment)
    final = (folder / "smoke-loss.png").stat()
    assert (folder / "smoke-loss.png").read_bytes() != live
    report_of(plane, experiment)
    assert (folder / "smoke-loss.png").stat().st_mtime_ns == final.st_mtime_ns


def test_a_report_needs_a_key_and_an_experiment(plane: Plane) -> None:
    assert plane.http.get("/api/v1/experiments/exp_x/report").status_code == 401
    assert plane.call("GET", "/experiments/exp_x/report").status_code == 404


def _one_phase(name: str) -> dict[str, object]:
    plan = bundled_plan("demo")
    plan["phases"] = [row for row in plan["phases"] if row["name"] == name]
    plan["phases"][0]["gate"] = WHOLE_GATE
    return plan
