"""The checkpoint that a run resumes from if its host shares no disk with the control plane."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.canonical import wire_line
from gonogo.contract.order import Order
from gonogo.planning.source import bundled_plan
from gonogo.rundir import RunDir, save_json
from tests.service import fake_run
from tests.service.conftest import Plane
from tests.service.fake_run import BOOT_TS, PREFLIGHT, save_checkpoint
from tests.service.fake_worker import FakeWorker, beats, coded

FAR = "/far/away/runs"


def seen(step: int, *, verified: bool = True, path: str | None = None) -> dict[str, Any]:
    return {"step": step, "path": path or f"checkpoints/step_{step:06d}", "verified": verified}


def tick(n: int, *checkpoints: dict[str, Any]) -> bytes:
    return tick_with(n, {"checkpoints": list(checkpoints)} if checkpoints else {})


def tick_with(n: int, observations: dict[str, Any], **more: Any) -> bytes:
    row = {"v": 1, "n": n, "mono": 1.0 + n, "ts": BOOT_TS, "observations": observations}
    return wire_line(row | more)


def trains(worker: FakeWorker, order: Order, *messages: bytes) -> None:
    """It runs far away, and its watcher says these stretches of its ticks."""
    for event, more in (("check", {}), ("launch", {"preflight": PREFLIGHT}), ("step", {})):
        worker.state(order, event, dir=f"{FAR}/{order.run}", **more)
    start = 0
    for content in messages:
        part = {"name": "watch.jsonl", "start": start, "content_b64": coded(content)}
        assert worker.telemetry(order, files=[part]).status_code == 200
        start += len(content)


def ended(worker: FakeWorker, order: Order, reason: str, **more: Any) -> None:
    """The worker says how it ended; nothing of it is left to be sent."""
    exit_record = {
        "code": None, "signal": None, "ended_at": BOOT_TS, "ended_by": "infra",
        "reason": reason, "text": "", "ranks": {},
    }  # fmt: skip
    rest = {"sizes": {}, "findings": 0, "files": {}, "records": {}}
    answer = worker.state(order, "end", exit=exit_record, **{**rest, **more})
    assert answer.status_code == 200, answer.text


def lost(worker: FakeWorker, order: Order) -> None:
    ended(worker, order, "keeper_lost", dir=f"{FAR}/{order.run}")


def first_order(plane: Plane, worker: FakeWorker, **more: Any) -> Order:
    plane.submit(set={"retry.infra": 3, "phases.sanity.steps": 20})
    order = worker.claim(**more)
    assert order is not None
    return order


def unfit(worker: FakeWorker, order: Order, check: str) -> None:
    """Preflight of the run fails on the worker's host."""
    failed = {"id": check, "outcome": "fail", "text": "there is none"}
    checks = [row for row in PREFLIGHT["checks"] if row["id"] != check]
    record = {"v": 1, "passed": False, "checks": [*checks, failed]}
    worker.state(order, "check", dir=f"{FAR}/{order.run}")
    ended(worker, order, "preflight_failed", dir=f"{FAR}/{order.run}", preflight=record)


def test_it_goes_on_from_the_newest_that_its_watcher_verified(plane: Plane) -> None:
    worker = plane.worker()
    order = first_order(plane, worker)
    trains(
        worker,
        order,
        tick(0) + tick(1, seen(1), seen(2)),
        tick(2, seen(3)) + tick(3) + tick(4, seen(4, verified=False)),
        tick(5, seen(9, path="../../other/step_000009"), seen(9, path="/etc/step_000009")),
    )
    lost(worker, order)
    again = plane.next_order(worker)
    assert again.resume_from is not None
    assert again.resume_from.step == 3
    assert again.resume_from.path == f"{FAR}/{order.run}/checkpoints/step_000003"


@pytest.mark.parametrize("at_hand", [True, False], ids=["at hand", "far away"])
def test_the_newest_is_that_of_the_latest_step_whatever_its_folder_is_called(
    plane: Plane, tmp_path: Path, at_hand: bool
) -> None:
    """A transformers.Trainer calls them `checkpoint-9` and `checkpoint-10`."""
    worker = plane.worker(home=tmp_path / "runs")
    order = first_order(plane, worker)
    if at_hand:
        worker.start(order)
        run_dir = RunDir(tmp_path / "runs" / order.run)
        save_json(run_dir.order, order.document())
        for step, name in ((9, "checkpoint-9"), (10, "checkpoint-10"), (11, ".draft")):
            save_checkpoint(run_dir.path, step=step)
            (run_dir.checkpoints / f"step_{step:06d}").rename(run_dir.checkpoints / name)
        ended(worker, order, "keeper_lost")
    else:
        told = [seen(step, path=f"checkpoints/checkpoint-{step}") for step in (10, 9)]
        trains(worker, order, tick(0) + tick(1, *told))
        lost(worker, order)
    point = plane.next_order(worker).resume_from
    assert point is not None
    assert (point.step, Path(point.path).name) == (10, "checkpoint-10")


