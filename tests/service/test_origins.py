"""What does an experiment take over from one that ended, and what does it refuse to?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.facts import Facts
from gonogo.contract.order import Order
from gonogo.planning.source import bundled_plan
from gonogo.rundir import RunDir, save_json
from service.experiments import checkpoints
from service.judging.assessors import Unjudged
from service.judging.ended import Assessment, Case, assess
from tests.data.make_runs import WHOLE_GATE
from tests.service.conftest import Plane
from tests.service.fake_run import PREFLIGHT, save_checkpoint
from tests.service.fake_worker import FakeWorker, beats
from tests.service.test_judging import stalled
from tests.service.test_verbs import fail_halted, running, verb

NAMES = ["sanity", "synthetic", "smoke", "extended", "production"]


@dataclass(frozen=True)
class Ended:
    """An experiment that failed in its third phase, after a checkpoint."""

    id: str
    worker: FakeWorker
    home: Path
    smoke: str
    """The run that failed."""


def fail(worker: FakeWorker, order: Order, *, upto: int = 0, reason: str = "stalled") -> None:
    worker.start(order)
    upto = max(upto, worker.saved_step(order))
    lines = {rank: beats(order, rank, upto=upto, done=False) for rank in range(order.world_size)}
    worker.ship(order, lines)
    assert worker.end(order, lines, reason, "watchdog", code=1).status_code == 200


@pytest.fixture
def ended(plane: Plane, tmp_path: Path) -> Ended:
    home = tmp_path / "runs"
    experiment = plane.submit()
    worker = plane.worker(home=home)
    for _ in range(2):
        worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    save_checkpoint(home / order.run, step=20)
    save_checkpoint(home / order.run, step=10)
    fail(worker, order, upto=25)
    view = plane.wait_state(experiment, "finished")
    assert view["verdict"] == "NO_GO"
    return Ended(experiment, worker, home, order.run)


def offered(plane: Plane, experiment: str, **more: Any) -> str:
    """The origin that its next command names, which is accepted as it stands."""
    lines = [row["command"] for row in plane.experiment(experiment)["next"]]
    (origin,) = [line.partition(" --from ")[2] for line in lines if " --from " in line]
    body = {"plan": "demo", "origin": origin, "dry_run": True, **more}
    answer = plane.call("POST", "/experiments", json=body)
    assert answer.status_code == 200, answer.text
    return origin


def refused(plane: Plane, origin: str, status: int = 422, **more: Any) -> str:
    """What is answered to a submission that takes over too much; nothing is stored."""
    before = len(plane.get("/experiments")["items"])
    answer = plane.call("POST", "/experiments", json={"plan": "demo", "origin": origin, **more})
    assert answer.status_code == status, answer.text
    assert len(plane.get("/experiments")["items"]) == before
    return str(answer.json()["detail"])


def test_it_goes_on_after_the_last_checkpoint_of_the_phase_that_failed(
    plane: Plane, ended: Ended
) -> None:
    going = plane.submit(origin=f"{ended.id}:smoke")
    view = plane.experiment(going)
    assert view["origin"] == {
        "experiment": ended.id,
        "phase": "smoke",
        "step": 20,
        "host": "host-1",
    }
    states = [(row["state"], row["verdict"], len(row["runs"])) for row in view["phases"]]
    assert states[:3] == [("inherited", "GO", 0), ("inherited", "GO", 0), ("active", None, 1)]
    order = plane.next_order(ended.worker)
    assert (order.experiment, order.phase, order.reason) == (going, "smoke", "resume")
    assert order.resume_from is not None
    assert (order.resume_from.step, ended.smoke in order.resume_from.path) == (20, True)
    (row,) = plane.wait(
        lambda: [
            event
            for event in plane.get("/events", limit=1000)["items"]
            if event["type"] == "experiment.continued"
        ]
    )
    assert (row["experiment"], row["data"]["by"]) == (ended.id, going)


@pytest.mark.long
def test_it_waits_for_the_host_that_has_its_checkpoint(plane: Plane, ended: Ended) -> None:
    other = plane.worker(name="w2", host="host-2", boot_id="boot-9")
    second = plane.submit(origin=f"{ended.id}:smoke")
    ended.worker.claim(free=[])
    assert other.claim() is None
    waits = plane.experiment(second)["waiting_for"]
    assert waits.endswith("which goes on from step 20 on host-1")
    order = plane.next_order(ended.worker)
    assert (order.experiment, order.resume_from and order.resume_from.step) == (second, 20)


@pytest.mark.long
def test_where_its_host_is_gone_another_tries_and_says_what_is_missing(
    plane: Plane, ended: Ended
) -> None:
    other = plane.worker(name="w2", host="host-2", boot_id="boot-9")
    second = plane.submit(origin=f"{ended.id}:smoke", set={"retry.infra": 1})
    ended.worker.claim(draining=True)
    lacks = {"id": "resume", "outcome": "fail", "text": "there is no checkpoint in /far"}
    checks = [*(row for row in PREFLIGHT["checks"] if row["id"] != "resume"), lacks]
    record = {"passed": False, "checks": checks}
    exit_record = {
        "code": None, "signal": None, "ended_at": 1.0, "ended_by": "infra",
        "reason": "preflight_failed", "text": f"resume: {lacks['text']}", "ranks": {},
    }  # fmt: skip
    rest = {"sizes": {}, "findings": 0, "files": {}, "records": {}}
    for attempt in (1, 2):
        order = plane.next_order(other)
        assert (order.attempt, order.resume_from and order.resume_from.step) == (attempt, 20)
        other.state(order, "check", dir=f"/far/{order.run}")
        answer = other.state(order, "end", exit=exit_record, preflight=record, **rest)
        assert answer.status_code == 200, answer.text
    view = plane.wait_state(second, "awaiting_decision")
    assert "there is no checkpoint in /far" in view["cause"]["text"]


def test_it_can_come_to_go_and_says_what_it_took_over(plane: Plane, ended: Ended) -> None:
    going = plane.submit(origin=f"{ended.id}:smoke")
    for _ in NAMES[2:]:
        ended.worker.run_through(plane.next_order(ended.worker))
    view = plane.wait_state(going, "finished")
    assert view["verdict"] == "GO", view["summary"]
    assert view["never_ran"] == []
    assert view["summary"] == (
        f"sanity and synthetic passed in {ended.id}; smoke continues after step 20 of {ended.id}. "
        "Every phase passed."
    )


@pytest.mark.long
def test_a_phase_that_did_not_pass_at_its_end_is_begun_anew(plane: Plane, tmp_path: Path) -> None:
    """Its last steps alone are not the phase: neither `resume` nor `--from` goes on with them."""
    experiment, worker = plane.submit(), plane.worker(home=tmp_path / "runs")
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / order.run, step=8)
    worker.start(order)
    lines = {rank: beats(order, rank, upto=9, done=False) for rank in range(order.world_size)}
    worker.ship(order, lines)
    assert worker.end(order, lines).status_code == 200
    view = plane.wait_state(experiment, "awaiting_decision")
    assert "resume" not in [step["command"].split()[1] for step in view["next"]]
    late = plane.call("POST", f"/experiments/{experiment}/resume", json={"reason": "more"})
    assert (late.status_code, late.json()["allowed"]) == (409, ["rerun", "override", "cancel"])
    for asked in ("rerun", "halt"):  # a run that came to no host changes nothing of this
        plane.call("POST", f"/experiments/{experiment}/{asked}", json={"reason": "again"})
    plane.wait_state(experiment, "awaiting_decision")
    plane.call("POST", f"/experiments/{experiment}/resume", json={"reason": "more"})
    again = plane.next_order(worker)
    assert (again.reason, again.resume_from) == ("resume", None)
    worker.start(again)
    plane.call("POST", f"/experiments/{experiment}/cancel", json={"reason": "enough"})
    fail_halted(worker, again, "cancelled")
    plane.wait_state(experiment, "finished")
    said = refused(plane, f"{experiment}:synthetic@8")
    assert f"went to its last step in {experiment} and is not GO" in said
    plane.submit(origin=f"{experiment}:synthetic@0")


@pytest.mark.parametrize(("step_s", "taken"), [(0.2, False), (0.1, True)], ids=["open", "GO"])
def test_a_phase_that_left_a_condition_open_at_its_end_is_begun_anew(
    plane: Plane, tmp_path: Path, step_s: float, taken: bool
) -> None:
    """Its last steps alone may meet what all of them did not, and would be GO."""
    pace = {
        "id": "pace", "metric": "dt_step_s", "aggregate": "median", "over_ranks": "max",
        "pass_below": 0.15, "severity": "conditional",
    }  # fmt: skip
    sets = {"phases.sanity.gate": [pace], "phases.sanity.steps": 30}
    experiment, worker = plane.submit(set=sets), plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / order.run, step=20)
    worker.start(order)
    lines = {rank: beats(order, rank, step_s=step_s) for rank in range(order.world_size)}
    worker.ship(order, lines)
    assert worker.end(order, lines).status_code == 200
    fail(worker, plane.next_order(worker))
    view = plane.wait_state(experiment, "finished")
    assert view["phases"][0]["verdict"] == ("GO" if taken else "CONDITIONAL_GO")
    if taken:
        plane.submit(origin=f"{experiment}:sanity@20", set=sets)
        return
    said = refused(plane, f"{experiment}:sanity@20", set=sets)
    assert f"sanity went to its last step in {experiment} and is not GO" in said
    assert offered(plane, experiment, set=sets) == f"{experiment}:sanity@0"
    longer = plane.submit(origin=f"{experiment}:sanity@20", set={**sets, "phases.sanity.steps": 40})
    assert plane.experiment(longer)["origin"]["step"] == 20


def test_a_rerun_that_came_to_no_host_changes_nothing_of_where_to_begin(
    plane: Plane, tmp_path: Path
) -> None:
    """The next command is accepted, whatever was asked for after the phase had ended."""
    gate = "phases.sanity.gate.finite.min_samples"
    experiment, worker = plane.submit(set={gate: 99}), plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / order.run, step=order.steps)
    worker.run_through(order)
    plane.wait_state(experiment, "awaiting_decision")
    for asked in ("rerun", "cancel"):
        answer = plane.call("POST", f"/experiments/{experiment}/{asked}", json={"reason": "so"})
        assert answer.status_code == 202, answer.text
    plane.wait_state(experiment, "finished")
    assert offered(plane, experiment, set={gate: 99}) == f"{experiment}:sanity@0"


def test_what_conditions_left_open_there_counts_as_they_were_met_there(plane: Plane) -> None:
    pace = {
        "id": "pace", "metric": "dt_step_s", "aggregate": "median", "over_ranks": "max",
        "pass_below": 0.15, "severity": "conditional",
    }  # fmt: skip
    sets = {"phases.sanity.gate": [pace], "phases.sanity.steps": 20}
    experiment, worker = plane.submit(set=sets), plane.worker()
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    worker.start(order)
    lines = {rank: beats(order, rank, step_s=0.1) for rank in (0, 1)}
    worker.ship(order, lines)
    worker.end(order, lines)
    fail(worker, plane.next_order(worker))
    view = plane.wait_state(experiment, "finished")
    assert [row["state"] for row in view["conditions"]] == ["met"]
    going = plane.submit(origin=f"{experiment}:smoke", set=sets)
    for _ in NAMES[2:]:
        worker.run_through(plane.next_order(worker))
    view = plane.wait_state(going, "finished")
    assert (view["verdict"], view["conditions"]) == ("GO", [])
    assert [row["verdict"] for row in view["phases"]] == ["GO"] * 5


@pytest.mark.long
def test_a_condition_that_was_met_by_a_phase_that_is_made_anew_is_not_met(plane: Plane) -> None:
    """Made anew, that phase may come to another value, and nobody asks it any more."""
    pace = {
        "id": "pace", "metric": "dt_step_s", "aggregate": "median", "over_ranks": "max",
        "pass_below": 0.15, "severity": "conditional",
    }  # fmt: skip
    sets = {
        "phases.sanity.gate": [pace],
        "phases.sanity.steps": 20,
        "phases.synthetic.approve": "always",
    }
    experiment, worker = plane.submit(set=sets), plane.worker()
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    worker.start(order)
    lines = {rank: beats(order, rank, step_s=0.1) for rank in (0, 1)}
    worker.ship(order, lines)
    worker.end(order, lines)
    view = plane.wait_state(experiment, "awaiting_decision")
    assert view["conditions"][0]["state"] == "met"
    verb(plane, experiment, "cancel")
    plane.wait_state(experiment, "finished")
    said = refused(plane, f"{experiment}:synthetic@0", set=sets)
    assert f"sanity:pace was met in {experiment} by synthetic, which is made anew" in said
    assert offered(plane, experiment, set=sets) == f"{experiment}:sanity@0"


def test_code_that_was_mended_goes_on_where_the_plan_lets_it_drift(
    plane: Plane, ended: Ended
) -> None:
    origin, sets = f"{ended.id}:smoke", {"allow_drift": ["git_sha"]}
    lax = plane.submit(origin=origin, set=sets)
    order = plane.next_order(ended.worker)
    assert (order.allow_drift, order.identity.git_sha) == (["git_sha"], "a" * 40)
    fail(ended.worker, order)
    plane.wait_state(lax, "finished")
    strict = refused(plane, f"{lax}:extended")
    assert "smoke is ordered otherwise than there (allow_drift)" in strict


@pytest.mark.long
def test_code_torch_and_devices_stay_those_that_were_frozen(plane: Plane, ended: Ended) -> None:
    plane.submit(origin=f"{ended.id}:smoke")
    order = plane.next_order(ended.worker)
    assert (order.identity.git_sha, order.identity.torch) == ("a" * 40, "2.13.0")


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "step"), [("smoke@10", 10), ("smoke@0", None), ("synthetic@0", None)]
)
def test_the_checkpoint_can_be_chosen(
    plane: Plane, ended: Ended, asked: str, step: int | None
) -> None:
    plane.submit(origin=f"{ended.id}:{asked}")
    order = plane.next_order(ended.worker)
    assert (order.resume_from.step if order.resume_from else None) == step
    assert order.phase == asked.partition("@")[0]


@pytest.mark.long
def test_a_retry_before_the_first_own_checkpoint_begins_where_it_took_over(
    plane: Plane, ended: Ended
) -> None:
    plane.submit(origin=f"{ended.id}:smoke")
    order = plane.next_order(ended.worker)
    ended.worker.start(order)
    ended.worker.end(order, {}, "keeper_lost", "infra", code=None)
    again = plane.next_order(ended.worker)
    assert again.attempt == 2
    assert again.resume_from == order.resume_from


@pytest.mark.long
def test_what_goes_on_can_itself_be_gone_on_with(plane: Plane, ended: Ended) -> None:
    second = plane.submit(origin=f"{ended.id}:smoke")
    order = plane.next_order(ended.worker)
    fail(ended.worker, order, upto=22)
    plane.wait_state(second, "finished")
    third = plane.submit(origin=f"{second}:smoke")
    again = plane.next_order(ended.worker)
    assert (again.experiment, again.resume_from) == (third, order.resume_from)
    report = plane.call("GET", f"/experiments/{third}/report").text
    assert f"--from {second}:smoke@20" in report, "what repeats it"
    assert "there are: 20" in refused(plane, f"{second}:smoke@10")
    fourth = plane.experiment(plane.submit(origin=f"{second}:smoke@20"))
    (run,) = fourth["phases"][2]["runs"]
    assert plane.get(f"/runs/{run}")["resume_from"] == order.resume_from.wire()
    assert fourth["origin"]["host"] == "host-1"


@pytest.mark.long
def test_what_was_not_shown_is_not_taken_over(plane: Plane, ended: Ended) -> None:
    for phase, words in (
        ("extended", "smoke is NO_GO in"),
        ("production", "smoke is NO_GO in"),
        ("smok", "did you mean smoke?"),
        ("smoke@15", "there are: 10, 20"),
        ("smoke@x", "expected EXPERIMENT:PHASE"),
        ("", "expected EXPERIMENT:PHASE"),
    ):
        assert words in refused(plane, f"{ended.id}:{phase}"), phase


@pytest.mark.long
def test_phases_that_are_ordered_otherwise_now_are_run_again(plane: Plane, ended: Ended) -> None:
    origin = f"{ended.id}:smoke"
    said = refused(plane, origin, set={"train.optim.lr": 2e-3})
    assert "sanity is ordered otherwise than there" in said
    assert "train.optim.lr" in said
    said = refused(plane, origin, set={"phases.synthetic.steps": 11})
    assert "synthetic is ordered otherwise" in said
    assert "sanity" not in said
    plane.submit(origin=origin, set={"phases.smoke.env.NSA_TB_DISABLE": 0})


@pytest.mark.long
def test_a_checkpoint_of_another_model_is_refused(plane: Plane, tmp_path: Path) -> None:
    experiment = plane.submit(set={"phases.sanity.steps": 30})
    worker = plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / order.run, step=10)
    fail(worker, order)
    plane.wait_state(experiment, "finished")
    other = {"phases.sanity.steps": 30, "train.model.layers": 5, "train.params": 4_014_968}
    said = refused(plane, f"{experiment}:sanity", set=other)
    assert "other work" in said
    assert "layers" in said
    assert f"{experiment}:sanity@0 begins it anew" in said
    for name, value in (("seed", 7), ("attention.w", 32), ("batch.global_seqs", 8)):
        unlike = {"phases.sanity.steps": 30, f"train.{name}": value}
        said = refused(plane, f"{experiment}:sanity", set=unlike)
        assert f"other work than in {experiment} ({name})" in said
    plane.submit(origin=f"{experiment}:sanity@0", set=other)
    assert plane.next_order(worker).resume_from is None


@pytest.mark.long
def test_a_checkpoint_of_another_programs_other_data_is_refused(
    plane: Plane, tmp_path: Path
) -> None:
    """What trained on the easy data for most of its steps passes no phase on the hard."""

    def mine(**phase: Any) -> dict[str, Any]:
        return {"v": 1, "name": "mine", "profile": "cpu", "workload": {"command": "train"},
                "identity": {"seq_len": 64, "tokens_per_step": 128},
                "phases": [{"name": "smoke", "steps": 30, **phase}]}  # fmt: skip

    worker = plane.worker(home=tmp_path / "runs")
    for phase, told in (({"data": "easy"}, "easy"), ({}, "easy"), ({}, None)):
        experiment = plane.submit(mine(**phase))
        order = plane.next_order(worker, allow=["train"])
        save_checkpoint(tmp_path / "runs" / order.run, step=10)
        said = order.identity.model_copy(update={"dataset": told})
        fail(worker, order.model_copy(update={"identity": said}), upto=15)
        plane.wait_state(experiment, "finished")
        origin = f"{experiment}:smoke"
        words = refused(plane, origin, plan=mine(data="hard"))
        assert f"smoke is other work than in {experiment} (dataset)" in words
        longer = {"identity.tokens_per_step": 256}
        words = refused(plane, origin, plan=mine(**phase), set=longer)
        assert f"smoke is other work than in {experiment} (tokens_per_step)" in words
        if told is not None:
            plane.submit(mine(data="easy"), origin=origin)
            again = plane.next_order(worker, allow=["train"])
            assert again.resume_from.step == 10
            fail(worker, again, upto=15)


def test_what_has_not_ended_or_is_not_there_is_refused(plane: Plane) -> None:
    experiment = plane.submit()
    said = refused(plane, f"{experiment}:sanity", 409)
    assert f"gonogo cancel {experiment}" in said
    refused(plane, f"exp_{'0' * 26}:sanity", 404)


@pytest.mark.long
def test_a_phase_that_a_person_decided_is_not_taken_over(plane: Plane, ended: Ended) -> None:
    etag = plane.call("GET", f"/experiments/{ended.id}").headers["ETag"]
    body = {"verdict": "GO", "reason": "I know better"}
    answer = plane.call(
        "POST", f"/experiments/{ended.id}/decisions", json=body, headers={"If-Match": etag}
    )
    assert answer.status_code == 201, answer.text
    assert "smoke" in refused(plane, f"{ended.id}:extended")


@pytest.mark.long
def test_a_phase_that_went_on_by_hand_is_not_taken_over(plane: Plane) -> None:
    """It reads as passed, and what passed it is a person's word."""
    sets = {"phases.sanity.gate.finite.min_samples": 99}
    experiment = plane.submit(set=sets)
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    plane.wait_state(experiment, "awaiting_decision")
    body = {"verdict": "GO", "reason": "I know better"}
    assert plane.call("POST", f"/experiments/{experiment}/decisions", json=body).status_code == 201
    fail(worker, plane.next_order(worker))
    assert plane.wait_state(experiment, "finished")["phases"][0]["state"] == "passed"
    said = refused(plane, f"{experiment}:synthetic")
    assert f"sanity was decided by hand in {experiment}" in said
    assert offered(plane, experiment, set=sets) == f"{experiment}:sanity@0"


