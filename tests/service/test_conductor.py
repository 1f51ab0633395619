"""What happens by itself, and what happens when a part of it was killed in between?"""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer
from sqlalchemy import select

from gonogo.contract.errors import Unavailable
from service.conductor.conductor import (
    AGAIN_S,
    QUEUE,
    Leader,
    Loop,
    Waker,
    assign_cursors,
    decide_wakes,
)
from service.conductor.judge import Judging
from service.conductor.leases import (
    GIVE_UP_S,
    LEASE_S,
    TAKEOVER_AFTER_S,
    Leases,
    Living,
    decide,
    observe,
)
from service.context import Context, open_context
from service.db.schema import EventRow
from service.db.store import is_sqlite
from service.experiments.decisions import save_missing
from service.settings import Settings
from tests.servers import RedisServer
from tests.service.conftest import Clock, Plane, serving
from tests.service.fake_worker import FakeWorker


@pytest.mark.parametrize(
    ("woken", "expected"),
    [
        ({}, ["a", "b"]),
        ({"a": 100.0}, ["b"]),
        ({"a": 100.0 - AGAIN_S, "b": 100.0 - AGAIN_S + 0.1}, ["a"]),
    ],
)
def test_a_wake_is_due_at_once_and_again_after_a_while(
    woken: dict[str, float], expected: list[str]
) -> None:
    assert decide_wakes(["a", "b"], woken, 100.0) == expected


def living(heard: int, *, lost: bool = False, limit: float | None = None) -> list[Living]:
    return [Living(run="r", heard=heard, lost=lost, isolated_limit_s=limit)]


def test_a_run_is_lost_only_after_the_lease_on_this_clock() -> None:
    seen = observe({}, living(5), 0.0)
    assert decide(seen, living(5), LEASE_S).lost == ()
    assert decide(seen, living(5), LEASE_S + 0.1).lost == ("r",)
    assert decide(seen, living(5, lost=True), LEASE_S + 0.1).lost == ()
    seen = observe(seen, living(6), LEASE_S)
    assert decide(seen, living(6), LEASE_S + 0.1).lost == ()


def test_nothing_is_taken_over_without_the_plans_limit() -> None:
    seen = observe({}, living(1), 0.0)
    assert decide(seen, living(1, lost=True), 1e6).take_over == ()
    limited = living(1, lost=True, limit=300.0)
    assert decide(seen, limited, 300.0 + TAKEOVER_AFTER_S).take_over == ()
    assert decide(seen, limited, 300.1 + TAKEOVER_AFTER_S).take_over == ("r",)


def started(plane: Plane, **sets: Any) -> tuple[FakeWorker, Any]:
    plane.submit(set=sets)
    worker = plane.worker()
    order = worker.claim()
    assert order is not None
    worker.start(order)
    return worker, order


def test_a_silent_run_is_shown_lost_once_and_found_when_it_speaks(
    still: Plane, clock: Clock
) -> None:
    worker, order = started(still)
    leases = Leases(still.context)
    for _ in range(3):
        leases.run_once()
        clock.at += LEASE_S + 1
    run = still.get(f"/runs/{order.run}")
    assert (run["lost"], run["state"]) == (True, "running")
    (alert,) = still.get("/alerts")["items"]
    assert alert["type"] == "run.lost"
    assert alert["text"].endswith(f"Next: gonogo show {order.experiment}")
    assert still.worker(name="w2").claim() is None
    worker.telemetry(order)
    assert still.get(f"/runs/{order.run}")["lost"] is False


def test_an_isolated_run_is_taken_over_after_the_plans_limit(still: Plane, clock: Clock) -> None:
    worker, order = started(still, **{"limits.isolated_limit_s": 300})
    leases = Leases(still.context)
    leases.run_once()
    clock.at += LEASE_S + 1
    leases.run_once()
    clock.at += 300 + TAKEOVER_AFTER_S
    leases.run_once()
    assert still.get(f"/runs/{order.run}")["outcome"]["code"] == "isolated"
    again = still.next_order(worker)
    assert (again.reason, again.attempt) == ("takeover", 2)
    assert again.token > order.token


