"""Ranks that stand in places by chance, as long as a limit lasts or a quarter of a second longer.

Each scenario shows the deadlines many such runs at one moment. Recorded is what they find, how near
they are to their limits, and which rank is the culprit.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from gonogo.contract.records import ProcessState, StackProbe, Tick
from gonogo.timeline.rank import RankStream
from gonogo.watch.detectors.culprit import COLLECTIVES, name_culprit
from gonogo.watch.detectors.deadlines import (
    AliveLost,
    NoFirstHeartbeat,
    SectionDeadline,
    Stall,
    standstill,
)
from gonogo.watch.view import Observed, Process, Processes, Run, Stack, View
from tests.scenarios.chance import PROGRAMS, WATCH
from tests.scenarios.scenario import Outcome, Scenario, rounded
from tests.watch.standing import NOW, standing
from tests.watch.streams import EPOCH, order_of

SEEDS = 16
VIEWS = 40
KINDS = (AliveLost, NoFirstHeartbeat, Stall, SectionDeadline)
EXIT_S = (4.25, 8.0, 8.25, 64.0)
LIMITS_S = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0)
"""Limits of `chance.WATCH`, and their multiples."""


def scenarios() -> Iterator[Scenario]:
    """Yield culprits among ranks in nearly the same place, then deadlines of ranks anywhere."""
    for seed in range(SEEDS):
        yield Scenario(f"standing/culprit/{seed}", partial(_named, seed))
    for seed in range(SEEDS):
        yield Scenario(f"standing/deadlines/{seed}", partial(_overdue, seed))


def _named(seed: int) -> Outcome:
    """Return whom the others wait for, of many views: ranks (and silent nodes), not words."""
    dice, rows = random.Random(f"standing/culprit/{seed}"), list[Any]()
    for _ in range(VIEWS):
        view = _alike(dice)
        found = name_culprit(view, list(view.streams.values()), NOW)
        assert found is not None  # there is a rank
        ranks = [int(number) for number in re.findall(r"\d+", found.who)]
        rows.append([ranks, found.named, bool(found.why)])
    return {"culprits": rows}


def _overdue(seed: int) -> Outcome:
    """Return what the deadlines find in many views, and how near they are."""
    dice, rows = random.Random(f"standing/deadlines/{seed}"), list[Any]()
    for _ in range(VIEWS):
        view, found, distances = _anywhere(dice), list[Any](), list[Any]()
        tick = Tick(n=20, mono=NOW, ts=EPOCH)
        for kind in KINDS:
            detector = kind(view.run)
            for row in detector.observe_tick(None, tick, view)[1]:
                episode = row.key.rpartition("/")[2]
                numbers = [row.rank, row.value, row.threshold]
                found.append([row.detector, row.severity, episode, *numbers])
            near = detector.near(None, view, NOW)
            distances.append([near.value, near.limit, detector.armed(None, view)])
        group = standstill(view, NOW)
        stays = [] if group is None else [[stay.place, stay.stream.rank] for stay in group.stays]
        rows.append([rounded(found), rounded(distances), stays])
    return {"views": rows}


def _alike(dice: random.Random) -> View:
    """Return ranks that are hard to distinguish."""
    one, size = dice.choice, dice.choice((1, 2, 2, 3, 4, 9, 10))
    places = one((("backward", "forward"), ("data", None), ("eval", None, "rollout")))
    starts, counts = one(((0,), (0, 3))), one(((0,), (1, 2), (2, 3, 4)))
    ends = one((((0, 0),), ((40, 1),), ((40, 1), (39, 1))))
    before = one(((), ((40, 3, 1), (40, 4, 1)), ((40, 3, -1), (40, 4, 2))))
    steps = one(((41,), (41,), (40, 41)))
    streams = {
        rank: standing(
            one(places),
            for_s=60.0,
            rank=rank,
            step=one(steps),
            section_seq=one((2, 2, 3)),
            collective_seq=one(counts),
            ended_at=one(ends),
            from_step=one(starts),
            begun=one((1, 1, 1, 2)),
            places=one(((), ("eval",), ("rollout", "data"))),
            step_counts=tuple(dice.sample(before, len(before) // 2)),
            heard_mono=NOW - one((0.0, 0.0, 0.0, 60.0)),
        )
        for rank in range(size)
    }
    payload = one((None, {"only": 1}, {"behind": [0]}, {"behind": [0, 1]}, {"behind": [5]}))
    observed = {}
    if payload is not None:
        told: dict[str, Any] = {**payload, "asked_mono": NOW - one((0.0, 60.0, 90.0)), "text": "x"}
        observed = {COLLECTIVES: Observed(mono=NOW, ts=0.0, payload=told)}
    order = order_of({}, world_size=size, steps=1000, nodes=_nodes(dice, size))
    processes = _processes(dice, size)
    return View(run=Run(order=order), streams=streams, processes=processes, observed=observed)


def _nodes(dice: random.Random, size: int) -> int:
    return 2 if size % 2 == 0 and dice.random() < 0.3 else 1


def _processes(dice: random.Random, size: int) -> Processes:
    """Return the probes' reports of the ranks: few in most runs."""
    one = dice.choice
    states = (*ProcessState, ProcessState.STOPPED, *(ProcessState.ALIVE,) * 4)
    probed = dice.random() < 0.6
    return Processes(
        agent=Process(state=one((ProcessState.ALIVE, ProcessState.DEAD, ProcessState.UNKNOWN))),
        ranks={
            rank: Process(
                state=one(states),
                pid=one((None, 1, 2)),
                held_mono=NOW - one((2.0, 5.0, 60.0)),
                renewed_mono=one((None, None, None, NOW - 4.0, NOW - 4.25)),
            )
            for rank in range(size if probed else 0)
        },
        stacks={
            rank: tuple(
                Stack(
                    mono=NOW - ago_s,
                    probe=StackProbe(
                        rank=rank,
                        waiting=one((True, True, False)),
                        digest=one(("a", "a", "a", "b", None)),
                        cpu_s=one((1.0, 1.0, 1.0, 9.0)),
                    ),
                )
                for ago_s in one(((0.0,), (5.0, 0.0), (3.0, 0.0), (90.0, 30.0)))
            )
            for rank in range(size if dice.random() < 0.5 else 0)
        },
    )