@pytest.mark.long
def test_a_phase_that_was_called_no_go_after_it_was_taken_over_is_not_taken_over_again(
    plane: Plane,
) -> None:
    worker = plane.worker()
    first, order = running(plane, worker)
    verb(plane, first, "halt")
    worker.run_through(order)
    plane.wait_state(first, "awaiting_decision")
    verb(plane, first, "cancel")
    second = plane.submit(origin=f"{first}:synthetic")
    verb(plane, second, "cancel")
    plane.wait_state(second, "finished")
    body = {"verdict": "NO_GO", "reason": "it was wrong"}
    assert plane.call("POST", f"/experiments/{first}/decisions", json=body).status_code == 201
    said = refused(plane, f"{second}:synthetic")
    assert f"sanity was decided by hand in {first}" in said


def test_a_phase_that_waits_for_its_approval_is_not_gone_on_with(plane: Plane) -> None:
    """Cancelling is no consent; the command that is named begins with the phase before."""
    sets = {"phases.synthetic.approve": "always"}
    experiment = plane.submit(set=sets)
    worker = plane.worker()
    for _ in range(2):
        worker.run_through(plane.next_order(worker))
    plane.wait_state(experiment, "awaiting_decision")
    assert plane.call("POST", f"/experiments/{experiment}/cancel", json={"reason": "no"}).is_success
    summary = plane.wait_state(experiment, "finished")["summary"]
    assert "cancelled by local admin: no. Passed by evidence: sanity and synthetic." in summary
    said = refused(plane, f"{experiment}:smoke", set=sets)
    assert f"begin with it: {experiment}:synthetic@0" in said
    assert offered(plane, experiment, set=sets) == f"{experiment}:synthetic@0"


