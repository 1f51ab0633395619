"""What does each verb do in each state, asked once, asked again, and asked in vain?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.experiments import verbs
from service.rest import verbs as rest_verbs
from tests.data.make_runs import WHOLE_GATE
from tests.service.conftest import Plane
from tests.service.fake_run import save_checkpoint
from tests.service.fake_worker import FakeWorker, beats
from tests.service.test_judging import stalled

HANDS_ON = {
    "phases.sanity.steps": 30,
    "phases.sanity.gate": WHOLE_GATE,
    "phases.sanity.checkpoint": {"every_steps": 10},
    "phases.synthetic.init_from": "sanity",
}
"""The second phase of the demo begins with the weights of the first, which saves some."""


def verb(plane: Plane, experiment: str, name: str, **more: Any) -> Any:
    return plane.call("POST", f"/experiments/{experiment}/{name}", json={"reason": "test"}, **more)


def running(plane: Plane, worker: FakeWorker) -> tuple[str, Any]:
    experiment = plane.submit()
    order = plane.next_order(worker)
    worker.start(order)
    return experiment, order


def fail_halted(worker: FakeWorker, order: Any, reason: str = "halted") -> None:
    """End as the watcher does when asked to stop."""
    upto = worker.saved_step(order)
    lines = {rank: beats(order, rank, upto=upto, done=False) for rank in range(order.world_size)}
    worker.ship(order, lines)
    answer = worker.end(order, lines, reason, "operator", code=3, text="asked")
    assert answer.status_code == 200, answer.text


def test_halt_reaches_the_watcher_and_ends_awaiting_a_decision(plane: Plane) -> None:
    worker = plane.worker()
    experiment, order = running(plane, worker)
    assert verb(plane, experiment, "halt").status_code == 202
    assert verb(plane, experiment, "halt").status_code == 200
    told = worker.telemetry(order).json()["command"]
    assert (told["kind"], told["reason"]) == ("halt", "test")
    fail_halted(worker, order)
    view = plane.wait_state(experiment, "awaiting_decision")
    assert view["verdict"] == "INCONCLUSIVE"
    assert "halted" in view["waiting_for"]
    assert verb(plane, experiment, "halt").status_code == 200
    refused = verb(plane, experiment, "promote")
    assert refused.status_code == 409
    assert refused.json()["state"] == "awaiting_decision"
    assert refused.json()["allowed"] == ["rerun", "resume", "override", "cancel"]
    body = {"verdict": "NO_GO", "reason": "broken"}
    assert plane.call("POST", f"/experiments/{experiment}/decisions", json=body).status_code == 201
    view = plane.experiment(experiment)
    assert (view["state"], view["verdict"]) == ("finished", "NO_GO")
    assert view["phases"][0]["state"] == "failed"


def test_halt_of_a_queued_experiment_needs_no_worker(plane: Plane) -> None:
    experiment = plane.submit()
    assert verb(plane, experiment, "halt").json()["state"] == "stopping"
    view = plane.wait_state(experiment, "awaiting_decision")
    assert plane.worker().claim() is None
    run = plane.get(f"/runs/{view['phases'][0]['runs'][0]}")
    assert run["outcome"] == {
        "code": "halted", "actor": "operator", "class": "operator", "text": "local admin: test",
    }  # fmt: skip


def test_cancel_finishes_without_a_verdict_and_skips_the_phases(plane: Plane) -> None:
    worker = plane.worker()
    experiment, order = running(plane, worker)
    assert verb(plane, experiment, "halt").status_code == 202
    assert verb(plane, experiment, "cancel").status_code == 202
    assert worker.telemetry(order).json()["command"]["kind"] == "cancel"
    fail_halted(worker, order, "cancelled")
    view = plane.wait_state(experiment, "finished")
    assert view["verdict"] is None
    assert view["outcome"]["code"] == "cancelled"
    assert {phase["state"] for phase in view["phases"]} == {"skipped"}
    assert verb(plane, experiment, "cancel").status_code == 200
    assert plane.get(f"/experiments/{experiment}/decisions")["items"][0]["verdict"] is None


def test_a_run_that_completes_while_it_is_halted_starts_nothing_more(plane: Plane) -> None:
    worker = plane.worker()
    experiment, order = running(plane, worker)
    verb(plane, experiment, "halt")
    worker.run_through(order)
    view = plane.wait_state(experiment, "awaiting_decision")
    assert view["phases"][0]["state"] == "passed"
    assert view["waiting_for"].startswith("an approval")
    assert worker.claim() is None
    assert verb(plane, experiment, "promote").status_code == 202
    assert verb(plane, experiment, "promote").status_code == 200
    assert plane.next_order(worker).phase == "synthetic"


def offered(plane: Plane, experiment: str, name: str) -> list[str]:
    steps = plane.experiment(experiment)["next"]
    return [row["text"] for row in steps if f" {name} " in row["command"]]


@pytest.mark.parametrize("name", ["halt", "cancel"])
def test_who_asks_twice_has_the_run_waited_for_no_longer(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    worker = plane.worker()
    experiment, order = running(plane, worker)
    verb(plane, experiment, name)
    monkeypatch.setattr(verbs, "AGAIN_AFTER_S", 3600.0)
    assert verb(plane, experiment, name).status_code == 200, "a double click is one word"
    assert offered(plane, experiment, name) == ["end it at once, without a checkpoint"]
    monkeypatch.setattr(verbs, "AGAIN_AFTER_S", 0.0)
    assert verb(plane, experiment, name).status_code == 202
    told = worker.telemetry(order).json()["command"]
    assert (told["kind"], told["reason"]) == (name, "asked again, to end at once: test")
    assert verb(plane, experiment, name).status_code == 200
    assert offered(plane, experiment, name) == []


@pytest.mark.parametrize("name", ["rerun", "resume"])
def test_a_halted_phase_is_started_again(plane: Plane, name: str) -> None:
    worker = plane.worker()
    experiment, order = running(plane, worker)
    verb(plane, experiment, "halt")
    fail_halted(worker, order)
    plane.wait_state(experiment, "awaiting_decision")
    assert verb(plane, experiment, name).status_code == 202
    assert verb(plane, experiment, name).status_code == 200
    again = plane.next_order(worker)
    assert (again.attempt, again.reason, again.phase) == (2, name, order.phase)
    assert again.token > order.token
    assert plane.experiment(experiment)["cause"]["text"].startswith("sanity: halted")
    worker.start(again)
    assert plane.experiment(experiment)["cause"] is None, "it trains: nothing is against it"
    worker.run_through(again)
    assert plane.next_order(worker).phase == "synthetic"


def test_takeover_fences_the_old_attempt_and_starts_the_next(plane: Plane) -> None:
    worker = plane.worker()
    experiment, order = running(plane, worker)
    assert verb(plane, experiment, "takeover").status_code == 202
    assert verb(plane, experiment, "takeover").status_code == 200
    other = plane.worker(name="w2", host="host-2")
    again = plane.next_order(other)
    assert (again.reason, again.attempt) == ("takeover", 2)
    assert again.token > order.token
    answer = worker.telemetry(order)
    assert answer.json()["command"]["kind"] == "supersede"
    assert plane.get(f"/runs/{order.run}")["outcome"]["code"] == "superseded"
    assert plane.get(f"/experiments/{experiment}/decisions")["items"] == []


@pytest.mark.parametrize("detector", ["non_finite", "stall"])
@pytest.mark.parametrize("lost", ["takeover", "reboot"])
def test_a_run_that_failed_by_its_own_lines_is_not_forgotten_because_its_end_is_lost(
    plane: Plane, lost: str, detector: str
) -> None:
    """Its next attempt could pass, and nothing would say that it had failed."""
    worker = plane.worker()
    experiment, order = running(plane, worker)
    worker.report(
        order,
        {"detector": "alive_lost", "severity": "suspect", "at": 1.0, "key": "a", "text": "silent"},
        {
            "detector": "memory_leak",
            "severity": "halt",
            "act": "at_checkpoint",
            "at": 1.0,
            "key": "waits",
            "text": "it hits its limit in about 50 min",
        },
        {"detector": detector, "severity": "halt", "at": 1.0, "key": "b", "text": "it is NaN"},
    )
    if lost == "takeover":
        assert verb(plane, experiment, "takeover").status_code == 202
    else:
        worker.boot_id = "boot-2"
        worker.claim()
    if detector == "stall":  # which a host that goes down may make
        assert plane.next_order(worker).attempt == 2
        return
    view = plane.wait_state(experiment, "finished")
    assert view["verdict"] == "NO_GO"
    outcome = plane.get(f"/runs/{order.run}")["outcome"]
    assert (outcome["code"], outcome["actor"]) == ("non_finite", "watchdog")
    assert outcome["text"].startswith("it is NaN; then ")
    (decision,) = plane.get(f"/experiments/{experiment}/decisions")["items"]
    assert (decision["verdict"], decision["run"]) == ("NO_GO", order.run)
    assert worker.telemetry(order).json()["command"]["kind"] == "supersede"


def test_what_a_verb_goes_on_from_is_looked_up_again_where_the_run_ends_meanwhile(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints are read before anything is locked: the next phase had none, or an earlier."""
    home = tmp_path / "runs"
    experiment = plane.submit(set={**HANDS_ON, "phases.sanity.approve": "always"})
    worker = plane.worker(home=home)
    order = plane.next_order(worker)
    save_checkpoint(home / order.run, step=10)
    looks = []
    look = rest_verbs._FINDS["promote"]

    def slow(*asked: Any) -> Any:
        looks.append(found := look(*asked))
        if len(looks) == 1:
            save_checkpoint(home / order.run, step=30)
            worker.run_through(order)
            plane.wait_state(experiment, "awaiting_decision")
        return found

    monkeypatch.setitem(rest_verbs._FINDS, "promote", slow)
    assert verb(plane, experiment, "promote").status_code == 202
    assert len(looks) == 2
    following = plane.next_order(worker)
    assert following.resume_from.path == str(home / order.run / "checkpoints" / "step_000030")