@pytest.mark.parametrize("takes", ["nothing", "no writes"])
def test_a_database_that_is_away_makes_no_run_look_lost(
    still: Plane, clock: Clock, monkeypatch: pytest.MonkeyPatch, takes: str
) -> None:
    """No sign of life comes in meanwhile: the first look afterwards would end active runs."""
    _, order = started(still, **{"limits.isolated_limit_s": 300})
    leases, store = Leases(still.context), still.context.store

    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("the database does not answer")

    leases.run_once()
    with monkeypatch.context() as away:
        away.setattr(store, "write", refuse)
        if takes == "nothing":
            away.setattr(store, "read", refuse)
        for _ in range(3):
            clock.at += 300 + TAKEOVER_AFTER_S
            with suppress(Unavailable):
                leases.run_once()
    leases.run_once()
    run = still.get(f"/runs/{order.run}")
    assert (run["state"], run["lost"]) == ("running", False)
    assert still.get("/alerts")["items"] == []
    clock.at += LEASE_S + 1
    leases.run_once()
    assert still.get(f"/runs/{order.run}")["lost"] is True


@pytest.mark.parametrize(("stood_s", "forgets"), [(0.0, 1), (60.0, 2)])
def test_a_loop_that_was_away_is_told_before_its_next_pass(
    still: Plane, monkeypatch: pytest.MonkeyPatch, stood_s: float, forgets: int
) -> None:
    """A host that stood still for a minute heard of no run, and calls none of them lost for it."""
    said: list[str] = []
    third = threading.Event()

    def run() -> None:
        said.append("pass")
        if said.count("pass") == 3:
            third.set()

    def tell_time() -> float:
        return time.monotonic() + (stood_s if said.count("pass") >= 2 else 0.0)

    def lead() -> bool:
        if said.count("pass") == 1:
            run()  # the host stands still between two passes
        return True

    monkeypatch.setattr("service.conductor.conductor.time", SimpleNamespace(monotonic=tell_time))
    loop = Loop(name="test", run_once=run, every_s=0.01, forget=lambda: said.append("forget"))
    loop.start(still.context, lead)
    assert third.wait(60)
    still.context.closing.set()
    loop.join(60)
    assert said.count("forget") == forgets
    assert said[0] == "forget"


def waiting_jobs(url: str) -> int:
    with Redis.from_url(url) as redis:
        return len(Queue(QUEUE, connection=redis, serializer=JSONSerializer))


def with_redis(plane: Plane, server: RedisServer) -> Waker:
    """A waker as another start of the service would have it: with an empty memory."""
    from dataclasses import replace

    plane.context.settings = replace(plane.context.settings, redis_url=server.url)
    return Waker(plane.context)


def test_a_wake_lost_between_the_commit_and_the_queue_is_sent_by_the_next_start(
    still: Plane, redis_server: RedisServer
) -> None:
    still.submit()  # the service dies here: committed, nobody notified
    waker = with_redis(still, redis_server)
    waker.run_once()
    waker.run_once()
    assert waiting_jobs(redis_server.url) == 1
    waker.close()


def test_redis_may_be_down_and_forget_everything(
    still: Plane, redis_server: RedisServer, clock: Clock
) -> None:
    still.submit()
    redis_server.kill()
    waker = with_redis(still, redis_server)
    waker.run_once()
    redis_server.start()
    clock.at += AGAIN_S
    waker.run_once()
    clock.at += AGAIN_S
    waker.run_once()
    assert waiting_jobs(redis_server.url) == 1, "one message per waiting run, not one per pass"
    still.worker().claim()
    clock.at += AGAIN_S
    with Redis.from_url(redis_server.url) as redis:
        redis.flushall()
    waker.run_once()
    assert waiting_jobs(redis_server.url) == 0, "nothing waits any more"
    waker.close()


def test_one_of_two_services_conducts_and_the_other_takes_over(
    settings: Settings, tmp_path: Path
) -> None:
    contexts = [open_context(settings) for _ in range(2)]
    leaders = [Leader(context.store, tmp_path / "conductor.lock") for context in contexts]
    assert [leader.leads(0.0) for leader in leaders] == [True, False]
    assert [leader.leads(2.0) for leader in leaders] == [True, False]
    leaders[0].close()
    assert leaders[1].leads(4.0)
    leaders[1].close()
    locks = [tmp_path / "conductor.lock"] if is_sqlite(settings.database_url) else []
    private = [*locks, settings.home / "signing.key"]
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}
    for context in contexts:
        context.store.close()


def cursors_of(context: Context) -> list[int]:
    query = select(EventRow.cursor).order_by(EventRow.cursor)
    return context.store.read(lambda session: [n or 0 for n in session.scalars(query)])


def test_cursors_order_all_committed_events_once(still: Plane) -> None:
    for _ in range(3):
        still.submit()
    context: Context = still.context
    assign = partial(assign_cursors, now=context.now())
    first = context.store.write(assign)
    assert first > 3
    assert context.store.write(assign) == 0
    still.submit()
    context.store.write(partial(assign_cursors, now=1.0))  # a clock that was set back
    cursors = cursors_of(context)
    assert cursors == list(range(cursors[0], cursors[0] + len(cursors)))


