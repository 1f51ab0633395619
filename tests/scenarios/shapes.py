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
