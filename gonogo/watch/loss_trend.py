"""Where has a loss been, and where is it? The state of D11 from step to step.

Sigma is told by the median absolute deviation throughout, so that a few spikes change nothing.
"""

import math
import statistics
from dataclasses import dataclass, field
from itertools import pairwise

from gonogo.watch.loss_kind import Heat, LossKind
from gonogo.watch.loss_unit import LossUnit
from gonogo.watch.state import replace

SIGMA_OF_MAD = 1.4826
KEPT_SHARE = 8
"""The best is kept for every eighth more steps."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The loss so far."""

    last_step: int = 0
    steps: int = 0
    """Losses seen since the start, or since the run went back to an earlier step."""
    waited: int = 0
    """Losses before the restarts that found the loss up: the wait for enough of them goes on."""
    smooth: float = 0.0
    best: float | None = None
    first: tuple[float, ...] = ()
    """The first losses of the run."""
    began: float | None = None
    """The smoothed loss when it was first of enough."""
    bests: tuple[tuple[int, float], ...] = ()
    """Step → the best by then."""
    was_armed: bool = False
    window: tuple[float, ...] = ()
    noise: float | None = None
    """Sigma of the loss when its smoothed value began to rise; kept until it has come back."""
    jitter: float = 0.0
    """The same of the loss from one step to the next."""
    over: int = 0
    """Steps running on which the rise held."""
    since_step: int = 0
    since_ts: float = 0.0
    up: int = 0
    """Steps above the limit since the smoothed loss rose, whether or not it held."""
    up_step: int = 0
    up_ts: float = 0.0
    height: float = 0.0
    """Sum of heights over the best in the present block of such steps."""
    heights: tuple[float, ...] = ()
    """Those of the last blocks before it."""
    eased: float | None = None
    """The lowest smoothed loss since the rise was found to come down; cleared with `told`."""
    eases: int = 0
    """How often it was; cleared with `told`."""
    told: bool = False
    """Whether the rise was found; cleared once the smoothed loss has come back."""
    risen_by: float = 0.0
    """Height over the best of the highest rise that was warned of."""
    spikes: tuple[bool, ...] = ()
    spike_steps: int = 0
    """Steps running on which too many of the last losses were spikes."""
    bursts: tuple[int, ...] = ()
    """Steps at which that began, the last times."""
    spikes_warned: bool = False
    ends: bool = False
    """Whether the rise was found to halt; cleared with `told`."""
    kind: LossKind = field(default_factory=LossKind)
    heat: Heat = field(default_factory=Heat)
    unit: LossUnit = field(default_factory=LossUnit)
    warm: bool = False
    """Whether the learning rate has just jumped back up."""

    def reheated(self) -> "Trend":
        """Return the trend at a warm restart: losses are counted anew."""
        own = come_back(self)
        return replace(own, steps=0, best=None, bests=(), warm=True, window=(), spikes=())

    def easing(self) -> "Trend":
        """Return the trend of a rise that comes down: its blocks are counted anew."""
        eases = self.eases + 1
        return replace(self, eased=self.smooth, eases=eases, over=0, up=0, height=0.0, heights=())

    def anew(self) -> "Trend":
        """Return the trend where another training begins."""
        return Trend(was_armed=self.was_armed, spikes_warned=self.spikes_warned)

    def back_at(self, step: int) -> "Trend":
        """Return the trend at a restart: what the run had reached by that step."""
        bests = tuple(row for row in self.bests if row[0] <= step)
        best = bests[-1][1] if bests else None
        return Trend(
            first=self.first,
            began=self.began,
            best=best,
            bests=bests,
            was_armed=self.was_armed,
            risen_by=self.risen_by,
            bursts=tuple(row for row in self.bursts if row <= step),
            spikes_warned=self.spikes_warned,
            kind=self.kind.restarted(),
            heat=self.heat.restarted(),
            unit=self.unit.restarted(),
        )

    def still_up(self, before: "Trend") -> "Trend":
        """Return the trend at a restart before which the loss was up: that rise goes on.

        Args:
            before: the trend that the restart ended.
        """
        return replace(
            self,
            waited=before.waited + before.steps,
            noise=before.noise,
            jitter=before.jitter,
            over=before.over,
            since_step=before.since_step,
            since_ts=before.since_ts,
            eased=before.eased,
            eases=before.eases,
            told=before.told,
        )

    def kept(self) -> "Trend":
        """Return the trend with its best kept, where enough steps have passed since the last."""
        last = self.bests[-1][0] if self.bests else 0
        if self.best is None or self.last_step < last + max(1, last // KEPT_SHARE):
            return self
        return replace(self, bests=(*self.bests, (self.last_step, self.best)))


def come_back(own: Trend) -> Trend:
    """Return the trend of a loss that is no longer up."""
    return replace(
        own,
        waited=0,
        noise=None,
        over=0,
        up=0,
        height=0.0,
        heights=(),
        eased=None,
        eases=0,
        told=False,
        ends=False,
        kind=own.kind.down(),
    )


def jitter_of(values: tuple[float, ...]) -> float:
    """Return the sigma of what is left of a loss when its trend is taken out."""
    return sigma_of(tuple(b - a for a, b in pairwise(values))) / math.sqrt(2.0)


def sigma_of(values: tuple[float, ...]) -> float:
    """Return the standard deviation that the median absolute deviation stands for."""
    if not values:
        return 0.0
    middle = statistics.median(values)
    return SIGMA_OF_MAD * statistics.median(abs(value - middle) for value in values)
