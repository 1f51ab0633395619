"""What follows the end of a run, and is it the same as judging its directory?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from gonogo.contract.canonical import digest
from gonogo.contract.order import Order
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.record import load_run
from gonogo.ledger.chain import check_chain
from gonogo.ledger.recorded import load_decision, record_of
from gonogo.ledger.replay import Surroundings, replay_decision
from gonogo.ledger.sign import trusting
from gonogo.planning.source import bundled_plan
from gonogo.rundir import RunDir, save_json
from gonogo.signing import load_public_key
from service.conductor.judge import Judging
from service.db.schema import RunRow
from service.http.auth import Role, create_key, revoke_key
from service.judging.assessors import Assessors
from service.judging.ended import prepare
from tests.data.make_runs import WHOLE_GATE
from tests.service.conftest import Plane
from tests.service.fake_run import save_checkpoint
from tests.service.fake_worker import FakeWorker, beats

UNSORTED = {"NSA_TB_DISABLE": "1", "NSA_DISABLE_CSV_LOGS": "1", "NSA_DISABLE_AUX_STATS": "1"}
"""Logging off, as the judge names it."""


def end_with(
    plane: Plane, worker: FakeWorker, order: Any, reason: str, by: str, **more: Any
) -> None:
    worker.start(order)
    lines = {rank: beats(order, rank, upto=0, done=False) for rank in range(order.world_size)}
    worker.ship(order, lines)
    answer = worker.end(order, lines, reason, by, code=1, **more)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("reason", "by"),
    [("stalled", "watchdog"), ("nonzero_exit", "trainer"), ("config_mismatch", "watchdog")],
)
def test_a_run_that_policy_or_the_user_ended_is_no_go(plane: Plane, reason: str, by: str) -> None:
    experiment = plane.submit()
    worker = plane.worker()
    end_with(plane, worker, plane.next_order(worker), reason, by)
    view = plane.wait_state(experiment, "finished")
    assert view["verdict"] == "NO_GO"
    assert view["outcome"]["code"] == reason
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
    case = plane.context.store.read(
        lambda session: prepare(session, order.run, tmp_path / "again" / order.run)
    )
    assessors = Assessors()
    facts = assessors.build_facts(case.folder, case.rules)
    assessors.close()
    assert digest(facts.wire()) == digest(build_facts(load_run(folder), case.rules).wire())


def test_the_chain_of_an_experiment_holds(plane: Plane) -> None:
    experiment = plane.submit()
    worker = plane.worker()
    for _ in range(3):
        worker.run_through(plane.next_order(worker))
    rows = plane.wait(
        lambda: (found := plane.get(f"/experiments/{experiment}/decisions")["items"])[2:] and found
    )
    decisions = [record_of(row) for row in rows]
    key = load_public_key(plane.home / "signing.pub")
    assert check_chain(decisions, trusting([key])) == []
    (gap,) = check_chain([decisions[0], decisions[2]])
    assert gap.missing


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


def test_a_page_takes_no_halts_alert_away(plane: Plane) -> None:
    plane.submit()
    worker = plane.worker()
    order = plane.next_order(worker)
    worker.start(order)
    found = [
        {"detector": detector, "severity": "halt", "at": 1.0, "key": f"{order.run}:{detector}",
         "act": act, "text": "why"}
        for detector, act in (("plugin", "page"), ("stall", "now"), ("slow", "now"))
    ]  # fmt: skip
    worker.post(f"/runs/{order.run}/findings", {"token": order.token, "findings": found})
    alerts = [row for row in plane.get("/alerts")["items"] if row["type"].startswith("finding.")]
    told = {row["type"]: row["data"]["finding"]["detector"] for row in alerts}
    assert told == {"finding.page": "plugin", "finding.halt": "stall"}
    assert len(alerts) == 2


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
    worker.start(order)
    lines = {rank: beats(order, rank, step_s=0.1) for rank in (0, 1)}
    worker.ship(order, lines)
    worker.end(order, lines)
    plane.next_order(worker)
    assert plane.experiment(experiment)["conditions"][0]["state"] == "met"
    kinds = [row["kind"] for row in plane.get(f"/experiments/{experiment}/decisions")["items"]]
    assert kinds == ["auto", "auto", "condition"]


def test_what_a_met_condition_leaves_is_told_with_what_its_own_phase_left(still: Plane) -> None:
    """It was recorded as GO, the last decision of an experiment that is CONDITIONAL_GO."""
    plan, pace = bundled_plan("demo"), {"id": "pace", "metric": "dt_step_s"}
    phases = [
        {**row, "steps": 6, "gate": [{**pace, "pass_below": most, "severity": "conditional"}]}
        for row, most in zip(plan["phases"][:2], (0.15, 0.05), strict=True)
    ]
    experiment = still.submit({**plan, "phases": phases})
    worker, judging = still.worker(), Judging(still.context)
    for step_s in (0.2, 0.1):
        order = still.next_order(worker)
        worker.start(order)
        lines = {rank: beats(order, rank, step_s=step_s) for rank in range(order.world_size)}
        worker.ship(order, lines)
        worker.end(order, lines)
        judging.settle()
    judging.close()
    view = still.experiment(experiment)
    assert [row["state"] for row in view["conditions"]] == ["met", "open"]
    made = still.get(f"/experiments/{experiment}/decisions")["items"]
    assert [row["kind"] for row in made] == ["auto", "auto", "condition"]
    assert made[-1]["verdict"] == view["verdict"] == "CONDITIONAL_GO"


def test_a_condition_is_met_by_the_run_that_passed_and_by_none_that_decided_nothing(
    plane: Plane,
) -> None:
    """The one before it had been fast enough; what the phase passed by was not, and all was GO."""
    plan, fast = bundled_plan("demo"), {"metric": "dt_step_s", "aggregate": "median"}
    first, second, third = plan["phases"][:3]
    gate = [{**fast, "id": "pace", "pass_below": 0.15, "severity": "conditional"}]
    finite = [{"id": "eval", "metric": "val_loss", "aggregate": "last", "pass_below": 9.0}]
    phases = [
        {**first, "steps": 6, "gate": gate},
        {**second, "steps": 6, "gate": finite},
        {**third, "steps": 6, "gate": WHOLE_GATE},
    ]
    experiment, worker = plane.submit({**plan, "phases": phases}), plane.worker()
    worker.run_through(plane.next_order(worker))
    for step_s, seen in ((0.1, False), (0.5, True)):
        order = plane.next_order(worker)
        worker.start(order)
        told = {"step_s": step_s, "eval_s": 0.1 if seen else 0.0}
        lines = {rank: beats(order, rank, **told) for rank in range(order.world_size)}
        worker.ship(order, lines)
        worker.end(order, lines)
        if not seen:
            plane.wait_state(experiment, "awaiting_decision")
            assert plane.experiment(experiment)["conditions"][0]["state"] == "open"
            path = f"/experiments/{experiment}/rerun"
            assert plane.call("POST", path, json={"reason": "its evaluation"}).is_success
    view = plane.wait_state(experiment, "finished")
    assert [row["state"] for row in view["conditions"]] == ["missed"]
    assert view["verdict"] == "NO_GO"


def test_a_condition_can_be_waived_once_by_a_person(plane: Plane) -> None:
    gate = [
        {"id": "pace", "metric": "dt_step_s", "aggregate": "median", "over_ranks": "max",
         "pass_below": 0.15, "severity": "conditional"}
    ]  # fmt: skip
    experiment = plane.submit(set={"phases.sanity.gate": gate, "phases.sanity.steps": 20})
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    condition = plane.wait(lambda: plane.experiment(experiment)["conditions"], "a condition")[0]
    body = {"verdict": "GO", "reason": "known", "condition": condition["id"]}
    path = f"/experiments/{experiment}/decisions"
    made = plane.call("POST", path, json=body)
    assert made.status_code == 201, made.text
    assert made.json()["kind"] == "condition"
    said = made.json()["verdict"]
    by_hand = f'gonogo_decisions_by_hand_total{{verdict="{said}"}} 1.0'
    assert by_hand in plane.http.get("/metrics").text, "as it reads wherever it is shown"
    assert plane.experiment(experiment)["conditions"][0]["state"] == "waived"
    again = plane.call("POST", path, json=body)
    assert (again.status_code, again.json()["state"]) == (409, "waived")
    unknown = plane.call("POST", path, json={**body, "condition": "smoke:none"})
    assert unknown.status_code == 404


def test_an_approval_is_awaited_where_the_plan_asks_for_one(plane: Plane) -> None:
    experiment = plane.submit(set={"phases.sanity.approve": "always"})
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    view = plane.wait_state(experiment, "awaiting_decision")
    assert view["verdict"] == "GO"
    assert worker.claim() is None
    answer = plane.call("POST", f"/experiments/{experiment}/promote", json={"reason": "fine"})
    assert answer.status_code == 202
    assert plane.next_order(worker).phase == "synthetic"
    kinds = [event["type"] for event in events(plane, experiment)]
    assert "phase.approved" in kinds


def events(plane: Plane, experiment: str) -> list[dict[str, Any]]:
    """Everything that happened so far, read from the event stream."""
    answer = plane.call("GET", f"/experiments/{experiment}/events", params={"follow": "false"})
    blocks = [block.split("\n") for block in answer.text.split("\n\n") if "\nevent: " in block]
    return [
        json.loads(line.removeprefix("data: "))
        for block in blocks
        for line in block
        if line.startswith("data: ") and block[0].startswith("id: ")
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
        assert not any(line.startswith(": still here") for line in lines)  # it ends


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
        "key": f"{order.run}:{detector}", "text": "the loss rises, and goes on rising",
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
def test_a_stall_is_confirmed_unchanged_and_then_under_variants_before_no_go(
    plane: Plane,
) -> None:
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


@pytest.mark.parametrize(
    ("sets", "failures"),
    [
        ({"confirm": {"on": ["stall"], "variants": [{"env": UNSORTED}]}}, 2),
        ({"remedies": {"hang_in_compute": {"env": UNSORTED, "train": {"optim": {"lr": 1.0}}}},
          "max_remedies": 1}, 1),
    ],
    ids=["variant", "remedy"],
)  # fmt: skip
def test_what_a_patch_says_in_a_decision_replays(
    plane: Plane, sets: dict[str, Any], failures: int
) -> None:
    """Whatever order its names were written in, and however its numbers."""
    experiment = plane.submit(set={**sets, "phases.sanity.approve": "always"})
    worker = plane.worker()
    for _ in range(failures):
        stalled(plane, worker, plane.next_order(worker))
    patched = plane.next_order(worker)
    assert UNSORTED.items() <= patched.env.items()
    worker.run_through(patched)
    plane.wait_state(experiment, "awaiting_decision")
    (decided,) = plane.get(f"/experiments/{experiment}/decisions")["items"]
    assert decided["verdict"] == "CONDITIONAL_GO"
    path = plane.home / "decisions" / f"{decided['id']}.json"
    plane.wait(path.exists, "the decision's file")
    trust = trusting([load_public_key(plane.home / "signing.pub")])
    found = replay_decision(load_decision(path), Surroundings(trust=trust), facts_only=True)
    assert found.equal, found.text


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


def test_a_run_whose_last_lines_never_came_leaves_nothing_to_the_next(plane: Plane) -> None:
    worker, experiment = plane.worker(), plane.submit()
    cut = plane.next_order(worker)
    worker.start(cut)
    lines = {rank: beats(cut, rank, upto=4, done=False) for rank in range(cut.world_size)}
    worker.ship(cut, {0: lines[0][:-1], 1: lines[1]})
    worker.end(cut, lines, "preempted", "infra", code=None)
    lost = update(RunRow).where(RunRow.id == cut.run).values(lost=True)
    plane.context.store.write(lambda session: session.execute(lost) and None)
    said = {"reason": "its disk is gone"}
    assert plane.call("POST", f"/experiments/{experiment}/takeover", json=said).is_success
    order = plane.next_order(worker)
    worker.run_through(order)
    assert plane.next_order(worker).phase != order.phase
    assert plane.experiment(experiment)["phases"][0]["verdict"] == "GO"


def cut_off(plane: Plane, worker: FakeWorker, order: Any, code: str, step_s: float = 0.2) -> None:
    """End a run at step 28 of 30, which has left checkpoints after steps 10, 20 and 28."""
    for step in (10, 20, 28):
        save_checkpoint(worker.home / order.run, step=step)
    save_json(worker.home / order.run / "order.json", order.document())
    worker.start(order)
    ranks = range(order.world_size)
    lines = {rank: beats(order, rank, upto=28, step_s=step_s, done=False) for rank in ranks}
    worker.ship(order, lines)
    verbs = {"superseded": "takeover", "halted": "halt"}
    if code in verbs:
        said = {"reason": "test"}
        assert plane.call("POST", f"/experiments/{order.experiment}/{verbs[code]}", json=said)
    if code != "superseded":
        actor = "operator" if code == "halted" else "infra"
        worker.end(order, lines, code, actor, code=3)
    if code == "halted":
        plane.wait_state(order.experiment, "awaiting_decision")
        said = {"reason": "go on"}
        assert plane.call("POST", f"/experiments/{order.experiment}/resume", json=said)


def test_nodes_that_never_met_have_started_no_rank_and_are_no_restart_storm(plane: Plane) -> None:
    """Their keepers had begun: three such attempts made a healthy plan NO_GO."""
    experiment = plane.submit({**bundled_plan("demo"), "retry": {"infra": 2}})
    worker = plane.worker()
    for _ in range(3):
        order = plane.next_order(worker)
        worker.start(order)
        text = "the clock of node 1 on node2 is 3600 s behind that of node 0 on node1"
        worker.end(order, {}, "preflight_failed", "infra", code=None, text=text)
    view = plane.wait_state(experiment, "awaiting_decision")
    assert view["verdict"] == "INCONCLUSIVE"
    assert "preflight_failed after 2 retries" in view["waiting_for"]


@pytest.mark.parametrize(
    ("code", "waived"), [("keeper_lost", False), ("halted", False), ("halted", True)]
)
def test_a_condition_that_a_run_had_failed_is_not_met_by_the_one_that_goes_on_alone(
    plane: Plane, tmp_path: Path, code: str, waived: bool
) -> None:
    """The run after it was slow no more, met the condition, and all was GO."""
    plan, slow = bundled_plan("demo"), {"metric": "dt_step_s", "aggregate": "max"}
    first, second = plan["phases"][:2]
    gate = [{**slow, "id": "fast", "pass_below": 0.3, "severity": "conditional"}]
    phases = [{**first, "steps": 6, "gate": gate}, {**second, "steps": 6, "gate": WHOLE_GATE}]
    experiment = plane.submit({**plan, "phases": phases})
    worker = plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    worker.start(order)
    lines = {rank: beats(order, rank, step_s=0.5) for rank in range(order.world_size)}
    worker.ship(order, lines)
    worker.end(order, lines)
    lost = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / lost.run, step=4)
    save_json(tmp_path / "runs" / lost.run / "order.json", lost.document())
    worker.start(lost)
    lines = {rank: beats(lost, rank, upto=4, step_s=0.5) for rank in range(lost.world_size)}
    worker.ship(lost, lines)
    worker.end(lost, lines, code, "operator" if code == "halted" else "infra", code=None)
    if code == "halted":
        plane.wait_state(experiment, "awaiting_decision")
    name = f"{first['name']}:fast"
    if waived:
        said = {"verdict": "CONDITIONAL_GO", "reason": "it will do", "condition": name}
        path = f"/experiments/{experiment}/decisions"
        assert plane.call("POST", path, json=said).is_success
    if code == "halted":
        assert plane.call("POST", f"/experiments/{experiment}/resume", json={}).is_success
    order = plane.next_order(worker)
    assert order.resume_from is not None
    worker.start(order)
    lines = {rank: beats(order, rank) for rank in range(order.world_size)}
    worker.ship(order, lines)
    assert worker.end(order, lines).status_code == 200
    view = plane.wait_state(experiment, "finished")
    assert view["verdict"] == "CONDITIONAL_GO"
    states = {row["id"]: row["state"] for row in view["conditions"]}
    assert states == {
        name: "waived" if waived else "met",
        f"{second['name']}:failed_before": "open",
    }
    told = [row["text"] for row in view["conditions"] if row["state"] == "open"]
    assert told[0].endswith(f"({lost.run} ({code}): {name})")


def of_other_code(order: Order, digit: str = "b") -> dict[int, list[str]]:
    frozen = f'"git_sha": "{order.identity.git_sha or "a" * 40}"'
    return {
        rank: [line.replace(frozen, f'"git_sha": "{digit * 40}"') for line in rows]
        for rank in range(order.world_size)
        if (rows := beats(order, rank, upto=4))
    }


def of_other_steps(order: Order) -> dict[int, list[str]]:
    ordered = f'"tokens": {order.identity.tokens_per_step}'
    return {
        rank: [line.replace(ordered, '"tokens": 7') for line in beats(order, rank, upto=4)]
        for rank in range(order.world_size)
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
    """Preempt a run, perhaps behind a checkpoint; return the conditions where another goes on."""
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


@pytest.mark.parametrize("saved", [True, False])
def test_what_was_trained_at_other_work_is_not_forgotten_by_who_goes_on_with_it(
    plane: Plane, tmp_path: Path, saved: bool
) -> None:
    """A whole run of such steps is NO_GO, and one that was preempted on its way was GO."""
    plan = bundled_plan("demo")
    plane.submit({**plan, "phases": [{**plan["phases"][0], "steps": 6, "gate": WHOLE_GATE}]})
    worker = plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    told = preempted_behind(
        plane, worker, order, of_other_steps(order), tmp_path / "runs", saved=saved
    )
    assert [f"({order.run} (preempted): identity)" in text for text in told] == [True] * saved


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


@pytest.mark.parametrize("told", ["nothing", "other code", "the same"])
def test_what_was_trained_before_any_line_came_may_be_another_code_s(
    plane: Plane, tmp_path: Path, told: str
) -> None:
    """What the next attempt ran was frozen, and went on with the steps of code that nobody knew."""
    plan = bundled_plan("demo")
    experiment = plane.submit(
        {**plan, "phases": [{**plan["phases"][0], "steps": 6, "gate": WHOLE_GATE}]}
    )
    worker = plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / order.run, step=4)
    save_json(tmp_path / "runs" / order.run / "order.json", order.document())
    worker.start(order)
    path = f"/experiments/{experiment}/takeover"
    assert plane.call("POST", path, json={"reason": "no word of it"}).is_success
    again = plane.next_order(worker)
    assert again.resume_from is not None
    if told != "nothing":  # its host is heard again, too late
        worker.ship(order, of_other_code(order, "b" if told == "other code" else "a"))
    worker.run_through(again)
    view = plane.wait_state(experiment, "finished")
    known = told == "the same"
    assert view["verdict"] == ("GO" if known else "CONDITIONAL_GO")
    found = [row["text"] for row in view["conditions"]]
    assert [f"({order.run} (superseded): identity_drift)" in row for row in found] == [True][known:]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["code", "steps"])
def test_nor_is_it_in_another_experiment_that_goes_on_from_there(
    plane: Plane, tmp_path: Path, kind: str
) -> None:
    """It was GO: only whether a run had failed was asked there."""
    plan = bundled_plan("demo")
    phases = [{**row, "steps": 6, "gate": WHOLE_GATE} for row in plan["phases"][:2]]
    plan = {**plan, "phases": phases, "allow_drift": ["git_sha"]}
    first = plane.submit(plan)
    worker = plane.worker(home=tmp_path / "runs")
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / order.run, step=4)
    save_json(tmp_path / "runs" / order.run / "order.json", order.document())
    worker.start(order)
    lines = of_other_code(order) if kind == "code" else of_other_steps(order)
    worker.ship(order, lines)
    assert plane.call("POST", f"/experiments/{first}/cancel", json={}).is_success
    worker.end(order, lines, "cancelled", "operator", code=None)
    plane.wait_state(first, "finished")
    second = plane.submit(plan, origin=f"{first}:{order.phase}")
    again = plane.next_order(worker)
    assert again.resume_from is not None
    worker.run_through(again)
    view = plane.wait_state(second, "finished")
    assert view["verdict"] == "CONDITIONAL_GO"
    (condition,) = view["conditions"]
    assert condition["id"] == f"{order.phase}:unpassed"
    assert f"{order.run} of {first} " in condition["text"]


def test_a_run_that_was_slow_to_its_death_is_slow_though_it_dies_no_more(
    plane: Plane, tmp_path: Path
) -> None:
    """The one that confirmed it went on from its checkpoint, and the gate saw the rest alone."""
    plan = bundled_plan("demo")
    first, second = plan["phases"][:2]
    slow = {"metric": "dt_step_s", "pass_below": 0.3, "min_samples": 10}
    phases = [
        {**first, "steps": 60, "gate": [{**slow, "id": "fast"}]},
        {**second, "steps": 61, "gate": WHOLE_GATE},
    ]
    confirm = {"on": ["process_death"], "variants": []}
    experiment = plane.submit({**plan, "phases": phases, "confirm": confirm})
    worker = plane.worker(home=tmp_path / "runs")
    dead = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / dead.run, step=40)
    save_json(tmp_path / "runs" / dead.run / "order.json", dead.document())
    worker.start(dead)
    finding = {
        "detector": "process_death", "severity": "halt", "rank": 1, "step": 50, "at": 1.0,
        "key": f"{dead.run}:process_death", "text": "rank 1 ended with code 1",
    }  # fmt: skip
    worker.report(dead, finding)
    lines = {rank: beats(dead, rank, upto=50, step_s=0.5) for rank in range(dead.world_size)}
    worker.ship(dead, lines)
    worker.end(dead, lines, "nonzero_exit", "trainer", findings=1, code=1)
    again = plane.next_order(worker)
    assert (again.reason, again.resume_from.step) == ("confirm", 40)
    worker.run_through(again)
    worker.run_through(plane.next_order(worker))
    view = plane.wait_state(experiment, "finished")
    assert view["verdict"] == "CONDITIONAL_GO"
    states = {row["id"]: row["state"] for row in view["conditions"]}
    assert states == {f"{first['name']}:reproduced": "open"}


def test_a_value_between_its_thresholds_is_not_run_again_until_it_is_go(plane: Plane) -> None:
    plan = bundled_plan("demo")
    gate = [{"id": "fast", "metric": "dt_step_s", "pass_below": 0.3, "fail_above": 2.0}]
    first, second = plan["phases"][:2]
    experiment = plane.submit({**plan, "phases": [{**first, "gate": gate}, second]})
    worker = plane.worker()
    grey = []
    for step_s in (0.5, 0.5, 0.2):
        order = plane.next_order(worker)
        worker.start(order)
        lines = {rank: beats(order, rank, step_s=step_s) for rank in range(order.world_size)}
        worker.ship(order, lines)
        assert worker.end(order, lines).status_code == 200
        if step_s == 0.5:
            view = plane.wait_state(experiment, "awaiting_decision")
            assert view["verdict"] == "INCONCLUSIVE"
            grey.append(order.run)
            assert plane.call("POST", f"/experiments/{experiment}/rerun", json={}).is_success
    assert plane.next_order(worker).phase == second["name"]
    view = plane.experiment(experiment)
    assert view["phases"][0]["verdict"] == "CONDITIONAL_GO"
    (condition,) = view["conditions"]
    told = "; ".join(f"{run} (completed): fast" for run in grey)
    assert condition["id"] == f"{first['name']}:failed_before"
    assert f"({told})" in condition["text"]