@pytest.mark.long
def test_an_approval_that_only_the_new_plan_asks_for_was_given_by_nobody(
    plane: Plane, ended: Ended
) -> None:
    """The phase had begun there without one."""
    sets = {"phases.synthetic.approve": "always"}
    said = refused(plane, f"{ended.id}:smoke", set=sets)
    assert f"smoke waits for an approval after synthetic, and nobody gave it in {ended.id}" in said
    assert f"begin with it: {ended.id}:synthetic@0" in said
    second = plane.submit(origin=f"{ended.id}:synthetic@0", set=sets)
    ended.worker.run_through(plane.next_order(ended.worker))
    plane.wait_state(second, "awaiting_decision")
    assert plane.call("POST", f"/experiments/{second}/promote", json={}).is_success
    order = plane.next_order(ended.worker)
    save_checkpoint(ended.home / order.run, step=20)
    fail(ended.worker, order, upto=25)
    plane.wait_state(second, "finished")
    third = plane.submit(origin=f"{second}:smoke", set=sets)
    order = plane.next_order(ended.worker)
    assert (order.experiment, order.resume_from and order.resume_from.step) == (third, 20)
    fail(ended.worker, order)
    plane.wait_state(third, "finished")
    assert plane.submit(origin=f"{third}:smoke", set=sets), "it had it, two experiments before"


