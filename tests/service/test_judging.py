"""What follows the end of a run, and is it the same as judging its directory?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.canonical import digest
from gonogo.contract.order import Order
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.record import load_run
from gonogo.ledger.recorded import load_decision
from gonogo.ledger.replay import Surroundings, replay_decision
from gonogo.ledger.sign import trusting
from gonogo.planning.source import bundled_plan
from gonogo.rundir import RunDir, save_json
from gonogo.signing import load_public_key
from service.http.auth import Role, create_key, revoke_key
from service.judging.ended import prepare
from service.judging.judge_process import Assessors
from tests.data.make_runs import WHOLE_GATE
from tests.service.conftest import Plane
from tests.service.fake_run import save_checkpoint
from tests.service.fake_worker import FakeWorker, beats


def end_with(
    plane: Plane, worker: FakeWorker, order: Any, reason: str, by: str, **more: Any
) -> None:
    worker.start(order)
    lines = {rank: beats(order, rank, upto=0, done=False) for rank in range(order.world_size)}
    worker.ship(order, lines)
    answer = worker.end(order, lines, reason, by, code=1, **more)
    assert answer.status_code == 200, answer.text


def test_a_run_that_its_watchdog_ended_is_no_go(plane: Plane) -> None:
    experiment = plane.submit()
    worker = plane.worker()
    end_with(plane, worker, plane.next_order(worker), "stalled", "watchdog")
    view = plane.wait_state(experiment, "finished")
    assert view["verdict"] == "NO_GO"
    assert view["outcome"]["code"] == "stalled"
    assert [phase["state"] for phase in view["phases"]] == ["failed", *["skipped"] * 4]
    assert plane.worker().claim() is None


def test_a_decision_replays_from_its_file_and_the_run_directory(
    plane: Plane, tmp_path: Path
) -> None:
    experiment = plane.submit()
    worker = plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    run_dir = tmp_path / "runs" / order.run
    worker.run_through(order)
    decisions = plane.wait(
        lambda: plane.get(f"/experiments/{experiment}/decisions")["items"], "a decision"
    )
    path = plane.home / "decisions" / f"{decisions[0]['id']}.json"
    plane.wait(path.exists, "the decision's file")
    recorded = load_decision(path)
    assert recorded.document == decisions[0]
    key = load_public_key(plane.home / "signing.pub")
    around = Surroundings(run_dir=run_dir, siblings=[], trust=trusting([key]))
    found = replay_decision(recorded, around)
    assert found.equal, found
    beat_file = RunDir(run_dir).heartbeat(1)
    beat_file.write_text(beat_file.read_text().replace('"loss": 5.5', '"loss": 5.4', 1))
    tampered = replay_decision(recorded, around)
    assert not tampered.equal
    assert tampered.path is not None


def test_facts_from_the_database_equal_those_from_the_directory(
    plane: Plane, tmp_path: Path
) -> None:
    plane.submit()
    worker = plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    folder = tmp_path / "runs" / order.run
    worker.run_through(order)
    plane.wait(lambda: plane.get(f"/runs/{order.run}")["verdict"], "a verdict")
    again = tmp_path / "again" / order.run
    case = plane.context.store.read(lambda session: prepare(session, order.run, again))
    assessors = Assessors()
    facts = assessors.build_facts(again, case.rules)
    assessors.close()
    assert digest(facts.wire()) == digest(build_facts(load_run(folder), case.rules).wire())


def test_only_the_first_halt_finding_of_a_run_alerts(plane: Plane) -> None:
    plane.submit()
    worker = plane.worker()
    order = plane.next_order(worker)
    worker.start(order)
    found = [
        {"detector": "stall", "severity": severity, "rank": 1, "section": "backward", "at": 1.0 + n,
         "key": f"{order.run}:{n}", "text": "rank 1 stands in backward"}
        for n, severity in enumerate(["suspect", "halt", "halt"])
    ]  # fmt: skip
    path = f"/runs/{order.run}/findings"
    for part in (found[:1], found[:2], found):
        worker.post(path, {"token": order.token, "findings": part})
    alerts = [row for row in plane.get("/alerts")["items"] if row["type"] == "finding.halt"]
    assert len(alerts) == 1
    data = alerts[0]["data"]
    assert (data["rank"], data["run"], data["phase"]) == (1, order.run, "sanity")
    assert data["finding"]["key"] == f"{order.run}:1"
    assert data["url"].endswith(f"/experiments/{order.experiment}")
    assert data["text"].endswith(f"rank 1 stands in backward. Next: gonogo show {order.experiment}")
    assert [row["key"] for row in plane.get(path)["items"]] == [row["key"] for row in found]


def test_a_finding_that_pages_alerts_once_for_each_key_and_ends_nothing(plane: Plane) -> None:
    plane.submit()
    worker = plane.worker()
    order = plane.next_order(worker)
    worker.start(order)
    found = [
        {"detector": "watcher", "severity": "warn", "at": 1.0 + n, "key": f"{order.run}:{n}",
         "act": act, "text": "nobody watched for 40 s"}
        for n, act in enumerate(["page", None, "page"])
    ]  # fmt: skip
    for part in (found[:1], found[:1], found, found):
        worker.post(f"/runs/{order.run}/findings", {"token": order.token, "findings": part})
    alerts = [row for row in plane.get("/alerts")["items"] if row["type"].startswith("finding.")]
    assert [row["type"] for row in alerts] == ["finding.page"] * 2
    keys = {row["data"]["finding"]["key"] for row in alerts}
    assert keys == {f"{order.run}:0", f"{order.run}:2"}
    assert plane.get(f"/runs/{order.run}")["state"] != "ended"


def test_conditions_are_met_by_the_run_that_brings_the_evidence(plane: Plane) -> None:
    gate = [
        {"id": "pace", "metric": "dt_step_s", "aggregate": "median", "over_ranks": "max",
         "pass_below": 0.15, "severity": "conditional"}
    ]  # fmt: skip
    experiment = plane.submit(set={"phases.sanity.gate": gate, "phases.sanity.steps": 20})
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    view = plane.experiment(experiment)
    assert view["phases"][0]["verdict"] == "CONDITIONAL_GO"
    condition = view["conditions"][0]
    assert (condition["state"], condition["evidence_from"]) == ("open", "synthetic")
    worker.run_through(order, step_s=0.1)
    plane.next_order(worker)
    assert plane.experiment(experiment)["conditions"][0]["state"] == "met"
    kinds = [row["kind"] for row in plane.get(f"/experiments/{experiment}/decisions")["items"]]
    assert kinds == ["auto", "auto", "condition"]


def events(plane: Plane, experiment: str) -> list[dict[str, Any]]:
    """Everything that happened so far, read from the event stream."""
    answer = plane.call("GET", f"/experiments/{experiment}/events", params={"follow": "false"})
    blocks = [block.splitlines() for block in answer.text.split("\n\n")]
    return [
        json.loads(line.removeprefix("data: "))
        for block in blocks
        for line in block
        if line.startswith("data: ") and any(row.startswith("id: ") for row in block)
    ]


def test_events_of_an_experiment_have_no_gaps_and_resume_after_the_last_one(plane: Plane) -> None:
    experiment = plane.submit()
    worker = plane.worker()
    for _ in range(2):
        worker.run_through(plane.next_order(worker))
    plane.next_order(worker)
    found = events(plane, experiment)
    assert [event["seq"] for event in found] == list(range(1, len(found) + 1))
    answer = plane.call(
        "GET",
        f"/experiments/{experiment}/events",
        params={"follow": "false"},
        headers={"Last-Event-ID": "5"},
    )
    assert answer.text.split("id: ")[1].startswith("6\n")
    lost = plane.call(  # by the database, which was restored since
        "GET",
        f"/experiments/{experiment}/events",
        params={"follow": "false"},
        headers={"Last-Event-ID": str(len(found) + 5)},
    )
    assert lost.text.split("id: ")[1].startswith("1\n")
    ordered = plane.wait(
        lambda: (page := plane.get("/events", limit=1000)["items"])[len(found) - 1 :] and page
    )
    cursors = [event["cursor"] for event in ordered]
    assert cursors == sorted(set(cursors))
    assert plane.get("/events", after=cursors[3])["items"][0]["cursor"] == cursors[4]


def test_an_event_that_happens_reaches_whoever_follows(plane: Plane) -> None:
    experiment = plane.submit()
    headers = {"Authorization": f"Bearer {plane.key()}"}
    url = f"/api/v1/experiments/{experiment}/events"
    with plane.http.stream("GET", url, headers=headers) as stream:
        lines = stream.iter_lines()
        while not next(lines).startswith("event: run.state"):
            continue
        plane.call("POST", f"/experiments/{experiment}/cancel", json={})
        seen = [line for line in lines_until(lines, "event: experiment.stop")]
    assert seen[-1] == "event: experiment.stop"


def test_who_follows_is_cut_off_when_the_key_is_revoked(still: Plane) -> None:
    experiment, store = still.submit(), still.context.store
    key = store.write(lambda session: create_key(session, "guest", Role.VIEWER, 1.0))
    url = f"/api/v1/experiments/{experiment}/events"
    with still.http.stream("GET", url, headers={"Authorization": f"Bearer {key}"}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "retry: 1000"
        store.write(lambda session: revoke_key(session, "guest", 2.0))
        assert not any(line.startswith(": ") for line in lines)  # it ends


def lines_until(lines: Any, last: str) -> Any:
    for line in lines:
        yield line
        if line == last:
            return


def stalled(plane: Plane, worker: FakeWorker, order: Any, upto: int = 0) -> None:
    """A run that its watcher halted for a stall, after step `upto`."""
    worker.start(order)
    finding = {
        "detector": "stall", "severity": "halt", "rank": 1, "section": "backward", "at": 1.0,
        "key": f"{order.run}:stall", "text": "rank 1 stands in backward",
    }  # fmt: skip
    worker.report(order, finding)
    lines = {rank: beats(order, rank, upto=upto, done=False) for rank in range(order.world_size)}
    worker.ship(order, lines)
    worker.end(order, lines, "stalled", "watchdog", findings=1, code=None)


@pytest.mark.parametrize(
    ("detector", "step", "reason", "failed"),
    [("divergence", 1, "preempted", True), ("non_finite", None, "keeper_lost", True),
     ("slow", 1, "preempted", False)],
)  # fmt: skip
def test_what_its_lines_had_shown_fails_a_run_though_an_accident_ended_it(
    plane: Plane, tmp_path: Path, detector: str, step: int | None, reason: str, failed: bool
) -> None:
    """Its halt waited for a checkpoint: the next attempt passed, as if nothing had been found."""
    experiment = plane.submit()
    worker = plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    worker.start(order)
    finding = {
        "detector": detector, "severity": "halt", "act": "at_checkpoint", "step": step, "at": 1.0,
        "key": f"{order.run}:{detector}", "text": "the loss rises, and keeps rising",
    }  # fmt: skip
    worker.report(order, finding)
    lines = {rank: beats(order, rank, upto=0, done=False) for rank in range(order.world_size)}
    worker.ship(order, lines)
    worker.end(order, lines, reason, "infra", findings=1, code=None)
    if not failed:
        assert plane.next_order(worker).reason == "resume"
        return
    view = plane.wait_state(experiment, "finished")
    code = {"divergence": "diverged"}.get(detector, detector)
    assert (view["verdict"], view["outcome"]["code"]) == ("NO_GO", code)
    at = " at step 1" if step else ""
    assert view["outcome"]["text"].startswith(f"{detector} had found that{at}; then {reason}")
    assert plane.get(f"/runs/{order.run}")["outcome"]["code"] == code
    decision = plane.get(f"/experiments/{experiment}/decisions")["items"][0]
    assert decision["facts"]["outcome"]["code"] == code
    assert detector in decision["cause"]["text"]
    key = load_public_key(plane.home / "signing.pub")
    path = plane.home / "decisions" / f"{decision['id']}.json"
    plane.wait(path.exists, "the decision's file")
    recorded = load_decision(path)
    trust = trusting([key])
    checked = replay_decision(recorded, Surroundings(trust=trust), facts_only=True)
    assert checked.equal, checked
    assert plane.worker().claim() is None


@pytest.mark.long
def test_a_stall_is_confirmed_unchanged_and_then_under_variants_before_no_go(plane: Plane) -> None:
    variant = {"env": {"NSA_SDPA_NO_FLASH": "1"}, "train": {"seed": 7}}
    confirm = {"on": ["stall"], "variants": [variant]}
    experiment = plane.submit(set={"confirm": confirm})
    worker = plane.worker()
    first = plane.next_order(worker)
    stalled(plane, worker, first)
    unchanged = plane.next_order(worker)
    assert (unchanged.reason, unchanged.env, unchanged.attempt) == ("confirm", first.env, 2)
    stalled(plane, worker, unchanged)
    varied = plane.next_order(worker)
    assert varied.env["NSA_SDPA_NO_FLASH"] == "1"
    assert varied.train["seed"] == 7
    assert varied.identity.config_digest != first.identity.config_digest
    assert plane.get(f"/experiments/{experiment}/decisions")["items"] == []
    worker.run_through(varied)
    view = plane.wait_state(experiment, "awaiting_decision")
    assert view["verdict"] == "CONDITIONAL_GO"
    decisions = plane.get(f"/experiments/{experiment}/decisions")["items"]
    assert len(decisions) == 1
    assert decisions[0]["run"] == varied.run
    assert len(decisions[0]["facts"]["history"]["confirmations"]) == 3


@pytest.mark.parametrize("code", ["keeper_lost", "superseded"])
def test_what_a_lost_run_had_measured_is_not_forgotten_by_the_one_that_goes_on(
    plane: Plane, tmp_path: Path, code: str
) -> None:
    """Its gate saw the steps after the checkpoint alone, and was GO."""
    plan = bundled_plan("demo")
    first, second = plan["phases"][:2]
    gate = [{"id": "fast", "metric": "dt_step_s", "aggregate": "max", "pass_below": 0.3}]
    phases = [{**first, "steps": 6, "gate": gate}, second]
    experiment = plane.submit({**plan, "phases": phases})
    worker = plane.worker(home=tmp_path / "runs")
    lost = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / lost.run, step=4)
    save_json(tmp_path / "runs" / lost.run / "order.json", lost.document())
    worker.start(lost)
    lines = {rank: beats(lost, rank, upto=4, step_s=0.5) for rank in range(lost.world_size)}
    worker.ship(lost, lines)
    if code == "superseded":
        said = {"reason": "its host is dead"}
        assert plane.call("POST", f"/experiments/{experiment}/takeover", json=said)
    else:
        worker.end(lost, lines, code, "infra", code=None)
    order = plane.next_order(worker)
    assert order.resume_from is not None
    worker.start(order)
    lines = {rank: beats(order, rank) for rank in range(order.world_size)}
    worker.ship(order, lines)
    assert worker.end(order, lines).status_code == 200
    assert plane.next_order(worker).phase == second["name"]
    view = plane.experiment(experiment)
    assert view["phases"][0]["verdict"] == "CONDITIONAL_GO"
    (condition,) = view["conditions"]
    assert condition["id"] == f"{first['name']}:failed_before"
    assert f"({lost.run} ({code}): fast)" in condition["text"]


def of_other_code(order: Order, digit: str = "b") -> dict[int, list[str]]:
    frozen = f'"git_sha": "{order.identity.git_sha or "a" * 40}"'
    return {
        rank: [line.replace(frozen, f'"git_sha": "{digit * 40}"') for line in rows]
        for rank in range(order.world_size)
        if (rows := beats(order, rank, upto=4))
    }


def preempted_behind(
    plane: Plane,
    worker: FakeWorker,
    order: Order,
    lines: dict[int, list[str]],
    runs: Path,
    *,
    saved: bool,
) -> list[str]:
    """Preempt a run, perhaps behind a checkpoint; return the conditions where another resumes."""
    if saved:
        save_checkpoint(runs / order.run, step=4)
        save_json(runs / order.run / "order.json", order.document())
    worker.start(order)
    worker.ship(order, lines)
    worker.end(order, lines, "preempted", "infra", code=None)
    again = plane.next_order(worker)
    assert (again.resume_from is not None) is saved
    worker.run_through(again)
    view = plane.wait_state(order.experiment, "finished")
    assert view["verdict"] == ("CONDITIONAL_GO" if saved else "GO")
    return [row["text"] for row in view["conditions"]]


@pytest.mark.long
@pytest.mark.parametrize("saved", [True, False])
def test_what_other_code_has_trained_is_not_the_frozen_code_s_that_goes_on(
    plane: Plane, tmp_path: Path, saved: bool
) -> None:
    plan = bundled_plan("demo")
    first, second = plan["phases"][:2]
    phases = [{**first, "steps": 6, "gate": WHOLE_GATE}, {**second, "steps": 6, "gate": WHOLE_GATE}]
    plane.submit({**plan, "phases": phases, "allow_drift": ["git_sha"]})
    worker = plane.worker(home=tmp_path / "runs")
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    told = preempted_behind(
        plane, worker, order, of_other_code(order), tmp_path / "runs", saved=saved
    )
    assert [f"({order.run} (preempted): identity_drift)" in text for text in told] == [True] * saved
