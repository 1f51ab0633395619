"""Of what kind is a loss? One that only falls, or one that swings, jumps and changes its sign.

The loss of a model that learns from data falls, and a rise that holds is a divergence. The losses
of two networks that play against each other, of a policy or of rewards rise while all is well. The
kind shows in what was told so far: a negative loss, noise, rises that came back by themselves, and
whether it ever fell. A term that is added bit by bit (annealing) wins back a part of the fall. The
learning rate is kept, too: one that comes back up (warm restarts, cycles) takes any loss with it.
"""

import math
import statistics
from dataclasses import dataclass

from gonogo.watch.mean import mean_of
from gonogo.watch.state import replace

QUIET_SHARE, STEADY_SHARE = 0.05, 0.02
"""A loss of the kind that falls has a noise of at most this share of its best, or, from one step to
the next, where it climbs already, of that one."""
FELL_SHARE, WON_BACK_SHARE, BEST_X, BEGAN_X = 0.9, 0.5, 3.0, 1.25
"""A loss has fallen once its best is this share of where it began; then a rise wins back such a
share of the fall, or comes to so many times the best. One that never fell comes to so many times
where it began, which is `BEGAN_LEAST` or more."""
BEGAN_LEAST, FELL_SIGMAS = 1.0, 3.0
NOISY_SHARE = 0.35
"""Noise of up to this share of the best is no play, if the loss fell; its rise has to be a large
one, and that of the gradients too. A value's of growing returns has more, and rises with them, its
gradients too, while all is well."""
SWING_STEPS, SWINGS = 25, 2
"""A loss that was up for so many steps and came back has swung; a language model's may once."""
BLOW_UP_X, GRADIENTS_X = 10.0, 3.0
"""A blow-up is so many times the largest before, with so many times the usual gradient norm."""
BLOW_UP_BLOCKS, BLOCK_STEPS = 8, 50
"""What a loss came to so many blocks of so many steps ago was before: a value's grows as far with
its returns, over thousands of steps."""
GRADIENTS_KEPT, GRADIENTS_NOW = 128, 25
REHEATS_X, REHEATS_SHARE = 1.25, 0.1
"""A learning rate reheats that comes to so many times its lowest, and this share of its top."""
RATES_KEPT = 12
"""Rates whose mean counts: groups of parameters that take turns in twos, threes, fours or sixes
reheat nothing."""


@dataclass(frozen=True, kw_only=True)
class LossKind:
    """What was told of a loss that says of what kind it is."""

    negative: bool = False
    risen: int = 0
    """Steps running on which the smoothed loss has been up."""
    swings: int = 0
    """Rises that lasted and came back by themselves."""
    far: bool = False
    """Whether the present rise was more than a mild one."""
    far_swings: int = 0
    """Those of the swings that were."""
    longest: int = 0
    """Steps of the longest rise that came back by itself."""
    largest: float = 0.0
    """Of the smoothed loss, by size, while it was not up, or long ago."""
    lately: tuple[float, ...] = ()
    """The same of the last blocks of steps on which it was."""
    gradients: tuple[float, ...] = ()
    usual_gradient: float | None = None
    """Median gradient norm when the smoothed loss began to rise."""

    def after(self, loss: float, smooth: float, before: float) -> "LossKind":
        """Return the kind after one more loss.

        Args:
            loss: as it was told.
            smooth: the smoothed loss with it, which may be the first of a rise.
            before: the smoothed loss without it.
        """
        own = replace(self, negative=self.negative or loss < 0.0)
        size = abs(smooth)
        if not own.risen:
            return replace(own, largest=max(own.largest, abs(before)))
        if own.risen % BLOCK_STEPS and own.lately:
            return replace(own, lately=(*own.lately[:-1], max(own.lately[-1], size)))
        if len(own.lately) <= BLOW_UP_BLOCKS:
            return replace(own, lately=(*own.lately, size))
        largest = max(own.largest, own.lately[0])
        return replace(own, largest=largest, lately=(*own.lately[1:], size))

    def with_gradient(self, norm: float | None) -> "LossKind":
        """Return the kind after one more gradient norm, where one was told."""
        if norm is None or not math.isfinite(norm):
            return self
        return replace(self, gradients=(*self.gradients, norm)[-GRADIENTS_KEPT:])

    def up(self, *, mild: bool) -> "LossKind":
        """Return the kind after one more step on which the smoothed loss is up."""
        far = self.far or not mild
        if self.risen or not self.gradients:
            return replace(self, risen=self.risen + 1, far=far)
        return replace(self, risen=1, far=far, usual_gradient=statistics.median(self.gradients))

    def down(self) -> "LossKind":
        """Return the kind when the smoothed loss has come back."""
        swung = self.risen >= SWING_STEPS
        return replace(
            self.restarted(),
            swings=self.swings + swung,
            far_swings=self.far_swings + (swung and self.far),
            longest=max(self.longest, self.risen),
        )

    def restarted(self) -> "LossKind":
        """Return the kind at a restart: a rise that it ended did not come back by itself."""
        return replace(self, risen=0, far=False, lately=(), usual_gradient=None)

    def falls(self, rise: "Rise", *, speaks: bool, resumed: bool) -> bool:
        """Whether a rise that holds is a divergence.

        Args:
            rise: where the loss came from, and how far it has come.
            speaks: whether it began as a language model's.
            resumed: whether it may have fallen before its first step here.
        """
        if self.negative or rise.best <= 0.0:
            return False
        if rise.mild and not rise.long and not (speaks and rise.worse):
            return False
        if speaks:
            return rise.worse or self.far_swings < SWINGS
        if self.swings:
            return False
        fell = rise.fell
        if rise.noise <= QUIET_SHARE * rise.best or rise.jitter <= STEADY_SHARE * rise.best:
            if fell:
                return rise.won_back
            return resumed or BEGAN_LEAST <= rise.start <= rise.smooth / BEGAN_X
        far = rise.smooth >= max(BEST_X * rise.best, BEGAN_X * rise.start)
        noisy = rise.noise > NOISY_SHARE * rise.best
        return not noisy and (fell or resumed) and far and self._gradients_grew()

    def blows_up(self, smooth: float) -> bool:
        """Whether it is far beyond all that was before; the gradients too, where they are told."""
        return smooth > BLOW_UP_X * max(1.0, self.largest) and self._gradients_grew()

    def _gradients_grew(self) -> bool:
        """Whether the gradient norms are far beyond the usual ones, or nobody tells them."""
        if not self.usual_gradient:
            return True
        now = statistics.median(self.gradients[-GRADIENTS_NOW:])
        return now >= GRADIENTS_X * self.usual_gradient


