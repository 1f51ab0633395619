"""Whatever people and workers do, in whatever order: what holds at every moment?

And whatever hosts do that die: from everywhere there is a way on, by a verb or by waiting.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from sqlalchemy import select

from gonogo.contract.lifecycle import RunState
from service.conductor.judge import Judging
from service.conductor.leases import GIVE_UP_S, LEASE_S, Leases, load_living
from service.db.schema import EventRow, RunRow
from service.experiments.state import verbs_of
from service.judging.ended import find_unjudged
from service.queries.experiments import load_experiment, phases_of, runs_of
from tests.service.conftest import Clock, Plane
from tests.service.fake_worker import beats, size_of

VERBS = ("halt", "cancel", "resume", "rerun", "promote", "takeover")
ENDS = (
    ("completed", "trainer"),
    ("keeper_lost", "infra"),
    ("stalled", "watchdog"),
    ("halted", "operator"),
)


class Walk:
    """Random deeds on one experiment."""

    def __init__(self, plane: Plane, clock: Clock, seed: int) -> None:
        self.plane, self.clock = plane, clock
        self.leases = Leases(plane.context)
        self.chance = random.Random(seed)
        self.experiment = plane.submit(set={"phases.synthetic.approve": "always"})
        self.worker = plane.worker()
        self.judging = Judging(plane.context)
        self.orders: list[Any] = []
        self.statuses: set[int] = set()

    def step(self) -> None:
        deeds = (self.ask, self.work, self.end, self.judge, self.stray, self.die, self.wait)
        self.chance.choices(deeds, weights=(3, 6, 4, 6, 2, 1, 2))[0]()

    def ask(self) -> None:
        verb = self.chance.choice(VERBS)
        if verb == "cancel" and self.chance.random() < 0.95:
            return
        answer = self.plane.call("POST", f"/experiments/{self.experiment}/{verb}", json={})
        self.statuses.add(answer.status_code)
        assert answer.status_code in (200, 202, 409), answer.text

    def work(self) -> None:
        order = self.worker.claim()
        if order is not None:
            self.orders.append(order)
            self.worker.active = [order.run]
            for event in ("check", "launch", "step"):
                assert self.worker.state(order, event).status_code == 200

    def end(self) -> None:
        if not self.orders:
            return
        order = self.orders[-1]
        reason, by = self.chance.choices(ENDS, weights=(12, 4, 1, 4))[0]
        upto = None if reason == "completed" else 0
        lines = {rank: beats(order, rank, upto=upto, done=upto is None) for rank in (0, 1)}
        ranks = [
            {"rank": rank, "start": 0, "end": size_of(rows), "lines": rows}
            for rank, rows in lines.items()
        ]
        assert self.worker.telemetry(order, ranks=ranks).status_code == 200
        assert self.worker.end(order, lines, reason, by).status_code == 200

    def die(self) -> None:
        """The host says how the run ended, and is gone before it has sent the rest."""
        if self.orders:
            said = {"ended_at": 1.0, "ended_by": "infra", "reason": "keeper_lost"}
            answer = self.worker.state(self.orders[-1], "end", exit=said, sizes={"0": 10**6})
            assert answer.status_code in (200, 409), answer.text

    def wait(self) -> None:
        """Nobody is heard for a while."""
        self.leases.run_once()
        self.clock.at += LEASE_S + 1
        self.leases.run_once()

    def judge(self) -> None:
        self.judging.settle()

    def stray(self) -> None:
        """A message of an attempt that is over, and one with a stale token."""
        if self.orders:
            order = self.chance.choice(self.orders)
            assert self.worker.state(order, "step").status_code == 200
            old = order.model_copy(update={"token": order.token - 1})
            assert self.worker.telemetry(old).status_code == 409

    def check(self, before: dict[str, Any] | None) -> dict[str, Any]:
        view = self.plane.experiment(self.experiment)
        if before is not None and before["state"] == "finished":
            assert view["state"] == "finished"
            assert view["outcome"] == before["outcome"]

        def read(session: Any) -> tuple[list[int], list[RunRow]]:
            seqs = select(EventRow.seq).where(EventRow.experiment == self.experiment)
            return sorted(session.scalars(seqs)), list(session.scalars(select(RunRow)))

        seqs, runs = self.plane.context.store.read(read)
        assert seqs == list(range(1, len(seqs) + 1))
        living = [run for run in runs if run.state != RunState.ENDED]
        assert len(living) <= 1
        if view["state"] in ("finished", "awaiting_decision"):
            assert living == []
        tokens = [run.token for run in sorted(runs, key=lambda run: run.created_at) if run.token]
        assert tokens == sorted(set(tokens))
        assert sum(phase["state"] == "active" for phase in view["phases"]) <= 1
        if view["state"] != "finished":
            assert self.verbs() or self.goes_on_by_itself(), view
        return view

    def verbs(self) -> tuple[str, ...]:
        """What can be asked of the experiment now."""

        def read(session: Any) -> tuple[str, ...]:
            row = load_experiment(session, self.experiment)
            return verbs_of(row, phases_of(session, row.id), runs_of(session, row.id))

        return self.plane.context.store.read(read)

    def goes_on_by_itself(self) -> bool:
        """Whether a run is to be judged, or a lease runs out."""
        return self.plane.context.store.read(
            lambda session: bool(find_unjudged(session) or load_living(session))
        )

    def leave(self) -> None:
        """Come to an end though no worker is heard any more, by what is allowed and by waiting."""
        for _ in range(4):
            for verb in ("cancel", "takeover"):
                if verb in self.verbs():
                    self.plane.call("POST", f"/experiments/{self.experiment}/{verb}", json={})
            self.wait()
            self.clock.at += GIVE_UP_S
            self.leases.run_once()
            self.judging.settle()
        assert self.plane.experiment(self.experiment)["state"] == "finished"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_what_must_hold_holds_through_a_random_walk(still: Plane, clock: Clock, seed: int) -> None:
    walk = Walk(still, clock, seed)
    view = None
    walk.work()
    for _ in range(90):
        walk.step()
        view = walk.check(view)
    walk.leave()
    walk.judging.close()
    assert len(walk.orders) >= 2
    assert walk.statuses >= {409}


@pytest.mark.parametrize("seed", range(4))
def test_from_wherever_a_short_walk_comes_there_is_a_way_on(
    still: Plane, clock: Clock, seed: int
) -> None:
    walk = Walk(still, clock, seed)
    view = None
    for _ in range(8 + 4 * seed):
        walk.step()
        view = walk.check(view)
    if seed % 2:
        walk.work()  # and its host is silent from then on
    walk.leave()
    walk.judging.close()
