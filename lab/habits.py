"""What else do healthy runs do? Epochs, batch ramps, recompiling, an evaluation to begin with.

Each run has some of these habits, drawn once; times are seconds.
"""

import random
from dataclasses import dataclass

from lab.noise import Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What one run does that another does not."""

    epoch_steps: int = 0
    """After so many steps a step waits for a loader that starts anew (0: never)."""
    epoch_s: tuple[float, float] = (2.0, 60.0)
    grows_at: tuple[int, ...] = ()
    """Steps from which on each carries more: a batch ramp, longer sequences."""
    grows_x: float = 1.0
    """By how much, in tokens and time."""
    recompiles_at: frozenset[int] = frozenset()
    """Steps whose forward compiles, for a shape that is new."""
    recompile_s: tuple[float, float] = (2.0, 30.0)
    first_eval_s: float = 0.0
    """An evaluation before the first step."""
    lag_s: float = 0.0
    """Lines can be read every so many seconds: a shared disk's cache, a writer that buffers."""
    lag_from: int = 0
    """The first rank whose lines are: those of the watcher's own host may be read at once."""

    def grown_x(self, step: int) -> float:
        """How much more than the first a step carries."""
        return self.grows_x ** sum(step >= at for at in self.grows_at)


PLAIN = Habits()
EARLY_STEPS = 32
"""Ramps begin after these; a first shape may be new in any of them."""


def habits_of(noise: Noise, dice: random.Random, steps: int, ranks: int = 1) -> Habits:
    """Return the habits of a healthy run of so many steps and ranks."""

    def has() -> bool:
        return dice.random() < noise.habit_share

    def some(most: int) -> list[int]:
        """Return some steps after the first ones."""
        last = max(EARLY_STEPS + 1, steps)
        return sorted(dice.randrange(EARLY_STEPS, last) for _ in range(dice.randint(1, most)))

    def shapes() -> list[int]:
        return [dice.randrange(2, EARLY_STEPS), *some(4)]

    return Habits(
        epoch_steps=dice.randrange(50, 3000) if has() else 0,
        grows_at=tuple(some(3)) if has() else (),
        grows_x=dice.uniform(1.1, 2.0),
        recompiles_at=frozenset(shapes() if has() else ()),
        first_eval_s=dice.uniform(*noise.eval_s) if has() else 0.0,
        lag_s=dice.uniform(*noise.lag_s) if has() else 0.0,
        lag_from=dice.choice((0, ranks // 2)),
    )
