"""Is every report of a run's state taken where the table allows it, and only there?"""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.lifecycle import RUN_TRANSITIONS, RunEvent, RunState
from service.agent import reports
from service.agent.reports import LEADS_TO
from service.db.schema import RunRow
from service.judging.ended import is_complete
from service.queries.runs import load_run
from tests.service.conftest import Plane
from tests.service.fake_worker import FakeWorker

ORDER = list(RunState)
REPORTED = [event for event in RunEvent if event is not RunEvent.CLAIM]
EXIT = {"ended_at": 1.0, "ended_by": "trainer", "reason": "nonzero_exit", "code": 1}


def in_state(plane: Plane, state: RunState) -> tuple[FakeWorker, Any]:
    """A claimed run, put into a state."""
    plane.submit()
    worker = plane.worker()
    order = worker.claim()
    assert order is not None

    def put(session: Any) -> None:
        session.get_one(RunRow, order.run).state = state.value

    plane.context.store.write(put)
    return worker, order


@pytest.mark.parametrize("state", [state for state in RunState if state not in ("queued", "ended")])
def test_every_event_in_every_state(plane: Plane, state: RunState) -> None:
    for event in REPORTED:
        worker, order = in_state(plane, state)
        more = {"exit": EXIT} if event is RunEvent.END else {}
        answer = worker.state(order, event.value, **more)
        found = plane.get(f"/runs/{order.run}")["state"]
        if (state, event) in RUN_TRANSITIONS:
            assert (answer.status_code, found) == (200, RUN_TRANSITIONS[state, event])
        elif ORDER.index(state) >= ORDER.index(LEADS_TO[event]):
            assert (answer.status_code, found) == (200, state), "past already: nothing changes"
        else:
            assert (answer.status_code, found) == (409, state)
            allowed = {str(key[1]) for key in RUN_TRANSITIONS if key[0] is state}
            assert set(answer.json()["allowed"]) == allowed
        plane.call("POST", f"/experiments/{order.experiment}/cancel", json={})


def test_what_a_second_end_says_is_not_taken(plane: Plane) -> None:
    worker, order = in_state(plane, RunState.RUNNING)
    assert worker.state(order, "end").status_code == 422, "it needs its record"
    assert worker.state(order, "end", exit=EXIT).status_code == 200
    other = {**EXIT, "reason": "completed", "code": 0}
    assert worker.state(order, "end", exit=other).status_code == 200
    assert plane.get(f"/runs/{order.run}")["outcome"]["code"] == "nonzero_exit"


def test_an_end_promises_files_of_a_run_and_nothing_else(plane: Plane) -> None:
    worker, order = in_state(plane, RunState.RUNNING)
    promises: list[dict[str, Any]] = [
        {"sizes": {"one": 0}},
        {"files": {"../../gonogo.db": 0}},
        {"files": {"/etc/hosts": 0}},
        {"files": {"heartbeat_rank0.jsonl": 0}},
        {"records": {"../order.json": "0" * 64}},
    ]
    for promise in promises:
        assert worker.state(order, "end", exit=EXIT, **promise).status_code == 422
    assert plane.get(f"/runs/{order.run}")["state"] == "running"
    known = {"sizes": {"0": 0, "12": 0}, "files": {"watch_node1.jsonl": 0}}
    assert worker.state(order, "end", exit=EXIT, **known).status_code == 200


def test_of_findings_without_end_some_and_the_first_halt_are_kept_and_waited_for(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer may write to findings.jsonl, too: each is a row, an event and maybe an alert."""
    monkeypatch.setattr(reports, "MAX_FINDINGS", 4)
    worker, order = in_state(plane, RunState.RUNNING)
    finding = {"detector": "d", "severity": "warn", "act": "page", "at": 1.0, "text": "x"}
    many = [{**finding, "key": f"k{number}"} for number in range(6)]
    halts = [{**finding, "severity": "halt", "act": "now", "key": key} for key in ("h1", "h2")]
    for new, findings in ((3, many[:3]), (1, many), (1, halts), (0, [*many, *halts])):
        body = {"token": order.token, "findings": findings}
        answer = worker.post(f"/runs/{order.run}/findings", body)
        assert (answer.status_code, answer.json()["detail"]) == (200, {"new": new}), answer.text
    kept = plane.get(f"/runs/{order.run}/findings")["items"]
    assert [row["key"] for row in kept] == ["k0", "k1", "k2", "k3", "h1"]
    told = [row["type"] for row in plane.get("/alerts")["items"]]
    assert sorted(told) == ["finding.halt", *["finding.page"] * 4]
    assert worker.state(order, "end", exit=EXIT, findings=8).status_code == 200
    with plane.context.store.open_session() as session:
        assert is_complete(session, load_run(session, order.run))


def test_of_evidence_without_end_some_is_kept(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MAX_EVIDENCE_FILES", 2)
    worker, order = in_state(plane, RunState.RUNNING)
    for path, status in (("a", 200), ("b", 200), ("c", 422), ("b", 200)):
        body = {"token": order.token, "path": path, "content_b64": ""}
        assert worker.post(f"/runs/{order.run}/evidence", body).status_code == status


@pytest.mark.parametrize("key", ["k" * 1000, "a\x00b"], ids=["long", "NUL"])
def test_a_finding_of_any_key_and_length_is_taken_once(plane: Plane, key: str) -> None:
    """A refused finding would be missing, and its run never judged."""
    worker, order = in_state(plane, RunState.RUNNING)
    finding = {
        "detector": "d" * 10_000, "severity": "halt", "rank": 1, "at": 1.0, "key": key,
        "section": "s" * 10_000, "text": "x" * 90_000, "evidence": ["e" * 500] * 200,
    }  # fmt: skip
    others = [{**finding, "key": other} for other in (f"{key}2", "short")]
    for new, findings in ((3, [finding, *others]), (0, [finding, *others])):
        body = {"token": order.token, "findings": findings}
        answer = worker.post(f"/runs/{order.run}/findings", body)
        assert (answer.status_code, answer.json()["detail"]) == (200, {"new": new}), answer.text
    kept = plane.get(f"/runs/{order.run}/findings")["items"]
    assert [row["key"] for row in kept] == [key, f"{key}2", "short"]
    assert {row["text"] for row in kept} == {finding["text"]}
