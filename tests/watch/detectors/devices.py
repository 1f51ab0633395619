"""Ticks that carry device samples, for the detectors that look at them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.records import Tick
from gonogo.watch.fold import WatchState, fold, start
from tests.watch.streams import EPOCH, T0, order_of


def device_order(watch: Mapping[str, Any] | None = None, **fields: Any) -> Order:
    """An order that is watched by the detectors that look at devices."""
    detectors = ["imbalance", "memory_limit", "hardware"]
    profile = fields.pop("profile", "cpu")
    order = order_of(watch or {}, detectors=detectors, **fields)
    return order.model_copy(update={"profile": profile})


def sample(mono: float, rank: int | None = 0, **fields: Any) -> dict[str, Any]:
    """One sample as a tick carries it; a device has its rank in its UUID."""
    uuid = fields.pop("uuid", f"GPU-{rank}")
    return {"v": 1, "ts": EPOCH + mono - T0, "mono": mono, "uuid": uuid, "rank": rank, **fields}


def lines(rank: int, seq: int, mono: float, msg: str, **fields: Any) -> bytes:
    """One heartbeat line of a rank."""
    row = {
        "v": 1, "ts": EPOCH + mono - T0, "mono": mono, "pid": 100 + rank, "rank": rank,
        "boot": f"boot{rank}", "seq": seq, "section_seq": seq, **fields, "msg": msg,
    }  # fmt: skip
    return json.dumps(row).encode()


class Fold:
    """A fold that is fed by hand: ticks of device samples, and steps of all ranks between them."""

    def __init__(self, order: Order | None = None) -> None:
        self.state: WatchState = start(order or device_order())
        self.findings: list[Finding] = []
        self.number = 0
        self.seq = 0
        self.now = T0

    def tick(
        self, observations: Mapping[str, Any], beats: Mapping[int, list[bytes]] | None = None
    ) -> list[Finding]:
        """Fold one tick at the present clock; returns what it found."""
        self.number += 1
        tick = Tick(
            n=self.number, mono=self.now, ts=EPOCH + self.now - T0, observations=dict(observations)
        )
        self.state, found = fold(self.state, tick, beats or {})
        self.findings += found
        return found

    def devices(self, rows: Iterable[Any], after_s: float = 0.0) -> list[Finding]:
        """Fold a tick that carries device samples."""
        self.now += after_s
        return self.tick({"devices": list(rows)})

    def step(self, step: int, section: str | None = None, **fields: Any) -> list[Finding]:
        """Fold one whole step of every rank, after which they are in `section`."""
        beats: dict[int, list[bytes]] = {}
        for rank in range(self.state.run.order.world_size):
            beats[rank] = [
                lines(rank, self.seq + 1, self.now, "step_start", step=step, section="data"),
                lines(rank, self.seq + 2, self.now, "progress", step=step, section="log", **fields),
                lines(rank, self.seq + 3, self.now, "step_end", step=step, section=section),
            ]
        self.seq += 3
        return self.tick({}, beats)

    def said(self) -> list[tuple[str, str, int | None]]:
        """Return detector, severity and rank of every finding."""
        return [(row.detector, row.severity.value, row.rank) for row in self.findings]
