"""D11: the loss rises and stays up.

The smoothed loss is compared with its best. A noisy loss has a wider limit. A step counts only
while the last losses do not come down, so that a spike which decays is no divergence.

Not covered: losses that rise while all is well (of a policy, of two networks that play against each
other, or after a warm restart of the learning rate) are warned of. A rise that a restart interrupts
is counted anew.
"""

import math
import statistics
from dataclasses import dataclass, field

from gonogo.contract import outcome
from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.near import Near
from gonogo.timeline.step import Step
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.view import View, found
from gonogo.watch.window import Window, jitter_of, sigma_of

RECENT_STEPS = 25
"""Losses whose median is compared with that of as many before: does the loss come down?"""
HOLDS_SHARE = 0.95
"""A rise holds while its height keeps this share of the height before."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The loss so far."""

    last_step: int = 0
    losses: int = 0
    """Losses since the start of the run, or since it went back to an earlier step."""
    most_losses: int = 0
    smooth: float = 0.0
    best: float | None = None
    """Lowest smoothed loss; None before the mean is smooth."""
    over: int = 0
    """Steps on which the present rise held."""
    since_step: int = 0
    since_ts: float = 0.0
    window: Window = field(default_factory=Window)
    spiking: bool = False


class Divergence(Detector[Trend]):
    """D11 (module docstring)."""

    name = outcome.Detector.DIVERGENCE
    sentence = (
        "The smoothed loss stays above its best. The limit is the largest of `above`,"
        " `above_ratio` of the best and `noise_x` sigma of the loss, for `over_steps` steps, after"
        " the first `after_step` losses. Separately warns when `spike_count` of `spike_of` losses"
        " are spikes: above the median of `window_steps` by `spike_mad_x` sigma and `spike_least`."
    )
    State = Trend
    steps = True

    def observe_step(self, own: Trend, step: Step, view: View) -> Seen[Trend]:
        """Observe the loss of a step."""
        if step.step <= own.last_step:
            best = None if view.is_another(step.ranks) else own.best
            own = Trend(best=best, most_losses=own.most_losses)
        own = replace(own, last_step=step.step)
        loss = step.loss()
        if loss is None or not math.isfinite(loss):
            return own, []
        own, spikes = self._spiked(own, loss, step, view)
        own, rises = self._risen(self._smoothed(own, loss), step, view)
        return own, spikes + rises

    def _smoothed(self, own: Trend, loss: float) -> Trend:
        """Return the trend with one more loss: a plain mean at first, then an exponential one."""
        losses = own.losses + 1
        smooth = own.smooth + max(self.settings.alpha, 1.0 / losses) * (loss - own.smooth)
        best = own.best
        if losses * self.settings.alpha >= 1.0 or losses >= self.settings.after_step:
            best = smooth if best is None else min(best, smooth)
        most = max(losses, own.most_losses)
        return replace(own, losses=losses, most_losses=most, smooth=smooth, best=best)

    def _limit(self, best: float) -> float:
        """Return how far above its best the loss may be, its noise aside."""
        return max(float(self.settings.above), float(self.settings.above_ratio) * abs(best))

    def _risen(self, own: Trend, step: Step, view: View) -> Seen[Trend]:
        """Count the steps on which the loss stays up."""
        best = own.best
        if best is None or not self.armed(own, view):
            return own, []
        limit = self._limit(best)
        if own.smooth <= best + limit:
            return (replace(own, over=0) if own.over else own), []
        limit = max(limit, float(self.settings.noise_x) * jitter_of(own.window.values))
        if own.smooth <= best + limit or not self._holds(own, best, limit):
            return own, []
        if not own.over:
            own = replace(own, since_step=step.step, since_ts=step.tick.ts)
        own = replace(own, over=own.over + 1)
        if own.over != self.settings.over_steps:
            return own, []
        return own, [self._rise(own, best, limit, step, view)]

    def _holds(self, own: Trend, best: float, limit: float) -> bool:
        """Return whether the last losses are above the limit, and do not come down."""
        count = min(RECENT_STEPS, self.settings.over_steps)
        now = statistics.median(own.window.tail(count))
        before = statistics.median(own.window.tail(2 * count)[:count])
        return now > best + limit and now - best >= HOLDS_SHARE * (before - best)

    def _rise(self, own: Trend, best: float, limit: float, step: Step, view: View) -> Finding:
        by_setting = {
            self.settings.above: "divergence.above",
            self.settings.above_ratio * abs(best): "divergence.above_ratio",
        }
        path = by_setting.get(limit)
        return found(
            view,
            self.name,
            Severity.HALT,
            episode=f"rise/step{own.since_step}",
            at=step.tick.ts,
            step=step.step,
            value=own.smooth - best,
            threshold=limit,
            source=Source.ADAPTIVE if path is None else self.run.source(path),
            since=own.since_ts,
            text=f"the smoothed loss is {own.smooth:.4g}; its best was {best:.4g}. It has stayed"
            f" more than {limit:.3g} above its best for {own.over} steps",
        )

    def _spiked(self, own: Trend, loss: float, step: Step, view: View) -> Seen[Trend]:
        """Warn of losses far above the usual ones."""
        settings, values = self.settings, own.window.values
        usual, least = 0.0, float(settings.spike_least)
        spike = len(values) >= settings.window_steps // 2 and loss > min(values) + least
        if spike:  # the median and sigma are expensive, and seldom needed
            usual = statistics.median(values)
            least = max(least, settings.spike_mad_x * sigma_of(values))
            spike = loss > usual + least
        window = own.window.after(
            loss, size=settings.window_steps, spike=spike, spike_of=settings.spike_of
        )
        many = sum(window.spikes) >= settings.spike_count
        begins = many and not own.spiking
        own = replace(own, window=window, spiking=many)
        if not begins:
            return own, []
        finding = found(
            view,
            self.name,
            Severity.WARN,
            episode=f"spikes/step{step.step}",
            at=step.tick.ts,
            step=step.step,
            value=loss,
            threshold=usual + least,
            source=self.run.source("divergence.spike_least"),
            since=step.tick.ts,
            text=f"{sum(window.spikes)} of the last {len(window.spikes)} losses are far above the"
            f" median of {usual:.4g}; the last loss is {loss:.4g}",
        )
        return own, [finding]

    def armed(self, own: Trend, view: View) -> bool:
        """Return whether there were enough losses."""
        return own.losses > int(self.settings.after_step)

    def near(self, own: Trend, view: View, mono: float) -> Near:
        """Return how far the smoothed loss is above its best."""
        if own.best is None or not self.armed(own, view):
            return Near(blind=NOTHING_YET)
        return Near(value=own.smooth - own.best, limit=self._limit(own.best))

    def missing(self, own: Trend, view: View) -> str | None:
        """Return a sentence when steps ended and too few of them reported a loss."""
        if not own.last_step or own.most_losses > self.settings.after_step:
            return None
        return (
            f"{own.most_losses} losses were reported; divergence is watched after"
            f" {self.settings.after_step}."
        )
