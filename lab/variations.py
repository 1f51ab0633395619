"""How healthy runs differ: what they do besides training, and what their trainers report.

Both are drawn once a run. Times are seconds.
"""

import random
from dataclasses import dataclass

from gonogo.contract.heartbeat import Msg
from lab.rates import Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What one run does that another does not."""

    epoch_steps: int = 0
    """After so many steps a step waits for a restarting loader (0: never)."""
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


def draw_habits(noise: Noise, dice: random.Random, steps: int, ranks: int = 1) -> Habits:
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


_OPTIONAL = (
    "collective_seq",
    "dt_fetch_s",
    "dt_step_s",
    "gpu_mem_alloc",
    "gpu_mem_reserved",
    "host_rss_mb",
    "lr",
    "section_age_s",
    "step_sections",
    "tokens",
    "toks_per_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """What one run's ranks write, and by which clock."""

    messages_left_out: frozenset[str] = frozenset()
    fields_left_out: frozenset[str] = frozenset()
    sections: bool = True
    every_steps: int = 1
    """Lines of steps come at each so many of them."""
    rank_0_logs: bool = False
    """Whether only rank 0 writes `progress`; the others write the ends of their steps."""
    alive_every_s: float = 5.0
    boots_at_zero: bool = False
    """Whether a boot line has step 0 even in a resumed process."""
    own_clock: bool = False
    """Whether the monotonic clock counts from the start of the process."""

    @property
    def tokens(self) -> bool:
        """Whether the ends of steps say how many tokens they carried."""
        left_out = self.messages_left_out | self.fields_left_out
        return not left_out & {Msg.STEP_END, "tokens"}

    def tells(self, msg: str, step: int, rank: int) -> bool:
        """Whether a rank writes a line."""
        if msg in self.messages_left_out:
            return False
        if msg == Msg.PROGRESS and rank and self.rank_0_logs:
            return Msg.STEP_END in self.messages_left_out
        return msg not in _OF_STEPS or step % self.every_steps == 0


_OF_STEPS = frozenset({Msg.STEP_START, Msg.PROGRESS, Msg.STEP_END})
WHOLE = Reporting()


def draw_reporting(noise: Noise, dice: random.Random) -> Reporting:
    """Return what a healthy run reports: all, or less by one choice of each kind."""
    if dice.random() >= noise.terse_share:
        return WHOLE
    sections = dice.random() < 0.7
    left_out = set[str](
        dice.choice(((), (Msg.STEP_START,), (Msg.STEP_END,), (Msg.STEP_START, Msg.STEP_END)))
    )
    if not sections:
        left_out.add(Msg.SECTION)
        left_out.update(dice.choice(((), (Msg.ALIVE,))))
    return Reporting(
        messages_left_out=frozenset(left_out),
        fields_left_out=frozenset(name for name in _OPTIONAL if dice.random() < 0.3),
        sections=sections,
        every_steps=1 if sections else dice.choice((1, 1, 10)),
        rank_0_logs=dice.random() < 0.3,
        alive_every_s=dice.choice((1.0, 5.0, 10.0)),
        boots_at_zero=dice.random() < 0.5,
        own_clock=dice.random() < 0.5,
    )
