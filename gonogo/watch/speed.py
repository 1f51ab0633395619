"""How long do steps take? The one model of speed that slow, straggler, loader and D21 share.

A `SpeedSample` is the steps that one line ended, on the rank's own clock, without checkpoint and
evaluation. A window is the last samples that cover so many steps.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gonogo.timeline.step import RankStep
from gonogo.watch.mean import mean_of
from gonogo.watch.view import Beat

LEAST_LINES = 4
"""Lines that a window has at least, where a line ends many steps."""
KEPT_SHARE = 15 / 16
"""Share of the shorter steps of which the mean is taken; pauses and stalls are in the others."""


@dataclass(frozen=True, kw_only=True)
class SpeedSample:
    """The steps that one line ended."""

    step_s: float
    """Mean seconds of a step, as if it carried the tokens of the first steps."""
    steps: int
    mono: float
    """Watcher's clock when the line came."""
    waited_s: float
    """Seconds in which the ranks had waited for a processor until then."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """The last printed line that was timed; lines that are read together are one block."""

    tick: int
    mono: float
    step: int


def read_block(before: Block | None, event: Beat) -> tuple[Block, float, int]:
    """Return the block of a printed line, the mean time of the steps since the one before it, and
    how many they are.

    The first line of a block stands for the block; the others make no sample (0 steps).
    """
    line = event.line
    if before is not None and before.tick == event.tick.n:
        return before, 0.0, 0
    block = Block(tick=event.tick.n, mono=line.mono, step=line.step)
    if before is None or line.step <= before.step or line.mono <= before.mono:
        return block, 0.0, 0
    steps = line.step - before.step
    return block, (line.mono - before.mono) / steps, steps


def last(samples: Sequence[SpeedSample], steps: int) -> Sequence[SpeedSample]:
    """Return the last samples that cover so many steps, or all where they are fewer."""
    covered = 0
    for count, sample in enumerate(reversed(samples), start=1):
        covered += sample.steps
        if covered >= steps and count >= min(LEAST_LINES, steps):
            return samples[-count:]
    return samples


def fills(samples: Sequence[SpeedSample], steps: int) -> bool:
    """Whether samples cover so many steps, by enough lines."""
    covered = sum(sample.steps for sample in samples)
    return covered >= steps and len(samples) >= min(LEAST_LINES, steps)


def median_step_s(samples: Sequence[SpeedSample]) -> float:
    """Return the median seconds of a step."""
    return statistics.median(sample.step_s for sample in samples)


def mean_step_s(samples: Sequence[SpeedSample]) -> float:
    """Return the mean seconds of a step, without the few longest."""
    times_s = sorted(sample.step_s for sample in samples)
    return mean_of(times_s[: round(KEPT_SHARE * len(times_s))])


def fetched_s(row: RankStep) -> float | None:
    """Return the seconds that a rank's step waited for its loader, as its lines say."""
    if row.progress is not None and row.progress.dt_fetch_s is not None:
        return row.progress.dt_fetch_s
    return None if row.sections is None else row.sections.data


def own_time_s(row: RankStep) -> float | None:
    """Return a rank's own compute seconds in a step, or None where it did not report them."""
    if row.dt_s is None or row.sections is None or row.sections.wait >= row.dt_s:
        return None
    return row.dt_s - max(0.0, row.sections.wait)
