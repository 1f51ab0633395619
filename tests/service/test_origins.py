"""What does an experiment take over from one that ended, and what does it refuse to?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.order import Order
from tests.service.conftest import Plane
from tests.service.fake_run import save_checkpoint
from tests.service.fake_worker import FakeWorker, beats
from tests.service.test_judging import stalled
from tests.service.test_verbs import fail_halted, verb

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
    ended.worker.run_through(order)
    for _ in NAMES[3:]:
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
    """Its last steps alone are not the phase: `resume` does not continue with them."""
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
    plane.submit(origin=f"{experiment}:synthetic@0")


def test_what_conditions_left_open_there_counts_as_they_were_met_there(plane: Plane) -> None:
    pace = {
        "id": "pace", "metric": "dt_step_s", "aggregate": "median", "over_ranks": "max",
        "pass_below": 0.15, "severity": "conditional",
    }  # fmt: skip
    sets = {"phases.sanity.gate": [pace], "phases.sanity.steps": 20}
    experiment, worker = plane.submit(set=sets), plane.worker()
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    worker.run_through(order, step_s=0.1)
    fail(worker, plane.next_order(worker))
    view = plane.wait_state(experiment, "finished")
    assert [row["state"] for row in view["conditions"]] == ["met"]
    said = refused(plane, f"{experiment}:synthetic@0", set=sets)
    assert f"sanity:pace was met in {experiment} by synthetic, which runs again" in said
    assert f"begin with it: {experiment}:sanity@0" in said
    going = plane.submit(origin=f"{experiment}:smoke", set=sets)
    for _ in NAMES[2:]:
        worker.run_through(plane.next_order(worker))
    view = plane.wait_state(going, "finished")
    assert (view["verdict"], view["conditions"]) == ("GO", [])
    assert [row["verdict"] for row in view["phases"]] == ["GO"] * 5


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
    assert "no durable checkpoint" in refused(plane, f"{second}:smoke@10")
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
        ("smoke@15", "no durable checkpoint of smoke at step 15"),
        ("smoke@x", "expected EXPERIMENT:PHASE"),
        ("", "expected EXPERIMENT:PHASE"),
    ):
        assert words in refused(plane, f"{ended.id}:{phase}"), phase
    body = {"verdict": "GO", "reason": "I know better"}
    answer = plane.call("POST", f"/experiments/{ended.id}/decisions", json=body)
    assert answer.status_code == 201, answer.text
    assert "smoke" in refused(plane, f"{ended.id}:extended"), "nor what a person decided"


@pytest.mark.long
def test_phases_that_are_ordered_otherwise_now_are_run_again(plane: Plane, ended: Ended) -> None:
    origin = f"{ended.id}:smoke"
    said = refused(plane, origin, set={"train.optim.lr": 2e-3})
    assert "sanity is ordered otherwise than there" in said
    assert "train.optim.lr" in said
    said = refused(plane, origin, set={"phases.synthetic.steps": 11})
    assert "synthetic is ordered otherwise" in said
    assert "sanity" not in said
    said = refused(plane, origin, set={"phases.synthetic.approve": "always"})
    assert f"smoke waits for an approval after synthetic, and nobody gave it in {ended.id}" in said
    assert f"begin with it: {ended.id}:synthetic@0" in said
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
    assert "no durable checkpoint of sanity at step 20" in said
    going = plane.submit(origin=offered(plane, experiment, set=LONGER), set=LONGER)
    order = plane.next_order(worker)
    assert (order.experiment, order.identity.parallel) == (going, "ddp")
    assert order.resume_from is not None
    assert order.resume_from.step == 10
    assert order.resume_from.path.startswith(str(first))
    body = {"plan": "demo", "set": {**LONGER, "workload.parallel": "fsdp"}, "dry_run": True}
    for origin in ("sanity", "sanity@20"):
        body["origin"] = f"{experiment}:{origin}"
        answer = plane.call("POST", "/experiments", json=body)
        assert answer.json()["origin"]["step"] == 20, "as a plan orders it that says what helped"


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