@pytest.mark.parametrize("how", ["whole", "deleted", "damaged", "refused"])
def test_no_earlier_weights_stand_for_the_last_ones_of_a_phase(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The next phase would train what the gate of the phase before did not see, and be GO."""
    told = {"observations": {"checkpoints": [seen(4), seen(8, verified=how != "refused")]}}
    last_tick = fake_run.last_tick
    monkeypatch.setattr(
        fake_run, "last_tick", lambda *given: last_tick(*given).model_copy(update=told)
    )
    plan = bundled_plan("demo")
    plan["phases"] = plan["phases"][:2]
    plan["phases"][0] |= {"steps": 8, "checkpoint": {"every_steps": 4}}
    plan["phases"][1]["init_from"] = "sanity"
    plane.submit(plan)
    worker = plane.worker(home=tmp_path / "runs")
    order = plane.next_order(worker)
    run_dir = RunDir(tmp_path / "runs" / order.run)
    for step in (4, 8):
        save_checkpoint(run_dir.path, step=step)
    worker.start(order)
    lines = {rank: beats(order, rank) for rank in range(order.world_size)}
    worker.ship(order, lines)
    if how in ("damaged", "refused"):
        (run_dir.checkpoints / "step_000008" / "model.pt").write_bytes(b"torn")
    elif how == "deleted":
        shutil.rmtree(run_dir.checkpoints / "step_000008")
    assert worker.end(order, lines).status_code == 200
    following = plane.next_order(worker)
    assert (following.phase, following.init_from) == ("synthetic", "sanity")
    point = following.resume_from
    assert (point and Path(point.path).name) == ("step_000008" if how == "whole" else None)


def test_one_that_its_own_host_has_no_more_is_passed_over_for_the_one_before(plane: Plane) -> None:
    worker = plane.worker()
    order = first_order(plane, worker)
    trains(worker, order, tick(0, seen(1)) + tick(1, seen(2)))
    lost(worker, order)
    second = plane.next_order(worker)
    assert second.resume_from is not None
    assert second.resume_from.step == 2
    unfit(worker, second, "resume")
    plane.wait(lambda: _waits_on(plane, order.experiment, "step 1 on host-1"))
    other = plane.worker(name="w2", host="host-2", boot_id="boot-9")
    assert other.claim() is None, "the host is fit: it lacked one checkpoint"
    third = plane.next_order(worker)
    assert third.resume_from is not None
    assert third.resume_from.step == 1


def test_it_waits_for_the_host_that_has_it_while_a_worker_lives_there(plane: Plane) -> None:
    there, other = plane.worker(), plane.worker(name="w2", host="host-2", boot_id="boot-9")
    order = first_order(plane, there)
    trains(there, order, tick(0, seen(1)))
    lost(there, order)
    plane.wait(lambda: _waits_on(plane, order.experiment, "step 1 on host-1"))
    assert other.claim() is None
    there.claim(draining=True)
    again = plane.next_order(other)
    assert again.attempt == 2


@pytest.mark.parametrize("full", [False, True], ids=["before it began", "while it ran"])
def test_it_does_not_wait_for_a_host_that_was_found_unfit(plane: Plane, full: bool) -> None:
    there, other = plane.worker(), plane.worker(name="w2", host="host-2", boot_id="boot-9")
    order = first_order(plane, there)
    trains(there, order, tick(0, seen(1)))
    lost(there, order)
    second = plane.next_order(there)
    if full:
        ended(there, second, "disk_full", dir=f"{FAR}/{second.run}")
    else:
        unfit(there, second, "disk")
    third = plane.next_order(other)
    assert third.resume_from is not None
    assert third.resume_from.step == 1


def _waits_on(plane: Plane, experiment: str, text: str) -> bool:
    return text in str(plane.get(f"/experiments/{experiment}")["waiting_for"])


def test_what_lies_at_hand_is_looked_at_whatever_was_said(plane: Plane, tmp_path: Path) -> None:
    worker = plane.worker(home=tmp_path / "runs")
    order = first_order(plane, worker)
    worker.start(order)
    part = {"name": "watch.jsonl", "start": 0, "content_b64": coded(tick(0, seen(1)))}
    worker.telemetry(order, files=[part])
    save_json(RunDir(tmp_path / "runs" / order.run).order, order.document())
    ended(worker, order, "keeper_lost")
    again = plane.next_order(worker)
    assert again.resume_from is None, "the directory is here, and holds no checkpoint"
