"""Is every run given out exactly once, and again where it never started?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from gonogo.contract.worker_messages import ClaimRequest
from gonogo.planning.source import bundled_plan, parse_plan
from service.agent import claims
from service.db.schema import RunRow, WorkerRow
from service.queries.experiments import load_experiment
from tests.data.make_runs import WHOLE_GATE
from tests.service.conftest import Plane
from tests.service.fake_run import PREFLIGHT, save_checkpoint
from tests.service.fake_worker import FakeWorker, beats, config_digest_holds


def test_workers_that_race_get_every_run_exactly_once(plane: Plane) -> None:
    for _ in range(6):
        plane.submit()
    workers = [plane.worker(name=f"w{n}", host=f"host-{n}") for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        orders = [order for order in pool.map(lambda worker: worker.claim(), workers) if order]
    assert len(orders) == 6
    assert len({order.run for order in orders}) == 6


def test_the_oldest_run_comes_first(plane: Plane) -> None:
    experiments = [plane.submit() for _ in range(3)]
    worker = plane.worker(devices=("cpu:0", "cpu:1", "cpu:2"))
    found = []
    for _ in experiments:
        order = plane.next_order(worker)
        worker.active.append(order.run)
        found.append(order.experiment)
    assert found == experiments


def test_a_run_that_its_worker_never_got_is_given_out_again_under_a_higher_token(
    plane: Plane,
) -> None:
    plane.submit()
    worker = plane.worker()
    first = worker.claim()
    again = worker.claim()
    assert first is not None
    assert again is not None
    assert again.run == first.run
    assert again.token > first.token
    assert worker.telemetry(first).status_code == 409
    assert worker.telemetry(again).status_code == 200
    worker.active.append(again.run)
    assert worker.claim() is None


def test_a_worker_is_asked_for_runs_under_way_that_it_does_not_name(plane: Plane) -> None:
    """They ended and were reported, and then an older database was restored."""
    for _ in range(2):
        plane.submit()
    worker = plane.worker(devices=("cpu:0", "cpu:1", "cpu:2"))
    started = plane.next_order(worker)
    worker.start(started)
    worker.active.append(started.run)
    waiting = plane.next_order(worker)

    def untold(active: list[str]) -> object:
        body = {
            "worker": worker.name, "host": worker.host, "boot_id": worker.boot_id, "pid": 1,
            "version": "0", "devices": [], "free": [], "active": active,
        }  # fmt: skip
        return worker.post("/claims", body).json().get("untold")

    assert untold([started.run, waiting.run]) is None
    assert untold([waiting.run]) == [started.run]
    assert untold([started.run]) is None, "what never began is given again"
    worker.run_through(started)
    assert untold([waiting.run]) is None


def test_a_worker_that_drains_or_has_no_free_device_gets_nothing(plane: Plane) -> None:
    plane.submit()
    worker = plane.worker()
    assert worker.claim(draining=True) is None
    assert worker.claim(free=[]) is None
    assert worker.claim(profiles=["h100"]) is None
    assert worker.claim(profiles=["cpu"]) is not None


MINE = {
    "v": 1,
    "name": "mine",
    "profile": "cpu",
    "workload": {"command": "train --fast", "env": {"WANDB_MODE": "offline"}},
    "phases": [{"name": "try", "steps": 10, "gate": WHOLE_GATE}],
}


def test_a_plan_that_a_worker_does_not_allow_waits_for_one_that_does(plane: Plane) -> None:
    warned = plane.call("POST", "/experiments", json={"plan": MINE}).json()
    assert "GONOGO_WORKER_ALLOW=train" in warned["warnings"][0]
    assert "GONOGO_WORKER_ALLOW_ENV=WANDB_MODE" in warned["next"][0]["text"]
    worker = plane.worker()
    assert worker.claim() is None
    assert worker.claim(allow=["train"]) is None
    assert worker.claim(allow=["other"], allow_env=["any"]) is None
    order = plane.next_order(worker, allow=["train"], allow_env=["WANDB_MODE"])
    assert (order.command, order.entry) == (["train", "--fast"], None)
    assert plane.get("/workers")["items"][0]["allow"] == ["train"]
    assert plane.call("POST", "/experiments", json={"plan": MINE}).json()["warnings"] == []
    dry = plane.call("POST", "/experiments", json={"plan": MINE, "dry_run": True}).json()
    assert dry["warnings"] == []


def test_the_command_that_starts_a_worker_for_a_plan_can_be_typed(still: Plane) -> None:
    view = still.call("POST", "/experiments", json={"plan": MINE}).json()
    assert view["waiting_for"].startswith("a worker that has GONOGO_WORKER_ALLOW=train")
    allowed = "GONOGO_WORKER_ALLOW=train GONOGO_WORKER_ALLOW_ENV=WANDB_MODE gonogo worker"
    assert view["next"][0]["command"] == allowed
    assert still.get("/experiments")["items"][0]["waiting_for"] == view["waiting_for"]


def test_what_a_scheduler_lets_a_run_wait_for_is_told_until_it_begins(still: Plane) -> None:
    experiment = still.submit()
    worker = still.worker()
    order = still.next_order(worker, engine="slurm")
    worker.state(order, "check")
    why = "Slurm: PENDING, Resources (4 ahead, needs 2 GPUs, 1 free)"
    worker.claim(engine="slurm", free=[], active=[order.run], waits={order.run: why})
    view = still.get(f"/experiments/{experiment}")
    assert view["waiting_for"] == f"{why}, for phase {order.phase}"
    assert still.get("/experiments")["items"][0]["waiting_for"] == view["waiting_for"]
    worker.state(order, "launch", preflight=PREFLIGHT)  # of its first node
    assert still.get(f"/experiments/{experiment}")["waiting_for"] == view["waiting_for"]
    worker.state(order, "step")
    assert still.get(f"/experiments/{experiment}")["waiting_for"] is None


def test_a_worker_of_an_engine_is_told_which_of_its_runs_were_taken_over(still: Plane) -> None:
    experiment = still.submit()
    worker = still.worker(name="login-00000a-1")
    order = still.next_order(worker, engine="slurm")
    worker.start(order)

    def told(worker: FakeWorker = worker, **more: Any) -> Any:
        said = {
            "worker": worker.name, "host": worker.host, "boot_id": worker.boot_id, "pid": 1,
            "version": "0", "devices": [], "free": [], "active": [order.run], **more,
        }  # fmt: skip
        return worker.post("/claims", {**said, "engine": "slurm"}).json().get("over")

    assert told() is None
    lost = update(RunRow).where(RunRow.id == order.run).values(lost=True)
    still.context.store.write(lambda session: session.execute(lost) and None)
    taken = still.call("POST", f"/experiments/{experiment}/takeover", json={"reason": "it burned"})
    assert taken.status_code < 300, taken.text
    assert told() == [order.run]
    beside = FakeWorker(http=still.http, key=worker.key, name="login-00000a")
    assert told(beside) == [order.run], "one of its home, which looks after it too"
    assert told(still.worker(name="w2", host="host-2")) is None


@pytest.mark.parametrize(
    ("silent_s", "allow", "warned"), [(0, "train", False), (0, "other", True), (60, "train", True)]
)
def test_a_plan_that_no_living_worker_takes_is_warned_about(
    still: Plane, silent_s: float, allow: str, warned: bool
) -> None:
    still.worker().claim(allow=[allow], allow_env=["any"])
    silent = update(WorkerRow).values(seen_at=still.context.now() - silent_s)
    still.context.store.write(lambda session: session.execute(silent) and None)
    warnings = still.call("POST", "/experiments", json={"plan": MINE}).json()["warnings"]
    assert len(warnings) == warned


@pytest.mark.parametrize("plan", ["demo", "m7c-125m"])
def test_a_run_of_two_hosts_waits_for_an_engine_that_starts_it_there(
    still: Plane, plan: str
) -> None:
    on_two = {"plan": plan, "set": {"workload.nodes": 2}}
    worker = still.worker(devices=("cpu:0", "GPU-1", "GPU-2"))
    assert worker.claim() is None
    needed = "GONOGO_ENGINE=slurm"
    warned = [f"no worker that is up takes it; it waits for one that has {needed}"]
    preview = still.call("POST", "/experiments/preview", json=on_two)
    assert preview.json()["warnings"] == warned
    view = still.call("POST", "/experiments", json=on_two).json()
    assert view["warnings"] == warned
    assert view["waiting_for"].startswith(f"a worker that has {needed}, and with free devices")
    assert worker.claim() is None, "it has devices enough, on one host"
    order = worker.claim(engine="slurm", free=["cpu:0"])
    assert order is not None, "a scheduler finds devices of its own"
    assert (order.plan, order.nodes) == (plan, 2)
    worker.active.append(order.run)
    assert still.call("POST", "/experiments", json=on_two).json()["warnings"] == []
    assert worker.claim(engine="slurm", free=[]) is None


def test_a_run_goes_only_to_a_worker_that_holds_the_labels_of_its_plan(still: Plane) -> None:
    racks = {"workload.labels.rack": "a", "workload.labels.gpu": "h100"}
    still.worker().claim(labels={"rack": "a"}, free=[])
    preview = still.call("POST", "/experiments/preview", json={"plan": "demo", "set": racks})
    text = "waits for one that has GONOGO_WORKER_LABELS=gpu=h100,rack=a"
    assert text in preview.json()["warnings"][0]
    view = still.call("POST", "/experiments", json={"plan": "demo", "set": racks}).json()
    assert view["warnings"] == preview.json()["warnings"]
    assert "GONOGO_WORKER_LABELS=gpu=h100,rack=a" in view["waiting_for"]
    worker = still.worker()
    assert worker.claim() is None
    assert worker.claim(labels={"rack": "a", "gpu": "a100"}) is None
    assert worker.claim(labels={"rack": "b", "gpu": "h100"}) is None
    order = still.next_order(worker, labels={"rack": "a", "gpu": "h100", "floor": "2"})
    assert order.experiment == view["id"]


@pytest.mark.parametrize(
    ("plan", "free", "fits"),
    [
        ("demo", ("cpu:0",), True), ("demo", (), False), ("m7c-125m", ("GPU-a", "GPU-b"), True),
        ("m7c-125m", ("cuda:0",), False), ("m7c-125m", ("cpu:0", "cpu:1"), False),
    ],
)  # fmt: skip
def test_a_plan_fits_the_devices_that_are_free(
    plan: str, free: tuple[str, ...], fits: bool
) -> None:
    said = ClaimRequest(worker="w", host="h", boot_id="b", pid=1, version="1")
    assert claims.fits(said, free, parse_plan(bundled_plan(plan))) is fits


@pytest.mark.parametrize(
    ("other", "reason", "by"),
    [
        ("lives", "preflight_failed", "infra"),
        ("lives", "disk_full", "watchdog"),
        ("is-too-small", "preflight_failed", "infra"),
    ],
)
def test_a_retry_waits_for_another_host_where_one_could_take_it(
    plane: Plane, other: str, reason: str, by: str
) -> None:
    experiment = plane.submit()
    devices = ("cpu:0",) if other == "lives" else ()
    sick, well = plane.worker("w1", host="sick"), plane.worker("w2", host="well", devices=devices)
    well.claim(free=[])
    order = plane.next_order(sick)
    sick.state(order, "check")
    sick.end(order, {}, reason, by, code=None)
    plane.wait(lambda: len(plane.experiment(experiment)["phases"][0]["runs"]) == 2, "a retry")
    again = sick.claim()
    if other == "lives":
        assert again is None
        again = plane.next_order(well)
    assert again.attempt == 2


def test_a_new_boot_id_proves_older_attempts_dead_and_the_next_resumes(plane: Plane) -> None:
    experiment = plane.submit()
    worker = plane.worker()
    order = plane.next_order(worker)
    worker.start(order)
    assert worker.claim() is None, "what started is not given out again"
    reborn = plane.worker(boot_id="boot-2")
    reborn.claim(free=[])
    again = plane.next_order(reborn)
    assert (again.phase, again.attempt, again.reason) == (order.phase, 2, "resume")
    assert plane.get(f"/runs/{order.run}")["outcome"]["code"] == "worker_lost"
    assert plane.get(f"/experiments/{experiment}/decisions")["items"] == []


def test_after_a_reboot_a_run_whose_directory_waits_is_left_to_the_reaper(plane: Plane) -> None:
    plane.submit()
    worker = plane.worker()
    worker.start(order := plane.next_order(worker))
    plane.worker(boot_id="boot-2").claim(free=[], active=[order.run])
    assert plane.get(f"/runs/{order.run}")["state"] == "running"


def test_infra_is_retried_from_the_last_durable_checkpoint_until_retries_end(
    plane: Plane, tmp_path: Path
) -> None:
    plane.submit(set={"retry.infra": 1, "phases.sanity.steps": 3})
    worker = plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    for step in (1, 2):
        save_checkpoint(tmp_path / "runs" / order.run, step=step)
    torn = tmp_path / "runs" / order.run / "checkpoints" / "step_000002"
    (torn / "model.pt").write_bytes(b"torn!")
    worker.start(order)
    lines = {rank: beats(order, rank, upto=2, done=False) for rank in (0, 1)}
    worker.ship(order, lines)
    worker.end(order, lines, "keeper_lost", "infra", code=None)
    again = plane.next_order(worker)
    assert again.resume_from is not None
    assert again.resume_from.step == 1
    assert Path(again.resume_from.path).name == "step_000001"
    worker.start(again)
    worker.end(again, {}, "hardware", "infra", code=None)
    view = plane.wait_state(order.experiment, "awaiting_decision")
    assert view["verdict"] == "INCONCLUSIVE"


def test_the_first_run_freezes_the_code_identity_for_later_ones(plane: Plane) -> None:
    plane.submit()
    worker = plane.worker()
    first = plane.next_order(worker)
    assert config_digest_holds(first)
    assert first.identity.git_sha is None
    worker.run_through(first)
    identity = plane.next_order(worker).identity
    assert identity.git_sha == "a" * 40
    assert (identity.torch, identity.device, identity.driver) == ("2.13.0", "cpu", None)


GPU_HOST = {"torch": "2.13.0", "device": "H200", "driver": "570.86.15"}


def test_a_run_that_says_otherwise_what_is_frozen_freezes_nothing_anew_and_nothing_more(
    still: Plane,
) -> None:
    experiment = still.submit()
    worker = still.worker()
    first = still.next_order(worker)
    worker.state(first, "check")
    for said in ({"dim": 64}, GPU_HOST, {"torch": "2.6.0", "git_sha": "b" * 40}):
        assert worker.state(first, "launch", model=said).status_code == 200
    row = still.context.store.read(lambda session: load_experiment(session, experiment))
    assert row.frozen == GPU_HOST