@pytest.mark.long
def test_nor_was_one_that_it_asks_for_between_phases_that_are_taken_over(
    plane: Plane, ended: Ended
) -> None:
    """The plan lets a person see what sanity came to, and nobody did, there or here."""
    sets = {"phases.sanity.approve": "always"}
    said = refused(plane, f"{ended.id}:smoke", set=sets)
    assert f"synthetic waits for an approval after sanity, and nobody gave it in {ended.id}" in said
    assert f"begin with it: {ended.id}:sanity" in said
    second = plane.submit(set=sets)
    ended.worker.run_through(plane.next_order(ended.worker))
    plane.wait_state(second, "awaiting_decision")
    assert plane.call("POST", f"/experiments/{second}/promote", json={}).is_success
    ended.worker.run_through(plane.next_order(ended.worker))
    for _ in range(2):
        fail(ended.worker, plane.next_order(ended.worker))
        plane.wait_state(second, "finished")
        second = plane.submit(origin=f"{second}:smoke", set=sets)


@pytest.mark.long
def test_nor_was_one_after_a_condition_that_was_met_before_it_was_taken_over(
    plane: Plane,
) -> None:
    """What is taken over as GO was CONDITIONAL_GO when its approval would have been asked for."""
    pace = {
        "id": "pace", "metric": "dt_step_s", "aggregate": "median", "over_ranks": "max",
        "pass_below": 0.15, "severity": "conditional",
    }  # fmt: skip
    sets = {"phases.sanity.gate": [pace], "phases.sanity.steps": 20}
    first, worker = plane.submit(set=sets), plane.worker()
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    worker.start(order)
    lines = {rank: beats(order, rank, step_s=0.1) for rank in (0, 1)}
    worker.ship(order, lines)
    worker.end(order, lines)
    fail(worker, plane.next_order(worker))
    plane.wait_state(first, "finished")
    second = plane.submit(origin=f"{first}:smoke", set=sets)
    fail(worker, plane.next_order(worker))
    assert plane.wait_state(second, "finished")["phases"][0]["verdict"] == "GO"
    asks = {**sets, "phases.sanity.approve": "on_conditional"}
    for experiment in (first, second):
        said = refused(plane, f"{experiment}:smoke", set=asks)
        assert "synthetic waits for an approval after sanity, and nobody gave it in" in said
    assert plane.submit(origin=f"{second}:smoke", set=sets), "where nobody asks for one"


