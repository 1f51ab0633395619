"""Of what kind is a loss? One that only falls, or one that swings, jumps and changes its sign.

The loss of a model that learns from data falls, and a rise that holds is a divergence. The losses
of two networks that play against each other, of a policy or of rewards rise while all is well. The
kind shows in what was told so far: a negative loss, noise, rises that came back by themselves. The
learning rate is kept, too: one that jumps back up (warm restarts) takes any loss with it.
"""

import math
import statistics
from dataclasses import dataclass, replace

QUIET_SHARE, STEADY_SHARE = 0.05, 0.02
"""A loss of the kind that falls has a noise of at most this share of its best, or, from one step to
the next, where it climbs already, of that one."""
SWING_STEPS, SWINGS = 25, 2
"""A loss that was up for so many steps and came back has swung; a language model's may once."""
BLOW_UP_X, GRADIENTS_X = 10.0, 3.0
"""A blow-up is so many times the largest before, with so many times the usual gradient norm."""
GRADIENTS_KEPT, GRADIENTS_NOW = 128, 25
REHEATS_X, REHEATS_SHARE = 2.0, 0.1
"""A learning rate reheats that comes to so many times its lowest, and this share of its top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossKind:
    """What was told of a loss that says of what kind it is."""

    negative: bool = False
    risen: int = 0
    """Steps running on which the smoothed loss has been up."""
    swings: int = 0
    """Rises that lasted and came back by themselves."""
    largest: float = 0.0
    """Of the smoothed loss, by size, while it was not up."""
    gradients: tuple[float, ...] = ()
    usual_gradient: float | None = None
    """Median gradient norm when the smoothed loss began to rise."""

    def after(self, loss: float, smooth: float) -> "LossKind":
        """Return the kind after one more loss."""
        largest = self.largest if self.risen else max(self.largest, abs(smooth))
        return replace(self, negative=self.negative or loss < 0.0, largest=largest)

    def with_gradient(self, norm: float | None) -> "LossKind":
        """Return the kind after one more gradient norm, where one was told."""
        if norm is None or not math.isfinite(norm):
            return self
        return replace(self, gradients=(*self.gradients, norm)[-GRADIENTS_KEPT:])

    def up(self) -> "LossKind":
        """Return the kind after one more step on which the smoothed loss is up."""
        if self.risen or not self.gradients:
            return replace(self, risen=self.risen + 1)
        return replace(self, risen=1, usual_gradient=statistics.median(self.gradients))

    def down(self) -> "LossKind":
        """Return the kind when the smoothed loss has come back."""
        swings = self.swings + (self.risen >= SWING_STEPS)
        return replace(self, risen=0, swings=swings, usual_gradient=None)

    def falls(self, best: float, noise: float, jitter: float, *, speaks: bool, worse: bool) -> bool:
        """Whether a rise that holds is a divergence.

        Args:
            best: of the smoothed loss, by which the rise is measured.
            noise: sigma of the loss before it rose.
            jitter: sigma of the loss from one step to the next.
            speaks: whether it began as a language model's.
            worse: whether it is above where it began.
        """
        if self.negative or best <= 0.0:
            return False
        if speaks:
            return worse or self.swings < SWINGS
        quiet = noise <= QUIET_SHARE * best or jitter <= STEADY_SHARE * best
        return quiet and not self.swings

    def blows_up(self, smooth: float) -> bool:
        """Whether it is far beyond all that was before; the gradients too, where they are told."""
        if smooth <= BLOW_UP_X * max(1.0, self.largest):
            return False
        if not self.usual_gradient:
            return True
        now = statistics.median(self.gradients[-GRADIENTS_NOW:])
        return now >= GRADIENTS_X * self.usual_gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """The learning rate so far."""

    told: bool = False
    top: float = 0.0
    low: float = 0.0
    """Lowest since it was at its top, or since it last reheated."""

    def after(self, rate: float | None) -> tuple["Heat", bool]:
        """Return the heat after one more rate, and whether that jumped back up.

        A rate that warms up for the first time does not: it has not fallen before.
        """
        if rate is None or not math.isfinite(rate) or rate < 0.0:
            return self, False
        fallen = self.told and self.low < self.top
        if fallen and rate >= max(REHEATS_X * self.low, REHEATS_SHARE * self.top):
            return Heat(told=True, top=max(rate, self.top), low=rate), True
        if rate >= self.top:
            return Heat(told=True, top=rate, low=rate), False
        return replace(self, low=min(self.low, rate)), False
