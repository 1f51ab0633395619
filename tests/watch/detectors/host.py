"""The reports of the host's probes, put into a made-up run."""

from __future__ import annotations

from typing import Any

from gonogo.contract.order import Order
from tests.watch.streams import World, order_of

DETECTORS = [
    "process_death",
    "stall",
    "section_deadline",
    "slow",
    "non_finite",
    "memory_leak",
    "disk",
    "checkpoint_overdue",
    "watcher",
]


def host_order(watch: dict[str, Any] | None = None, **fields: Any) -> Order:
    """An order that the host's detectors watch, with their defaults unless given otherwise."""
    return order_of({} if watch is None else watch, detectors=DETECTORS, **fields)


def tell(world: World, **kinds: Any) -> None:
    """Lay what probes see now into the next tick; a call a tick."""
    world.probes.append((world.mono, {"observations": kinds}))


def disk(
    free_mb: float, total_mb: float = 100_000.0, free_files: int | None = None
) -> dict[str, Any]:
    return {"free_mb": free_mb, "total_mb": total_mb, "free_files": free_files, "errors": 0}


def checkpoint(step: int, *, mb: float = 1_000.0, text: str = "") -> dict[str, Any]:
    return {
        "step": step,
        "path": f"checkpoints/step_{step:06d}",
        "verified": not text,
        "bytes": 0 if text else int(mb * 2**20),
        "text": text,
    }


def memory(
    used_mb: float, limit_mb: float | None, ranks: dict[str, float] | None = None
) -> dict[str, Any]:
    return {"used_mb": used_mb, "limit_mb": limit_mb, "ranks": ranks or {}}
