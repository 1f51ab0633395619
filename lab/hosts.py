"""What do hosts and networks do to a run? Load that slows all ranks; lines that come late."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gonogo.contract.order import Order
from lab.rates import Noise

NODE_SILENT_S = 10.0
"""After which the watcher knows nothing of the processes of a node that it does not hear."""
NODE_CUT_SHARE = 0.7
"""Cuts that are of one node, where there are several."""


@dataclass(slots=True)
class Load:
    """A neighbour that takes processors, now and then."""

    noise: Noise
    dice: random.Random
    until: float = 0.0
    slower_x: float = 1.0

    def slowed(self, step_s: float, now: float) -> float:
        """Return how long a step takes that begins now and would take `step_s`."""
        noise, dice = self.noise, self.dice
        if now >= self.until and dice.random() * 3600.0 < noise.load_rate * step_s:
            short = dice.random() < noise.short_load_share
            self.until = now + dice.uniform(*(noise.short_load_s if short else noise.load_s))
            self.slower_x = dice.uniform(*(noise.short_load_x if short else noise.load_x))
        loaded_s = min(max(0.0, self.until - now), step_s * self.slower_x)
        return step_s + loaded_s * (1.0 - 1.0 / self.slower_x)


@dataclass(frozen=True, slots=True)
class Cut:
    """Ranks whose lines do not come."""

    since: float = 0.0
    until: float = 0.0
    ranks: frozenset[int] = frozenset()
    node: bool = False
    """Whether they are a node's, so that their processes are unknown, too."""

    def off(self, rank: int, now: float) -> bool:
        """Whether nothing comes from a rank at `now`."""
        return self.since <= now < self.until and rank in self.ranks

    def unknown(self, rank: int, now: float) -> bool:
        """Whether nothing is known of its process."""
        return self.node and self.off(rank, now)


def cut_at(
    now: float, order: Order, ranks: Sequence[int], noise: Noise, dice: random.Random
) -> Cut:
    """Return a cut that begins now: of a node but the watcher's own, or of all ranks."""
    seconds = dice.uniform(*noise.cut_s)
    if dice.random() < noise.long_cut_share:
        seconds = dice.uniform(noise.cut_s[1], noise.long_cut_s)
    node = order.nodes > 1 and dice.random() < NODE_CUT_SHARE
    off = [rank for rank in ranks if not node or order.node_of(rank)]
    return Cut(since=now, until=now + seconds, ranks=frozenset(off), node=node)
