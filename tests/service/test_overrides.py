"""Is a verdict by hand shown as one everywhere, beside what the evidence says?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from pydantic import ValidationError
from typer.testing import CliRunner

from gonogo.cli.app import app
from gonogo.cli.exits import exit_of_experiment
from gonogo.contract.api import ExperimentView, Override
from gonogo.contract.decision import Verdict
from gonogo.planning.source import bundled_plan
from tests.service.conftest import Plane
from tests.service.fake_worker import FakeWorker, beats

WHY = "the hang is known <b>& understood</b>"
LAST = "ModuleNotFoundError: No module named 'mytrainer' <i>"


def fail(plane: Plane, worker: FakeWorker, order: Any) -> None:
    """End a run of which rank 1 hung, and whose log says something."""
    worker.start(order)
    lines = {rank: beats(order, rank, upto=min(12, order.steps), done=False) for rank in (0, 1)}
    worker.ship(order, lines)
    finding = {
        "detector": "stall", "severity": "halt", "rank": 1, "section": "backward", "step": 12,
        "at": 1.0, "key": f"{order.run}:stall", "text": "rank 1 stands in backward",
        "evidence": ["evidence/01_stall/stacks_rank1.txt"],
    }  # fmt: skip
    said = f"step 12\n\x1b[31m{LAST}\x1b[0m\n[rank1]:[W1120 20:26:56.1 x.cpp:1] Warning: bye\n"
    log = {"name": "rank1.log", "start": 0, "end": len(said), "text": said}
    assert worker.telemetry(order, logs=[log]).status_code == 200
    worker.report(order, finding)
    worker.end(order, lines, "stalled", "watchdog", findings=1, code=None)


def two_phases() -> dict[str, Any]:
    """The plan `demo`, its first two phases alone."""
    plan = bundled_plan("demo")
    return {**plan, "phases": plan["phases"][:2]}


def failed(plane: Plane) -> tuple[str, Any]:
    """An experiment that passed sanity and ended NO_GO in synthetic; three phases never ran."""
    experiment = plane.submit(name="mine")
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    fail(plane, worker, order)
    assert plane.wait_state(experiment, "finished")["verdict"] == "NO_GO"
    return experiment, order


def halted(plane: Plane, plan: Any = "demo") -> tuple[FakeWorker, str]:
    """An experiment called `halted` that an operator stopped in sanity: it awaits a decision."""
    experiment = plane.submit(plan, name="halted")
    worker = plane.worker()
    order = plane.next_order(worker)
    worker.start(order)
    plane.call("POST", f"/experiments/{experiment}/halt", json={"reason": "wait"})
    lines = {rank: beats(order, rank, upto=0, done=False) for rank in (0, 1)}
    worker.ship(order, lines)
    worker.end(order, lines, "halted", "operator", code=3)
    plane.wait_state(experiment, "awaiting_decision")
    return worker, experiment


def override(plane: Plane, experiment: str, verdict: str = "GO", **more: Any) -> dict[str, Any]:
    body = {"verdict": verdict, "reason": WHY, **more}
    answer = plane.call("POST", f"/experiments/{experiment}/decisions", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def overridden(plane: Plane) -> dict[str, Any]:
    """What a finished NO_GO looks like after a person called it GO."""
    experiment, _ = failed(plane)
    override(plane, experiment)
    return plane.experiment(experiment)


def test_an_override_of_a_finished_experiment_relabels_starts_nothing_and_hides_nothing(
    plane: Plane,
) -> None:
    experiment, _ = failed(plane)
    auto = plane.get(f"/experiments/{experiment}/decisions")["items"][-1]
    made = override(plane, experiment)
    assert made["never_ran"] == ["smoke", "extended", "production"]
    assert made["supersedes"] == auto["id"]
    assert auto["never_ran"] == []
    overridden = plane.experiment(experiment)
    assert plane.get("/experiments")["items"][0]["overrides"] == overridden["overrides"]
    assert (overridden["verdict"], overridden["state"]) == ("GO", "finished")
    assert [row["state"] for row in overridden["phases"]] == [
        "passed", "failed", "skipped", "skipped", "skipped",
    ]  # fmt: skip
    (said,) = overridden["overrides"]
    assert (said["phase"], said["verdict"], said["evidence"]) == ("synthetic", "GO", "NO_GO")
    assert (said["actor"], said["reason"]) == ("local admin", WHY)
    assert overridden["never_ran"] == ["smoke", "extended", "production"]
    assert "rank 1 stands in backward" in overridden["cause"]["text"]
    summary = overridden["summary"]
    assert "local admin called synthetic GO" in summary
    assert "the evidence: NO_GO" in summary
    assert "synthetic failed" in summary
    assert "Passed by evidence: sanity." in summary
    assert "smoke, extended and production never ran" in summary
    assert "every phase" not in summary.lower()
    assert plane.worker().claim() is None


@pytest.mark.parametrize("reason", ["", " ", "\n\t"])
def test_a_word_needs_a_why(reason: str) -> None:
    with pytest.raises(ValidationError, match="reason"):
        Override(verdict=Verdict.GO, reason=reason)


@pytest.mark.long
def test_a_word_that_agrees_with_the_evidence_or_not_is_one_by_hand(plane: Plane) -> None:
    experiment, _ = failed(plane)
    for verdict in ("NO_GO", "CONDITIONAL_GO", "INCONCLUSIVE"):
        override(plane, experiment, verdict)
        view = ExperimentView.model_validate(plane.experiment(experiment))
        assert view.verdict_words == f"{verdict} by hand"
        assert len(view.overrides) == 1, "the last word stands"
        assert view.overrides[0].evidence == "NO_GO"
        assert exit_of_experiment(view) == 14


def test_no_face_claims_evidence_that_is_not_there(
    plane: Plane, overridden: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the report nor the page nor the command line, which exits with 14."""
    text = plane.call("GET", f"/experiments/{overridden['id']}/report").text
    assert text.startswith("# GO by hand: mine")
    assert "every phase passed" not in text.lower()
    assert "complete evidence" not in text
    top = text.split("\n## ")[0]
    assert "| synthetic | **GO by hand** | **NO_GO** | local admin | the hang is known" in top
    assert "Never ran: smoke, extended, production." in top
    assert "rank 1 stands in backward" in top
    assert "not the evidence" in top
    said = said_by(overridden)
    (row,) = (line for line in text.splitlines() if f"| `{said}` | synthetic |" in line)
    assert "| human | **GO by hand** | local admin |" in row, "among the decisions"
    report = f"/experiments/{overridden['id']}/report"
    page = plane.call("GET", report, params={"format": "html"}).text
    rows = re.findall(r"<tr.*?</tr>", page, re.S)
    earned = [row for row in rows if '<strong class="good">GO<' in row]
    assert earned, "of sanity"
    assert not any("local admin" in row for row in earned), "coloured like one that was earned"
    where = {"URL": plane.context.url, "API_KEY": plane.key(), "HOME": str(plane.home)}
    for name, value in where.items():
        monkeypatch.setenv(f"GONOGO_{name}", value)

    def gonogo(*words: str) -> Result:
        return CliRunner().invoke(app, words, catch_exceptions=False)

    watched, shown = gonogo("watch", overridden["id"]), gonogo("show", overridden["id"])
    assert (watched.exit_code, shown.exit_code) == (14, 0)
    for answer in (watched.stdout, shown.stdout, gonogo("list").stdout):
        assert "GO by hand" in answer
        assert "stall (rank 1, backward)" in answer
    assert f"local admin called synthetic GO ({WHY}); the evidence: NO_GO" in shown.stdout
    assert "smoke, extended, production" in shown.stdout
    assert "GO by hand again" in gonogo("replay", said).stdout