def test_a_phase_that_ended_is_begun_anew(plane: Plane, tmp_path: Path) -> None:
    experiment = plane.submit()
    worker = plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / order.run, step=order.steps)
    worker.run_through(order)
    fail(worker, plane.next_order(worker))
    plane.wait_state(experiment, "finished")
    said = refused(plane, f"{experiment}:sanity")
    assert f"{experiment}:sanity@0 begins it anew" in said
    assert offered(plane, experiment) == f"{experiment}:synthetic"


def test_a_run_that_died_with_its_last_step_done_is_gone_on_with_from_the_one_before(
    plane: Plane, tmp_path: Path
) -> None:
    """After its last checkpoint nothing is to do; the command that is named is accepted."""
    sets = {"phases.sanity.steps": 30}
    experiment = plane.submit(set=sets)
    worker = plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    for step in (10, 20, 30):
        save_checkpoint(tmp_path / "runs" / order.run, step=step)
    fail(worker, order, upto=30)
    plane.wait_state(experiment, "finished")
    assert offered(plane, experiment, set=sets) == f"{experiment}:sanity"
    said = refused(plane, f"{experiment}:sanity@30", set=sets)
    assert "30 are done already" in said
    longer = plane.submit(origin=f"{experiment}:sanity", set={"phases.sanity.steps": 40})
    assert plane.experiment(longer)["origin"]["step"] == 30
    going = plane.submit(origin=f"{experiment}:sanity", set=sets)
    assert plane.experiment(going)["origin"]["step"] == 20


@pytest.mark.long
def test_a_run_that_died_with_its_only_checkpoint_at_the_end_is_begun_anew(
    plane: Plane, tmp_path: Path
) -> None:
    experiment = plane.submit()
    worker = plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / order.run, step=order.steps)
    fail(worker, order, upto=order.steps)
    plane.wait_state(experiment, "finished")
    going = plane.submit(origin=offered(plane, experiment))
    assert plane.experiment(going)["origin"]["step"] == 0
    plane.call("POST", f"/experiments/{going}/cancel", json={})
    shorter = {"phases.sanity.steps": 20}
    experiment = plane.submit(set={"phases.sanity.steps": 30})
    order = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / order.run, step=10)
    save_checkpoint(tmp_path / "runs" / order.run, step=25)
    fail(worker, order, upto=26)
    plane.wait_state(experiment, "finished")
    assert "25 are done already" in refused(plane, f"{experiment}:sanity", set=shorter)


def end_unpassed(plane: Plane, worker: FakeWorker, home: Path, sets: dict[str, Any]) -> str:
    """An experiment whose second phase went to its last step and did not pass."""
    experiment = plane.submit(set=sets)
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    for step in (10, 20):
        save_checkpoint(home / order.run, step=step)
    worker.start(order)
    upto = order.steps - 1
    lines = {rank: beats(order, rank, upto=upto, done=False) for rank in range(order.world_size)}
    worker.ship(order, lines)
    assert worker.end(order, lines).status_code == 200
    plane.wait_state(experiment, "awaiting_decision")
    cancel(plane, experiment)
    return experiment


def cancel(
    plane: Plane, experiment: str, worker: FakeWorker | None = None, order: Any = None
) -> None:
    """End an experiment, and the run that is under way."""
    assert plane.call("POST", f"/experiments/{experiment}/cancel", json={}).is_success
    if worker is not None:
        fail_halted(worker, order, "cancelled")
    plane.wait_state(experiment, "finished")


