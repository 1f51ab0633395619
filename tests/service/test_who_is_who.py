"""Who may speak of a run, and which machine is a worker? Names and numbers prove nothing."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from service.agent.claims import home_of_worker, next_token
from service.context import open_context
from service.db.schema import KeyRow
from service.experiments.workers import SILENT_S
from service.http.auth import find_principal, load_local_keys, revoke_key
from service.settings import Settings
from tests.service.conftest import Plane

HERE, THERE = "a" * 32, "b" * 32


def test_another_host_of_the_same_name_buries_nothing(plane: Plane) -> None:
    """Two containers of one hostname: another boot id, and no reboot."""
    plane.submit()
    first = plane.worker(boot_id="boot-1")
    order = plane.next_order(first, machine_id=HERE)
    first.start(order)
    second = plane.worker(boot_id="boot-2")
    answer = second.post("/claims", claim_of(second, THERE))
    assert answer.status_code == 409
    assert answer.json()["code"] == "name_taken"
    assert first.telemetry(order).json()["command"] is None
    assert plane.get(f"/runs/{order.run}")["state"] == "running"


def test_an_engines_worker_goes_on_from_another_login_node_and_keeps_its_runs(plane: Plane) -> None:
    """The home is the worker; both nodes are up, and each has a boot id of its own."""
    plane.submit()
    first = plane.worker(boot_id="boot-1", host="login1")
    order = plane.next_order(first, machine_id=HERE, engine="slurm")
    first.start(order)
    second = plane.worker(boot_id="boot-2", host="login2")
    claimed = {**claim_of(second, HERE), "engine": "slurm", "active": [order.run]}
    refused = second.post("/claims", claimed)
    assert (refused.status_code, refused.json()["code"]) == (409, "name_taken")
    assert "login1" in refused.json()["detail"]
    plane.context.now = lambda: time.time() + SILENT_S + 1
    assert second.post("/claims", {**claimed, "active": []}).status_code == 200
    assert plane.get(f"/runs/{order.run}")["state"] == "running", "no reboot"
    assert second.post("/claims", claimed).status_code == 200
    second.secrets.update(first.secrets)  # they lie in the home
    assert second.telemetry(order).json()["command"] is None
    assert first.post("/claims", {**claimed, "host": "login1"}).status_code == 409


def test_a_reboot_of_the_same_machine_buries_even_under_another_host_name(plane: Plane) -> None:
    plane.submit()
    worker = plane.worker(boot_id="boot-1", host="before")
    order = plane.next_order(worker, machine_id=HERE)
    worker.start(order)
    worker.boot_id, worker.host = "boot-2", "after"
    assert worker.claim(machine_id=HERE, free=[]) is None
    assert plane.get(f"/runs/{order.run}")["state"] == "ended"


def test_a_name_is_free_again_when_its_machine_is_silent_and_has_no_runs(plane: Plane) -> None:
    first = plane.worker(boot_id="boot-1")
    assert first.claim(machine_id=HERE) is None
    second = plane.worker(boot_id="boot-2")
    assert second.post("/claims", claim_of(second, THERE)).status_code == 409
    plane.context.now = lambda: time.time() + SILENT_S + 1
    assert second.post("/claims", claim_of(second, THERE)).status_code == 200


def claim_of(worker: object, machine: str) -> dict[str, object]:
    return {
        "worker": worker.name, "host": worker.host, "boot_id": worker.boot_id, "pid": 1,  # type: ignore[attr-defined]
        "version": "0", "devices": ["cpu:0"], "free": ["cpu:0"], "machine_id": machine,
    }  # fmt: skip


def test_without_its_claims_secret_even_the_right_key_and_token_change_nothing(
    plane: Plane,
) -> None:
    plane.submit()
    worker = plane.worker()
    order = plane.next_order(worker)
    secret = worker.secrets.pop(order.run)
    assert worker.telemetry(order).status_code == 403
    worker.secrets[order.run] = "0" * 32
    assert worker.telemetry(order).status_code == 403
    worker.secrets[order.run] = secret
    assert worker.telemetry(order).status_code == 200
    shown = plane.get(f"/runs/{order.run}")
    assert secret not in str(shown)
    assert secret not in str(order.document())


def test_a_key_belongs_to_the_worker_that_claimed_with_it_first(plane: Plane) -> None:
    first = plane.worker(name="w2", host="host-2")
    first.claim()
    imposter = plane.worker(name="w3", host="host-3")
    imposter.key = first.key
    answer = imposter.post("/claims", claim_of(imposter, THERE))
    assert answer.status_code == 403
    assert "gonogo keys create w3 --role worker" in answer.json()["detail"]


@pytest.mark.parametrize("machine", [None, HERE], ids=["no machine", "the same machine"])
def test_a_fresh_key_under_the_name_of_a_worker_that_has_one_buries_nothing(
    plane: Plane, machine: str | None
) -> None:
    """Host, machine and name can be known, and a boot id can be made up."""
    plane.submit()
    owner = plane.worker(name="w2", boot_id="boot-1")
    order = plane.next_order(owner, machine_id=HERE)
    owner.start(order)
    thief = plane.worker(name="w3", boot_id="forged")
    thief.name = owner.name
    said = {**claim_of(thief, HERE), "machine_id": machine}
    answer = thief.post("/claims", said)
    assert answer.status_code == 403
    assert "gonogo keys revoke w2" in answer.json()["detail"]
    assert plane.get(f"/runs/{order.run}")["state"] == "running"
    assert owner.claim(machine_id=HERE, active=[order.run]) is None
    plane.context.store.write(lambda session: revoke_key(session, "w2", 1.0))
    assert thief.post("/claims", {**said, "machine_id": HERE}).status_code == 200


@pytest.mark.parametrize(
    ("worker", "home"),
    [
        ("gpu-1-0a1b2c", "gpu-1-0a1b2c"), ("gpu-1-0a1b2c-3", "gpu-1-0a1b2c"), ("gpu-1", "gpu-1"),
        ("node-3", "node-3"),
    ],
)  # fmt: skip
def test_the_workers_of_one_home_share_its_key(worker: str, home: str) -> None:
    assert home_of_worker(worker) == home


def test_tokens_grow_with_each_claim_and_with_time() -> None:
    """So a restored database gives out none that an attempt after the backup holds."""
    now = 1.8e9
    first = next_token(0, now)
    assert next_token(first, now) == first + 1
    assert next_token(first, now + 1.0) > first + 1
    assert next_token(first, 0.0) == first + 1, "a clock that is wrong"
    assert next_token(0, 4e9) < 2**53, "whole in any reader of JSON"


def test_a_second_home_on_the_database_locks_nobody_out(database_url: str, tmp_path: Path) -> None:
    keys = {}
    for name in ("one", "two", "one"):
        context = open_context(Settings(home=tmp_path / name, database_url=database_url))
        load_local_keys(context)
        keys[name] = (tmp_path / name / "key").read_text().strip()
        found = [
            context.store.read(lambda session, key=key: find_principal(session, key))
            for key in keys.values()
        ]
        assert all(found), "every home's key is good"
        context.store.close()
    assert keys["one"] != keys["two"]
    (tmp_path / "one" / "key").unlink()
    context = open_context(Settings(home=tmp_path / "one", database_url=database_url))
    load_local_keys(context)
    assert context.store.read(lambda session: find_principal(session, keys["one"])) is None
    assert context.store.read(lambda session: find_principal(session, keys["two"])) is not None
    assert context.store.read(lambda session: session.query(KeyRow).count()) == 5
    context.store.close()


def test_runs_for_others_hide_none_for_this_worker(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a page of those that need GPUs, then one that needs none."""
    monkeypatch.setattr("service.agent.claims._PAGE", 2)
    for _ in range(5):
        plane.submit("m7c-125m")
    small = plane.submit("demo")
    order = plane.worker().claim()
    assert order is not None
    assert order.experiment == small


@pytest.mark.parametrize("file", ["key", "worker_key"])
def test_a_local_key_that_was_revoked_is_followed_by_another_at_the_next_start(
    database_url: str, tmp_path: Path, file: str
) -> None:
    """It leaked, and was revoked as anybody's is."""
    settings = Settings(home=tmp_path / "home", database_url=database_url)
    context = open_context(settings)
    load_local_keys(context)
    files = {name: (settings.home / name).read_text().strip() for name in ("key", "worker_key")}
    principal = context.store.read(partial(find_principal, key=files[file]))
    assert principal is not None
    context.store.write(lambda session: revoke_key(session, principal.name, 1.0))
    load_local_keys(context)
    for name, key in files.items():
        fresh = (settings.home / name).read_text().strip()
        assert (fresh == key) is (name != file)
        assert context.store.read(partial(find_principal, key=fresh)) is not None
    assert context.store.read(partial(find_principal, key=files[file])) is None
    context.store.close()
