"""What breaks in a fleet, how often, and what does the control plane see of it?

Rate and mix are those of Llama 3's pre-training: 419 unexpected interruptions in 54 days on 16 384
GPUs, by root cause (Llama Team, *The Llama 3 Herd of Models*, arXiv:2407.21783, table 5). For a run
of 8 GPUs that is one in 264 days, so a bench of minutes accelerates it, and says by how much.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

GPU_HOURS = 54 * 24 * 16_384
LEASE_S = 30.0


class Kind(Enum):
    """What the control plane sees."""

    GONE = "the host falls silent for good"
    HALTED = "the watchdog halts the run there and says so"
    CUT = "the host cannot be reached for a while"


CAUSES = (
    ("faulty GPU", 148, Kind.HALTED),
    ("GPU HBM3 memory", 72, Kind.HALTED),
    ("software bug", 54, Kind.HALTED),
    ("network switch or cable", 35, Kind.CUT),
    ("host maintenance, unplanned", 32, Kind.GONE),
    ("GPU SRAM memory", 19, Kind.HALTED),
    ("GPU system processor", 17, Kind.HALTED),
    ("network interface", 7, Kind.CUT),
    ("NCCL watchdog timeout", 7, Kind.HALTED),
    ("silent data corruption", 6, Kind.HALTED),
    ("GPU thermal interface and sensor", 6, Kind.HALTED),
    ("SSD", 3, Kind.HALTED),
    ("power supply", 3, Kind.GONE),
    ("server chassis", 2, Kind.GONE),
    ("IO expansion board", 2, Kind.GONE),
    ("dependency", 2, Kind.HALTED),
    ("CPU", 2, Kind.GONE),
    ("system memory", 2, Kind.GONE),
)
"""Cause, how many of the 419, and what is seen of it."""
RATE_PER_GPU_H = sum(count for _, count, _ in CAUSES) / GPU_HOURS
ADDED = "added, to be detected"
CUT_S = (5.0, 60.0)
"""How long a host is cut off; some shorter than the lease, some longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that happens to a run."""

    run: int
    at_s: float
    """Seconds after the start of the traffic."""
    kind: Kind
    cause: str
    lasts_s: float = 0.0
    """Length of a cut, in seconds."""


def draw_faults(
    runs: int, ranks: int, window: tuple[float, float], least: int, silent: int, seed: int
) -> tuple[list[Fault], float]:
    """Return the faults of a bench, at most one a run, and by how much their rate is accelerated.

    Args:
        runs, ranks: the fleet.
        window: seconds between which faults happen.
        least: how many there are at least; the rate is accelerated to it.
        silent: so many further hosts fall silent, so that a percentile of their detection rests on
            more than the mix gives; not counted as accelerated.
        seed: of the draw.
    """
    expected = runs * ranks * RATE_PER_GPU_H * (window[1] - window[0]) / 3600.0
    count = min(runs, max(least, round(expected)))
    rng = random.Random(seed)
    weights = [row[1] for row in CAUSES]
    faults = []
    chosen = rng.sample(range(runs), min(runs, count + silent))
    for run in chosen[:count]:
        cause, _, kind = rng.choices(CAUSES, weights)[0]
        faults.append(
            Fault(
                run=run,
                at_s=rng.uniform(*window),
                kind=kind,
                cause=cause,
                lasts_s=rng.uniform(*CUT_S) if kind is Kind.CUT else 0.0,
            )
        )
    for run in chosen[count:]:
        faults.append(Fault(run=run, at_s=rng.uniform(*window), kind=Kind.GONE, cause=ADDED))
    return faults, count / expected
