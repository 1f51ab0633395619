"""Is a loss told as a sum over what a step carries? Then it jumps as the tokens of a step do.

A trainer that adds up its micro-batches, or its tokens, tells twice the loss when its batch
doubles, and is well. It shows when steps come to carry another number of tokens: the loss changes
at once, by the same factor, and stays there. A mean does no such thing, and one that diverges
climbs. From then on losses count as those of steps that carry as many tokens as before.
"""

import statistics
from dataclasses import dataclass

from gonogo.watch.state import replace

CHANGES_X = 1.2
"""Steps carry another number of tokens that is so many times as large, or as small."""
LOOK_STEPS = 8
"""Losses before a change, and after it, that are compared; the first half of these by itself, too:
a sum does not climb there."""
ALIKE = 0.15
"""By how much they may have changed otherwise than the tokens, as a share."""


@dataclass(frozen=True, kw_only=True)
class LossUnit:
    """What steps carried, and what was told of them."""

    tokens: int | None = None
    """Of the last steps, of the first of those that carry about as many."""
    losses: tuple[float, ...] = ()
    """The last ones of these steps, as told."""
    before: tuple[float, int] | None = None
    """Median loss and tokens before the last change, while nobody knows what it did."""
    sums_of: int | None = None
    """Tokens of a step as of which losses count, once they are known to be sums."""

    def after(self, loss: float, tokens: int | None) -> "LossUnit":
        """Return the unit after one more step that told a finite loss."""
        if tokens is None or tokens <= 0 or self.sums_of is not None:
            return self
        if self.tokens is None or not 1 / CHANGES_X < tokens / self.tokens < CHANGES_X:
            return self._changed(loss, tokens)
        own = replace(self, losses=(*self.losses, loss)[-LOOK_STEPS:])
        if own.before is None or len(own.losses) < LOOK_STEPS:
            return own
        sums_of = own.before[1] if _jumped(own.losses, self.tokens, *own.before) else None
        return replace(own, before=None, sums_of=sums_of)

    def of(self, loss: float, tokens: int | None) -> float:
        """Return a loss as of a step of as many tokens as before."""
        if self.sums_of is None or tokens is None or tokens <= 0:
            return loss
        return loss * self.sums_of / tokens

    def restarted(self) -> "LossUnit":
        """Return the unit at a restart: what is known stays."""
        return LossUnit(sums_of=self.sums_of)

    def _changed(self, loss: float, tokens: int) -> "LossUnit":
        """Return the unit where a step carries another number of tokens than those before."""
        known = len(self.losses) == LOOK_STEPS and self.before is None
        before = (statistics.median(self.losses), self.tokens) if self.tokens and known else None
        return replace(self, tokens=tokens, losses=(loss,), before=before)


def _jumped(losses: tuple[float, ...], tokens: int, before: float, tokens_before: int) -> bool:
    """Whether losses have come to be another at once, by the factor that the tokens have."""
    if before <= 0.0:
        return False
    expected = before * tokens / tokens_before
    looks = (losses, losses[: LOOK_STEPS // 2])
    return all(abs(statistics.median(look) - expected) <= ALIKE * expected for look in looks)