@pytest.mark.parametrize("how", ["rerun", "takeover", "confirm", "remedy"])
def test_a_phase_run_again_from_its_start_begins_with_the_weights_it_began_with(
    plane: Plane, tmp_path: Path, how: str
) -> None:
    """It began with none, and passed: another training than the plan says."""
    home = tmp_path / "runs"
    sets: dict[str, Any] = {
        "phases.sanity.checkpoint": {"every_steps": 1},
        "phases.synthetic.init_from": "sanity",
        "phases.synthetic.steps": 30,
    }
    if how == "confirm":
        sets["confirm"] = {"on": ["stall"], "variants": []}
    if how == "remedy":  # no checkpoint resumes with another seed
        sets |= {"remedies": {"hang_in_compute": {"train": {"seed": 8}}}, "max_remedies": 1}
    experiment = plane.submit(set=sets)
    worker = plane.worker(home=home)
    first = plane.next_order(worker)
    save_checkpoint(home / first.run, step=1)
    worker.run_through(first)
    order = plane.next_order(worker)
    weights = order.resume_from
    assert weights is not None
    assert (weights.step, Path(weights.path).parent.parent.name) == (0, first.run)
    if how in ("confirm", "remedy"):
        stalled(plane, worker, order)
    else:
        worker.start(order)
        save_checkpoint(home / order.run, step=20)
        verb(plane, experiment, "halt")
        fail_halted(worker, order)
        plane.wait_state(experiment, "awaiting_decision")
        verb(plane, experiment, "rerun")
    again = plane.next_order(worker)
    assert (again.phase, again.resume_from) == ("synthetic", weights)
    if how == "takeover":
        worker.state(again, "check", dir=str(home / again.run))
        worker.start(again)
        assert verb(plane, experiment, "takeover").status_code == 202
        assert plane.next_order(worker).resume_from == weights