@dataclass(frozen=True, kw_only=True)
class Rise:
    """How a loss rose: all but the first of it smoothed."""

    first: float
    """Median of the first losses."""
    began: float
    """The first mean of enough losses."""
    best: float
    smooth: float
    noise: float
    """Sigma of the loss before it rose."""
    jitter: float
    """Sigma of the loss from one step to the next."""
    worse: bool
    """Whether it is above where it began, by more than the limit."""
    mild: bool
    """Whether it is no more than a few times the limit that noise does not widen."""
    long: bool
    """Whether it has not come down from one block of steps to the next, after many of them."""

    @property
    def start(self) -> float:
        """Where the loss began: its first values, or the mean of more where those were small."""
        return self.first if self.first >= BEGAN_LEAST else self.began

    @property
    def fell(self) -> bool:
        """Whether the loss had fallen before, and not by its noise alone."""
        sharp = self.first - self.best > FELL_SIGMAS * self.noise
        return self.best <= FELL_SHARE * (max(self.first, self.began) if sharp else self.began)

    @property
    def won_back(self) -> bool:
        """Whether the loss has won back much of its fall, or a multiple of its best."""
        half = self.best + WON_BACK_SHARE * (self.began - self.best)
        return self.smooth >= min(half, BEST_X * self.best)


@dataclass(frozen=True, kw_only=True)
class Heat:
    """The learning rate so far."""

    told: bool = False
    rates: tuple[float, ...] = ()
    """The last ones."""
    top: float = 0.0
    low: float = 0.0
    """Lowest since it was at its top, or since it last reheated."""
    warms: bool = False
    """Whether it has only risen since a restart, and not come back to that lowest yet."""

    def restarted(self) -> "Heat":
        """Return the heat at a restart: a schedule may begin anew there, and warm up again."""
        return replace(self, rates=(), warms=bool(self.low))

    def after(self, rate: float | None) -> tuple["Heat", bool]:
        """Return the heat after one more rate, and whether that jumped back up.

        A rate that warms up for the first time does not: it has not fallen before. Nor does one
        that warms up after a restart, up to where it was.
        """
        if rate is None or not math.isfinite(rate) or rate < 0.0:
            return self, False
        kept = (*self.rates, rate)[-RATES_KEPT:]
        mean = mean_of(kept)
        warms = self.warms and mean < self.low and rate >= max(self.rates, default=0.0)
        own = replace(self, told=True, rates=kept, warms=warms)
        if warms:
            return own, False
        fallen = self.told and self.low < self.top
        if fallen and mean >= max(REHEATS_X * self.low, REHEATS_SHARE * self.top):
            return replace(own, top=max(mean, self.top), low=mean), True
        if mean >= self.top:
            return replace(own, top=mean, low=mean), False
        return replace(own, low=min(self.low, mean)), False