def test_a_decision_file_that_a_kill_left_unwritten_is_written_later(plane: Plane) -> None:
    experiment = plane.submit()
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    plane.next_order(worker)
    folder = plane.home / "decisions"
    decision = plane.get(f"/experiments/{experiment}/decisions")["items"][0]["id"]
    path = folder / f"{decision}.json"
    plane.wait(path.exists, "the file")
    before = path.read_bytes()
    path.unlink()
    assert plane.context.store.read(lambda session: save_missing(folder, session)) == 1
    assert path.read_bytes() == before


def test_a_home_whose_service_does_not_conduct_has_every_decision_too(plane: Plane) -> None:
    """After a change of leaders each home had some of a chain, and `verify` missed the others."""
    experiment = plane.submit()
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    plane.next_order(worker)
    decision = plane.get(f"/experiments/{experiment}/decisions")["items"][0]["id"]
    home = plane.home / "other"
    home.mkdir()
    for name in ("signing.key", "signing.pub"):
        shutil.copy(plane.home / name, home)
    settings = replace(plane.context.settings, home=home)
    with serving(open_context(settings), conduct=False):
        path = home / "decisions" / f"{decision}.json"
        plane.wait(path.exists, "the file in the other home")
        own = plane.home / "decisions" / path.name
        assert path.read_bytes() == own.read_bytes()


def test_a_service_started_anew_judges_what_ended_meanwhile(
    still: Plane, settings: Settings
) -> None:
    experiment = still.submit()
    worker = still.worker()
    order = still.next_order(worker)
    worker.run_through(order)
    assert still.get(f"/experiments/{experiment}/decisions")["items"] == []
    context = open_context(settings)
    with serving(context) as http:
        second = Plane(context=context, http=http, home=settings.home)
        second.wait(lambda: second.get(f"/experiments/{experiment}/decisions")["items"], "GO")
        assert second.get(f"/runs/{order.run}")["verdict"] == "GO"


def ended_without_its_files(plane: Plane) -> tuple[str, Any]:
    """A run whose end promises bytes, on a host that dies before it sends them."""
    worker, order = started(plane)
    exit_record = {
        "code": 0, "signal": None, "ended_at": 1.0, "ended_by": "trainer", "reason": "completed",
        "text": "", "ranks": {},
    }  # fmt: skip
    answer = worker.state(order, "end", exit=exit_record, sizes={"0": 1000})
    assert answer.status_code == 200, answer.text
    return order.experiment, order


def judged_as(plane: Plane, run: str) -> Any:
    judging = Judging(plane.context)
    judging.settle()
    judging.close()
    return plane.get(f"/runs/{run}")["verdict"]


def test_a_run_whose_rest_never_comes_is_told_and_judged_by_what_is_here(
    still: Plane, clock: Clock
) -> None:
    experiment, order = ended_without_its_files(still)
    leases = Leases(still.context)
    leases.run_once()
    clock.at += LEASE_S + 1
    leases.run_once()
    assert [row["type"] for row in still.get("/alerts")["items"]] == ["run.lost"]
    view = still.experiment(experiment)
    assert f"the rest of run {order.run}" in view["waiting_for"]
    assert any("takeover" in step["command"] for step in view["next"])
    assert judged_as(still, order.run) is None
    clock.at += GIVE_UP_S
    leases.run_once()
    assert judged_as(still, order.run) == "INCONCLUSIVE"
    leases.run_once()
    assert still.get(f"/runs/{order.run}")["lost"] is False


@pytest.mark.parametrize("verb", ["takeover", "cancel", "halt"])
def test_a_person_need_not_wait_for_the_rest(still: Plane, clock: Clock, verb: str) -> None:
    experiment, order = ended_without_its_files(still)
    leases = Leases(still.context)
    leases.run_once()
    assert "takeover" not in str(still.experiment(experiment)["next"])
    clock.at += LEASE_S + 1
    leases.run_once()
    answer = still.call("POST", f"/experiments/{experiment}/{verb}", json={"reason": "it burnt"})
    assert answer.status_code == 202, answer.text
    assert judged_as(still, order.run) == "INCONCLUSIVE"
    state = still.experiment(experiment)["state"]
    assert state == {"cancel": "finished", "halt": "awaiting_decision"}.get(verb, state)
    assert state != "stopping"