def test_nothing_can_be_asked_of_a_finished_experiment_but_an_override(plane: Plane) -> None:
    experiment = plane.submit()
    verb(plane, experiment, "cancel")
    plane.wait_state(experiment, "finished")
    for name in ("halt", "resume", "promote", "rerun", "takeover"):
        answer = verb(plane, experiment, name)
        assert answer.status_code == 409, name
        assert answer.json()["allowed"] == ["override"]
        assert answer.json()["state"] == "finished"


@pytest.mark.long
def test_weights_are_those_of_the_variant_that_passed_not_of_the_run_that_died(
    plane: Plane, tmp_path: Path
) -> None:
    """The phase after it began with what a run had saved that died."""
    variants = [{"env": {"NSA_MEM_DUMP_EVERY": 2}}, {"env": {"NSA_MEM_DUMP_EVERY": 3}}]
    sets = {**HANDS_ON, "confirm": {"on": ["process_death"], "variants": variants}}
    experiment, worker = plane.submit(set=sets), plane.worker(home=tmp_path)
    died = {"detector": "process_death", "severity": "halt", "at": 1.0, "key": "b", "text": "died"}
    for passes in (False, False, True):
        order = plane.next_order(worker)
        save_checkpoint(tmp_path / order.run, step=30 if passes else 20)
        if passes:
            passed = order.run
            worker.run_through(order)
            continue
        worker.start(order)
        assert worker.report(order, {**died, "step": 29}).status_code == 200
        lines = {rank: beats(order, rank, upto=29, done=False) for rank in (0, 1)}
        worker.ship(order, lines)
        worker.end(order, lines, "nonzero_exit", "watchdog", code=1, findings=1)
    view = plane.wait_state(experiment, "awaiting_decision")
    assert view["phases"][0]["verdict"] == "CONDITIONAL_GO"
    assert verb(plane, experiment, "promote").status_code == 202
    order = plane.next_order(worker)
    assert order.resume_from is not None
    assert passed in order.resume_from.path
