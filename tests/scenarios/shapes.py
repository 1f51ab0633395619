"""Worlds that several families of scenarios share, and edits of their lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.watch.streams import Said, World


def rewritten(world: World, change: Callable[[bytes], bytes | None]) -> World:
    """Change or drop lines of every rank; `seq` continues without gaps."""
    for rank in world.ranks:
        kept = [(said, raw) for said in rank.lines if (raw := change(said.raw)) is not None]
        rank.lines = [
            Said(said.mono, re.sub(rb'"seq": \d+', b'"seq": %d' % number, raw))
            for number, (said, raw) in enumerate(kept, start=1)
        ]
    return world


def with_the_section_first(world: World) -> World:
    """No step's end is reported, and a section line names the next step ahead of its start."""
    for rank in world.ranks:
        told: list[Said] = []
        for said in rank.lines:
            if b'"step_start"' in said.raw:
                told.append(Said(said.mono, said.raw.replace(b'"step_start"', b'"section"')))
            if b'"step_end"' not in said.raw:
                told.append(said)
        rank.lines = told
    return rewritten(world, lambda raw: raw)


def cut(world: World, since: float, until: float) -> None:
    """Nothing of node 1 arrives meanwhile: its follower is not heard, its lines come later."""
    row = {"rank": 1, "pid": 101}
    world.probes.append((since + 10.0, {"ranks": [{**row, "state": "unknown"}]}))
    world.probes.append((until, {"ranks": [{**row, "state": "alive"}]}))
    rank = world.ranks[1]
    rank.lines = [
        Said(until, said.raw) if since < said.mono < until else said for said in rank.lines
    ]


def losses(rank: int, step: int) -> dict[str, Any]:
    """Each rank has a loss of its own, on data of its own."""
    loss = (5.0, 6.4)[rank] - 0.001234 * step + 0.01 * (step % 7)
    return {"loss": loss, "grad_norm": 1.0 + 0.1 * (step % 5)}