def said_by(view: dict[str, Any]) -> str:
    """The decision of the person whose word stands."""
    (row,) = view["overrides"]
    return str(row["decision"])


@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_a_verdict_that_passes_waives_a_condition(verdict: Verdict) -> None:
    def said() -> Override:
        return Override(verdict=verdict, reason="so", condition="sanity:fast")

    assert Override(verdict=verdict, reason="so").condition is None
    if verdict in (Verdict.GO, Verdict.CONDITIONAL_GO):
        assert said().condition == "sanity:fast"
        return
    with pytest.raises(ValidationError, match=f"{verdict} waives no condition"):
        said()


def test_an_awaited_go_goes_on_with_the_next_phase_and_stays_by_hand_to_the_end(
    plane: Plane,
) -> None:
    worker, experiment = halted(plane, two_phases())
    made = override(plane, experiment)
    assert made["never_ran"] == [], "the phases after it are still to come"
    following = plane.next_order(worker)
    assert following.phase == "synthetic"
    running = plane.experiment(experiment)
    assert (running["state"], running["verdict"]) == ("running", None)
    assert [row["phase"] for row in running["overrides"]] == ["sanity"]
    worker.run_through(following)
    view = plane.wait_state(experiment, "finished")
    assert view["verdict"] == "GO"
    assert exit_of_experiment(ExperimentView.model_validate(view)) == 14
    assert "Passed by evidence: synthetic." in view["summary"]
    assert view["never_ran"] == []
    texts = [row["text"] for row in plane.get("/alerts", limit=100)["items"]]
    last = next(text for text in texts if text.startswith("halted, synthetic: GO"))
    assert "Decided by hand before: sanity" in last