def _anywhere(dice: random.Random) -> View:
    """Return ranks in whatever places, nearly overdue or just so."""
    one, size = dice.choice, dice.choice((1, 2, 2, 3))
    alike = dice.random() < 0.7
    place, since_s, over = _place(dice), _seconds(dice), dice.random() < 0.1
    streams = {
        rank: _stream(dice, rank, place if alike else _place(dice), since_s, done=over)
        for rank in range(size)
        if dice.random() < 0.95
    }
    order = order_of(
        WATCH,
        world_size=size,
        steps=one((40, 1000, 1000)),
        nodes=_nodes(dice, size),
        **PROGRAMS[one(list(PROGRAMS))],
    )
    disk = {"free_mb": 1.0, "total_mb": 9.0, "refused": True}
    refused = {"disk": Observed(mono=NOW, ts=0.0, payload=disk)} if dice.random() < 0.1 else {}
    return View(
        run=Run(order=order),
        streams=streams,
        processes=_processes(dice, size),
        observed=refused,
        watched=dice.random() < 0.9,
        started_mono=one((None, NOW - 4.0, NOW - 4.25, NOW - 200.0)),
    )


def _place(dice: random.Random) -> str | None:
    return dice.choice(
        ("backward", "backward", "forward", "data", "checkpoint", "eval", "log", None, "boot", "x")
    )


def _seconds(dice: random.Random) -> float:
    """Return as long as a limit lasts, or a quarter of a second more."""
    return dice.choice(LIMITS_S) + dice.choice((0.0, 0.25))


def _stream(
    dice: random.Random, rank: int, place: str | None, since_s: float, *, done: bool
) -> RankStream:
    one, for_s = dice.choice, _about(dice, since_s)
    steps = one((0, 2, 5, 40, 40, 40))
    return standing(
        place,
        for_s=for_s,
        rank=rank,
        steps=steps,
        step_s=one((0.5, 1.0, 2.0)),
        labelled=dice.random() < 0.85,
        step=steps + one((0, 1, 1, 1, 2)),
        heard_mono=NOW - one((0.0, 0.0, 2.0, 4.0, 4.25, 8.0, 8.25, for_s)),
        advanced_mono=NOW - one((for_s, for_s, for_s + 8.0, 64.0)),
        started_mono=one((None, NOW - for_s)),
        first_mono=NOW - one((8.0, 8.25, 64.0)),
        first_s=one((0.0, 3.0)),
        left_mono=NOW - one((for_s, 64.0)),
        done=done or dice.random() < 0.1,
        done_mono=NOW - one((for_s, *EXIT_S)),
        halt_seen=dice.random() < 0.05,
        top_step=one((0, 0, 2)),
        longest_apart_s=one((0.0, 4.0, 8.0)),
        section_times=one(((), (("eval", 4.0), ("eval", 6.0)), (("checkpoint", 4.0),))),
        saved_s=one(((), (6.0,))),
        section_seq=one((2, 3)),
        pid=one((1, 2)),
    )


def _about(dice: random.Random, since_s: float) -> float:
    """Return mostly the same seconds as the other ranks."""
    return since_s if dice.random() < 0.7 else _seconds(dice)