@pytest.mark.long
def test_of_a_phase_only_the_checkpoint_that_is_asked_for_is_read(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever submits waits for it; all of a long phase are hundreds of gigabytes."""
    sets, longer = ({"phases.synthetic.steps": steps} for steps in (30, 31))
    first = end_unpassed(plane, plane.worker(home=tmp_path / "runs"), tmp_path / "runs", sets)
    read: list[str] = []
    real = checkpoints._sha256
    monkeypatch.setattr(
        checkpoints, "_sha256", lambda path: read.append(path.parent.name) or real(path)
    )
    for step in (10, 20):
        read.clear()
        again = plane.submit(origin=f"{first}:synthetic@{step}", set=longer)
        assert plane.experiment(again)["origin"]["step"] == step
        assert set(read) == {f"step_{step:06d}"}
    assert "there are: 10, 20" in refused(plane, f"{first}:synthetic@15", set=longer)


@pytest.mark.long
@pytest.mark.parametrize("own", [False, True], ids=["as it was", "after a checkpoint of its own"])
def test_a_phase_that_did_not_pass_is_not_gone_on_with_by_way_of_a_longer_one(
    own: bool, plane: Plane, tmp_path: Path
) -> None:
    """Of what went to its end, a longer phase goes on; one as long as that was does not."""
    sets, longer = ({"phases.synthetic.steps": steps} for steps in (30, 31))
    worker = plane.worker(home=tmp_path / "runs")
    first = end_unpassed(plane, worker, tmp_path / "runs", sets)
    second = plane.submit(origin=f"{first}:synthetic@20", set=longer)
    order = plane.next_order(worker)
    worker.start(order)
    if own:
        save_checkpoint(tmp_path / "runs" / order.run, step=25)
    cancel(plane, second, worker, order)
    step = 25 if own else 20
    for asked in ("synthetic", f"synthetic@{step}"):
        said = refused(plane, f"{second}:{asked}", set=sets)
        assert f"synthetic went to its last step in {first} and is not GO" in said
        assert f"{second}:synthetic@0 begins it anew" in said
    going = plane.submit(origin=f"{second}:synthetic", set=longer)
    assert plane.experiment(going)["origin"]["step"] == step


@pytest.mark.parametrize("retried", [False, True], ids=["at once", "after a failure of its host"])
def test_a_longer_phase_passes_with_the_condition_that_it_did_not_pass_before(
    retried: bool, plane: Plane, tmp_path: Path
) -> None:
    """One more step alone would be all that the gate sees of a phase that did not pass, and GO."""
    sets, longer = ({"phases.synthetic.steps": steps} for steps in (30, 31))
    worker = plane.worker(home=tmp_path / "runs")
    first = end_unpassed(plane, worker, tmp_path / "runs", sets)
    second = plane.submit(origin=f"{first}:synthetic@20", set=longer)
    order = plane.next_order(worker)
    if retried:
        save_checkpoint(tmp_path / "runs" / order.run, step=25)
        fail(worker, order, upto=25, reason="hardware")
        order = plane.next_order(worker)
        assert order.resume_from is not None
        assert order.resume_from.step == 25
    (before,) = order.taints
    assert (before.kind, before.experiment) == ("unpassed", first)
    assert (before.step, before.found) == (30, "INCONCLUSIVE")
    assert plane.get(f"/runs/{before.run}")["phase"] == "synthetic"
    worker.run_through(order)
    following = plane.next_order(worker)
    assert (following.phase, following.taints) == ("smoke", [])
    view = plane.experiment(second)
    assert view["phases"][1]["verdict"] == "CONDITIONAL_GO"
    told = (
        f"it resumes from a checkpoint: {before.run} of {first} went to its last step, 30, and is"
        " INCONCLUSIVE"
    )
    (condition,) = view["conditions"]
    assert (condition["id"], condition["text"]) == ("synthetic:unpassed", told)
    assert (condition["state"], condition["evidence_from"]) == ("open", None)


@pytest.mark.parametrize(("word", "passes"), [("NO_GO", False), ("GO", True)])
def test_a_phase_that_a_person_called_no_go_is_gone_on_with_as_one_that_is(
    plane: Plane, tmp_path: Path, word: str, passes: bool
) -> None:
    """Its evidence was GO: what comes after a checkpoint of it was GO again, without a word."""
    sets, longer = ({"phases.synthetic.steps": steps} for steps in (30, 31))
    worker = plane.worker(home=tmp_path / "runs")
    first = plane.submit(set=sets)
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / order.run, step=20)
    verb(plane, first, "halt")
    worker.run_through(order)
    plane.wait_state(first, "awaiting_decision")
    verb(plane, first, "cancel")
    plane.wait_state(first, "finished")
    body = {"verdict": word, "reason": "it was of other data"}
    assert plane.call("POST", f"/experiments/{first}/decisions", json=body).status_code == 201
    if not passes:
        said = refused(plane, f"{first}:synthetic@20", set=sets)
        assert f"synthetic went to its last step in {first} and is not GO" in said
    second = plane.submit(origin=f"{first}:synthetic@20", set=longer)
    going = plane.next_order(worker)
    assert (going.experiment, going.resume_from and going.resume_from.step) == (second, 20)
    told = [(row.kind, row.run, row.found) for row in going.taints]
    assert told == ([] if passes else [("unpassed", order.run, "NO_GO")])


@pytest.mark.parametrize("reason", ["non_finite", "stalled"])
def test_what_its_lines_had_shown_to_fail_is_tried_once_more_with_a_condition(
    reason: str, plane: Plane, tmp_path: Path
) -> None:
    """Within an experiment it would be, too; a host that hung is no failure of the training."""
    home, worker = tmp_path / "runs", plane.worker(home=tmp_path / "runs")
    sets = {"phases.synthetic.steps": 30}
    first = plane.submit(set=sets)
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    save_checkpoint(home / order.run, step=20)
    fail(worker, order, upto=25, reason=reason)
    plane.wait_state(first, "finished")
    second = plane.submit(origin=f"{first}:synthetic@20", set=sets)
    again = plane.next_order(worker)
    assert bool(again.taints) == (reason == "non_finite")
    save_checkpoint(home / again.run, step=25)
    worker.start(again)
    cancel(plane, second, worker, again)
    third = plane.submit(origin=f"{second}:synthetic@25", set=sets)
    last = plane.next_order(worker)
    assert last.taints == again.taints, "however many experiments lie between"
    worker.run_through(last)
    plane.next_order(worker)
    view = plane.experiment(third)
    if reason == "stalled":
        assert view["phases"][1]["verdict"] == "GO"
        return
    assert view["phases"][1]["verdict"] == "CONDITIONAL_GO"
    (condition,) = view["conditions"]
    told = f"it resumes from a checkpoint: {order.run} of {first} failed (non_finite)"
    assert condition["text"] == told


@pytest.mark.long
def test_who_cancels_what_its_lines_have_shown_to_fail_makes_nobody_forget_it(
    plane: Plane, tmp_path: Path
) -> None:
    """It leaves with a checkpoint, and has failed by then: a halt does not excuse it either."""
    home, worker = tmp_path / "runs", plane.worker(home=tmp_path / "runs")
    sets = {"phases.synthetic.steps": 30}
    first = plane.submit(set=sets)
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    save_checkpoint(home / order.run, step=20)
    worker.start(order)
    told = {"detector": "non_finite", "severity": "halt", "at": 1.0, "key": "b", "text": "NaN"}
    assert worker.report(order, told).status_code == 200
    cancel(plane, first, worker, order)
    second = plane.submit(origin=f"{first}:synthetic@20", set=sets)
    worker.run_through(plane.next_order(worker))
    plane.next_order(worker)
    view = plane.experiment(second)
    assert view["phases"][1]["verdict"] == "CONDITIONAL_GO"
    (condition,) = view["conditions"]
    told = f"it resumes from a checkpoint: {order.run} of {first} failed (non_finite)"
    assert condition["text"] == told


def test_nor_is_what_its_gate_had_failed(plane: Plane, tmp_path: Path) -> None:
    """The gate of what goes on with it sees the steps after the checkpoint alone, and was GO."""
    home, worker = tmp_path / "runs", plane.worker(home=tmp_path / "runs")
    plan = bundled_plan("demo")
    sanity, synthetic, smoke = plan["phases"][:3]
    gate = [{"id": "fast", "metric": "dt_step_s", "aggregate": "max", "pass_below": 0.3}]
    plan["phases"] = [sanity, {**synthetic, "steps": 30, "gate": gate}, smoke]
    first = plane.submit(plan)
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    save_checkpoint(home / order.run, step=20)
    worker.start(order)
    lines = {rank: beats(order, rank, upto=25, step_s=0.5) for rank in range(order.world_size)}
    worker.ship(order, lines)
    plane.call("POST", f"/experiments/{first}/cancel", json={})
    worker.end(order, lines, "cancelled", "operator", code=3)
    plane.wait_state(first, "finished")
    plane.wait(lambda: plane.get(f"/runs/{order.run}")["outcome"] is not None)
    second = plane.submit(plan, origin=f"{first}:synthetic@20")
    worker.run_through(plane.next_order(worker))
    plane.next_order(worker)
    view = plane.experiment(second)
    assert view["phases"][1]["verdict"] == "CONDITIONAL_GO"
    (condition,) = view["conditions"]
    told = f"it resumes from a checkpoint: {order.run} of {first} failed (cancelled)"
    assert condition["text"] == told


@pytest.mark.long
@pytest.mark.parametrize("seen", [True, False], ids=["measured", "not seen"])
def test_nor_is_what_a_whole_run_left_undecided_before_another_was_cut_off(
    plane: Plane, tmp_path: Path, seen: bool
) -> None:
    """Run again within an experiment it is CONDITIONAL_GO; gone on with elsewhere it was GO."""
    home, worker = tmp_path / "runs", plane.worker(home=tmp_path / "runs")
    plan = bundled_plan("demo")
    sanity, synthetic, smoke = plan["phases"][:3]
    pace = {"metric": "dt_step_s", "pass_below": 0.15, "fail_above": 0.3}
    gate = [{"id": "pace", **pace}] if seen else WHOLE_GATE
    plan["phases"] = [sanity, {**synthetic, "steps": 30, "gate": gate}, smoke]
    first = plane.submit(plan)
    worker.run_through(plane.next_order(worker))
    whole = plane.next_order(worker)
    worker.start(whole)
    lines = {rank: beats(whole, rank) for rank in range(whole.world_size)}
    told = lines if seen else {rank: [*rows[:9], *rows[10:]] for rank, rows in lines.items()}
    worker.ship(whole, told)
    worker.end(whole, told)
    assert plane.wait_state(first, "awaiting_decision")["verdict"] == "INCONCLUSIVE"
    verb(plane, first, "rerun")
    again = plane.next_order(worker)
    save_checkpoint(home / again.run, step=20)
    worker.start(again)
    lines = {rank: beats(again, rank, upto=20, step_s=0.1, done=False) for rank in lines}
    worker.ship(again, lines)
    verb(plane, first, "cancel")
    worker.end(again, lines, "cancelled", "operator", code=3)
    plane.wait_state(first, "finished")
    second = plane.submit(plan, origin=f"{first}:synthetic")
    order = plane.next_order(worker)
    assert order.resume_from is not None
    assert order.resume_from.step == 20
    assert [row.run for row in order.taints] == ([whole.run] if seen else [])
    worker.start(order)
    lines = {rank: beats(order, rank, step_s=0.1) for rank in lines}
    worker.ship(order, lines)
    worker.end(order, lines)
    plane.next_order(worker)
    verdict = plane.experiment(second)["phases"][1]["verdict"]
    assert verdict == ("CONDITIONAL_GO" if seen else "GO")


@pytest.mark.long
def test_nor_is_a_run_that_was_taken_over_and_could_not_be_judged(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its lines show nobody knows: within an experiment that is `unjudged`; it was GO here."""
    home, worker = tmp_path / "runs", plane.worker(home=tmp_path / "runs")
    sets = {"phases.synthetic.steps": 30}
    first = plane.submit(set=sets)
    worker.run_through(plane.next_order(worker))
    lost = plane.next_order(worker)
    monkeypatch.setattr("service.conductor.judge.AGAIN_S", (0.1,))

    def assess_others(case: Case, facts: Facts) -> Assessment:
        if case.run == lost.run:
            raise Unjudged("it ended with -9")
        return assess(case, facts)

    monkeypatch.setattr("service.conductor.judge.assess", assess_others)
    save_checkpoint(home / lost.run, step=20)
    save_json(RunDir(home / lost.run).order, lost.document())
    worker.start(lost)
    worker.ship(lost, {rank: beats(lost, rank, upto=20) for rank in range(lost.world_size)})
    verb(plane, first, "takeover")
    order = plane.next_order(worker)
    assert order.resume_from is not None
    save_checkpoint(home / order.run, step=25)
    worker.start(order)
    cancel(plane, first, worker, order)
    plane.submit(origin=f"{first}:synthetic@25", set=sets)
    (taint,) = plane.next_order(worker).taints
    assert (taint.kind, taint.run, taint.found) == ("failed", lost.run, "superseded")


def test_nor_is_it_forgotten_where_it_is_told_once_the_experiment_is_over(
    plane: Plane, tmp_path: Path
) -> None:
    """A host that was cut off halts its run by itself, and tells of it once it is heard again."""
    home, worker = tmp_path / "runs", plane.worker(home=tmp_path / "runs")
    sets = {"phases.synthetic.steps": 30}
    first = plane.submit(set=sets)
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    save_checkpoint(home / order.run, step=20)
    save_json(RunDir(home / order.run).order, order.document())
    worker.start(order)
    worker.claim(given_up={order.run: "its disk is gone"}, free=[])
    plane.wait(lambda: plane.get(f"/runs/{order.run}")["verdict"] == "INCONCLUSIVE")
    cancel(plane, first)
    told = {"detector": "non_finite", "severity": "halt", "at": 1.0, "key": "b", "text": "NaN"}
    assert worker.report(order, told).status_code == 200
    plane.submit(origin=f"{first}:synthetic@20", set=sets)
    (taint,) = plane.next_order(worker).taints
    assert (taint.kind, taint.run, taint.found) == ("failed", order.run, "non_finite")


def test_a_run_that_did_not_pass_is_named_through_every_experiment_that_goes_on_with_it(
    plane: Plane, tmp_path: Path
) -> None:
    """Checkpoints made in between, and an attempt whose host failed, hide nothing of it."""
    home, longer = tmp_path / "runs", {"phases.synthetic.steps": 31}
    worker = plane.worker(home=home)
    at = first = end_unpassed(plane, worker, home, {"phases.synthetic.steps": 30})
    for step in (20, 25):
        at = plane.submit(origin=f"{at}:synthetic@{step}", set=longer)
        order = plane.next_order(worker)
        assert [row.experiment for row in order.taints] == [first]
        save_checkpoint(home / order.run, step={20: 25, 25: 28}[step])
        if step == 20:
            worker.start(order)
            cancel(plane, at, worker, order)
    fail(worker, order, upto=28, reason="hardware")
    again = plane.next_order(worker)
    assert again.resume_from is not None
    assert (again.resume_from.step, again.taints) == (28, order.taints)
    worker.run_through(again)
    assert plane.next_order(worker).phase == "smoke"
    view = plane.experiment(at)
    assert view["phases"][1]["verdict"] == "CONDITIONAL_GO"
    assert [row["id"] for row in view["conditions"]] == ["synthetic:unpassed"]


@pytest.mark.long
def test_a_phase_that_never_began_there_begins_though_it_had_begun_before_that(
    plane: Plane, ended: Ended
) -> None:
    """What is gone on with there was made of other phases before it."""
    sets = {"phases.synthetic.approve": "always"}
    second = plane.submit(origin=f"{ended.id}:synthetic@0", set=sets)
    ended.worker.run_through(plane.next_order(ended.worker))
    plane.wait_state(second, "awaiting_decision")
    cancel(plane, second)
    going = plane.submit(origin=f"{second}:smoke")
    assert plane.experiment(going)["origin"]["step"] == 0
    assert plane.next_order(ended.worker).resume_from is None


LONGER = {"phases.sanity.steps": 30}
REMEDIES = {"remedies": {"hang_in_compute": {"workload": {"parallel": "fsdp"}}}, "max_remedies": 1}


@pytest.fixture
def remedied(plane: Plane, tmp_path: Path) -> tuple[str, FakeWorker, Path]:
    """An experiment cancelled while a remedy was under way, which had saved; so had the failure."""
    home = tmp_path / "runs"
    experiment = plane.submit(set={**LONGER, **REMEDIES})
    worker = plane.worker(home=home)
    first = plane.next_order(worker)
    save_checkpoint(home / first.run, step=10)
    stalled(plane, worker, first, upto=10)
    patched = plane.next_order(worker)
    assert (patched.reason, patched.identity.parallel) == ("remedy", "fsdp")
    worker.start(patched)
    save_checkpoint(home / patched.run, step=20)
    cancel(plane, experiment, worker, patched)
    return experiment, worker, home / first.run


def test_without_its_patch_nothing_goes_on_from_what_a_remedy_has_saved(
    plane: Plane, remedied: tuple[str, FakeWorker, Path]
) -> None:
    """The phase would pass as if it had never been changed."""
    experiment, worker, first = remedied
    said = refused(plane, f"{experiment}:sanity@20", set=LONGER)
    assert "was made under a patch (a remedy, or a variant) that the plan does not say" in said
    going = plane.submit(origin=offered(plane, experiment, set=LONGER), set=LONGER)
    order = plane.next_order(worker)
    assert (order.experiment, order.identity.parallel) == (going, "ddp")
    assert order.resume_from is not None
    assert order.resume_from.step == 10
    assert order.resume_from.path.startswith(str(first))


@pytest.mark.parametrize("origin", ["sanity", "sanity@20"])
def test_a_plan_that_says_what_helped_goes_on_from_what_it_has_saved(
    origin: str, plane: Plane, remedied: tuple[str, FakeWorker, Path]
) -> None:
    experiment, worker, _ = remedied
    sets = {**LONGER, "workload.parallel": "fsdp"}
    going = plane.submit(origin=f"{experiment}:{origin}", set=sets)
    order = plane.next_order(worker)
    assert (order.experiment, order.identity.parallel) == (going, "fsdp")
    assert order.resume_from is not None
    assert order.resume_from.step == 20


@pytest.mark.long
def test_a_phase_with_an_open_condition_is_not_taken_over(plane: Plane) -> None:
    gate = "phases.sanity.gate.first_loss"
    sets = {f"{gate}.pass_below": 1.0, f"{gate}.severity": "conditional"}
    experiment = plane.submit(set=sets)
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    fail(worker, plane.next_order(worker))
    plane.wait_state(experiment, "finished")
    said = refused(plane, f"{experiment}:synthetic")
    assert f"condition sanity:first_loss is open in {experiment}" in said
    assert offered(plane, experiment, set=sets) == f"{experiment}:sanity@0"


@pytest.mark.long
def test_a_dry_run_tells_what_would_be_taken_over(plane: Plane, ended: Ended) -> None:
    body = {"plan": "demo", "origin": f"{ended.id}:smoke", "dry_run": True}
    said = plane.call("POST", "/experiments", json=body).json()
    assert said["origin"]["step"] == 20
    assert [row["phase"] for row in said["orders"]] == NAMES[2:]


@pytest.mark.long
def test_the_next_command_of_a_failure_names_it(plane: Plane, ended: Ended) -> None:
    commands = [row["command"] for row in plane.experiment(ended.id)["next"]]
    assert f"gonogo submit demo --from {ended.id}:smoke" in commands


def test_what_another_plan_ran_is_begun_without_an_origin(plane: Plane) -> None:
    """The command that is named is one that is accepted: an experiment lacks phases of a plan."""
    other = {"v": 1, "name": "mine", "profile": "cpu", "workload": {"command": "train"},
             "phases": [{"name": "smoke", "steps": 10}]}  # fmt: skip
    experiment = plane.call("POST", "/experiments", json={"plan": other}).json()["id"]
    assert plane.call("POST", f"/experiments/{experiment}/cancel", json={}).is_success
    plane.wait_state(experiment, "finished")
    said = refused(plane, f"{experiment}:smoke")
    assert f"{experiment} has no phase sanity; submit this plan without an origin" in said
    assert "begin with it" not in said


def test_what_began_with_other_weights_is_not_gone_on_with(plane: Plane, tmp_path: Path) -> None:
    """The phase whose weights they were may have gone on by hand, and the plan drops it."""
    sets = {
        "phases.synthetic.gate.finite.min_samples": 99,
        "phases.synthetic.checkpoint.every_steps": 10,
        "phases.smoke.init_from": "synthetic",
    }
    experiment, worker = plane.submit(set=sets), plane.worker(home=tmp_path / "runs")
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / order.run, step=order.steps)
    worker.run_through(order)
    plane.wait_state(experiment, "awaiting_decision")
    body = {"verdict": "GO", "reason": "I know better"}
    assert plane.call("POST", f"/experiments/{experiment}/decisions", json=body).status_code == 201
    order = plane.next_order(worker)
    assert order.resume_from is not None
    assert (order.phase, order.resume_from.step) == ("smoke", 0)
    save_checkpoint(tmp_path / "runs" / order.run, step=20)
    fail(worker, order, upto=25)
    plane.wait_state(experiment, "finished")
    said = refused(plane, f"{experiment}:smoke", set=sets)
    assert f"synthetic was decided by hand in {experiment}" in said
    plan = bundled_plan("demo")
    phases = [row for row in plan["phases"] if row["name"] != "synthetic"]
    less = {**plan, "phases": phases}
    said = refused(plane, f"{experiment}:smoke", plan=less)
    assert f"smoke is other work than in {experiment} (init_from)" in said
    plane.submit(origin=f"{experiment}:smoke@0", plan=less)
    assert plane.next_order(worker).resume_from is None