@pytest.mark.long
def test_what_evidence_refuses_after_a_go_by_hand_is_refused_by_evidence(plane: Plane) -> None:
    worker, experiment = halted(plane, two_phases())
    override(plane, experiment)
    fail(plane, worker, plane.next_order(worker))
    assert plane.wait_state(experiment, "finished")["verdict"] == "NO_GO"
    report = f"/experiments/{experiment}/report"
    told = plane.call("GET", report).text.split("**Recommendation.**")[1].split("\n")[0]
    assert told.startswith(" Stop.")
    assert "local admin called sanity GO" in told
    assert "not the evidence" not in told
    override(plane, experiment, "NO_GO")
    told = plane.call("GET", report).text.split("**Recommendation.**")[1].split("\n")[0]
    assert "A person decided, not the evidence." in told


@pytest.mark.long
def test_waiving_a_missed_condition_of_a_finished_experiment_is_by_hand(
    plane: Plane, tmp_path: Path
) -> None:
    gate = [{"id": "fast", "metric": "toks_per_s", "pass_above": 1e9, "severity": "conditional",
             "evidence_from": "synthetic", "due": "smoke"}]  # fmt: skip
    experiment = plane.submit(set={"phases.sanity.gate": gate})
    worker = plane.worker()
    for _ in range(2):
        worker.run_through(plane.next_order(worker))
    view = plane.wait_state(experiment, "finished")
    assert (view["verdict"], view["overrides"]) == ("NO_GO", [])
    override(plane, experiment, "CONDITIONAL_GO", condition="sanity:fast")
    view = plane.experiment(experiment)
    assert view["verdict"] == "CONDITIONAL_GO"
    (said,) = view["overrides"]
    assert (said["condition"], said["evidence"]) == ("sanity:fast", "NO_GO")
    assert "waived the missed condition sanity:fast" in view["summary"]
    assert "smoke, extended and production never ran" in view["summary"]
    assert exit_of_experiment(ExperimentView.model_validate(view)) == 14
    texts = [row["text"] for row in plane.get("/alerts", limit=100)["items"]]
    assert (
        f"demo, sanity: CONDITIONAL_GO by hand (condition). local admin: {WHY}."
        f" Waived: sanity:fast. The evidence says NO_GO. Next: gonogo show {experiment}"
    ) in texts
    missed = next(text for text in texts if "missed: sanity:fast" in text)
    assert "synthetic: NO_GO (condition). missed" in missed, "by nobody's hand"
