"""Bytes of a random Markov chain, to test the wiring.

Four successors a byte, with probabilities 0.7, 0.2, 0.07 and 0.03: a model gets from ln 256 = 5.545
to 0.86 nats per byte.
"""

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

_SPLITS = {"train": 0, "val": 1}
_PROBABILITIES = (0.7, 0.2, 0.07, 0.03)


class MarkovBytes:
    """A chain drawn from the seed; sequence i is drawn from (seed, split, i)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        table = np.random.default_rng(seed).integers(0, 256, size=(256, len(_PROBABILITIES)))
        self._successors: list[list[int]] = table.tolist()

    def sequence(self, split: str, index: int, length: int) -> NDArray[np.uint8]:
        """Sequence number `index` of a split, `length` + 1 bytes."""
        random = np.random.default_rng((self._seed, _SPLITS[split], index))
        branches = random.choice(len(_PROBABILITIES), size=length, p=_PROBABILITIES)
        value = int(random.integers(256))
        chain = [value]
        for branch in branches.tolist():
            value = self._successors[value][branch]
            chain.append(value)
        return np.array(chain, dtype=np.uint8)

    def epoch(self, index: int, length: int) -> int:
        """0: it never begins again."""
        return 0

    def digest(self) -> str:
        """The table, as a digest."""
        return hashlib.sha256(json.dumps(self._successors).encode()).hexdigest()
