"""D11: does the loss rise and stay up?

The loss, smoothed, is held against its best. Not every rise is a divergence: a noisy loss widens
its own limit, a spike that is already falling back is left alone, and what the loss did before it
was first smooth (or before a resume) counts for nothing. Single spikes warn.
"""

import math
import statistics
from dataclasses import dataclass, replace

from gonogo.contract import outcome
from gonogo.contract.finding import Finding, Severity, Source
from gonogo.judge.watch.detector import Detector, Seen
from gonogo.judge.watch.step import Step
from gonogo.judge.watch.view import View, found

SIGMA_OF_MAD = 1.4826
RECENT_STEPS = 25
FEW_STEPS = 3
LAST_STEPS = 5
HOLDS = 0.95
"""A rise holds while it keeps this share of its height from one recent window to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The loss so far."""

    last_step: int = 0
    steps: int = 0
    """Losses seen since the start, or since the run went back to an earlier step."""
    smooth: float = 0.0
    best: float | None = None
    window: tuple[float, ...] = ()
    noise: float | None = None
    """Sigma of the loss when its smoothed value began to rise; kept until it has come back."""
    over: int = 0
    """Steps running on which the rise held."""
    since_step: int = 0
    since_ts: float = 0.0
    told: bool = False
    """Whether the rise was found; cleared once the smoothed loss has come back."""
    spikes: tuple[bool, ...] = ()
    spiking: bool = False


class Divergence(Detector[Trend]):
    """D11 (module docstring)."""

    name = outcome.Detector.DIVERGENCE
    sentence = (
        "The loss, smoothed with `alpha` (a plain mean at first), stays above its best by more than"
        " the largest of `above`, `above_ratio` of the best and `noise_x` sigma of the loss, on"
        " `over_steps` steps running, after the first `after_step`: halt. Steps on which the"
        " median of the last losses is back under that limit, or is falling, do not count, so a"
        " spike that recovers ends nothing. `spike_count` of `spike_of` losses above the median of"
        " `window_steps` by more than the larger of `spike_mad_x` sigma and `spike_least`: warn."
    )
    State = Trend
    steps = True

    def observe_step(self, own: Trend, step: Step, view: View) -> Seen[Trend]:
        """Observe the loss of a step."""
        loss = step.loss()
        if step.step <= own.last_step:
            own = Trend()
        own = replace(own, last_step=step.step)
        if loss is None or not math.isfinite(loss):
            return own, []
        own, spikes = self._spiked(own, loss, step, view)
        own = self._smoothed(own, loss)
        own, rises = self._risen(own, step, view)
        return own, spikes + rises

    def _smoothed(self, own: Trend, loss: float) -> Trend:
        """Return the trend with one more loss; the best counts once the mean is of enough."""
        steps = own.steps + 1
        weight = max(self.settings.alpha, 1.0 / steps)
        smooth = own.smooth + weight * (loss - own.smooth)
        best = own.best
        if steps >= min(math.ceil(1.0 / self.settings.alpha), self.settings.after_step):
            best = smooth if best is None else min(best, smooth)
        window = (*own.window, loss)[-self.settings.window_steps :]
        return replace(own, steps=steps, smooth=smooth, best=best, window=window)

    def _risen(self, own: Trend, step: Step, view: View) -> Seen[Trend]:
        """Count the steps on which the loss stays up."""
        best = own.best
        if best is None:
            return own, []
        above = max(self.settings.above, self.settings.above_ratio * abs(best))
        if own.steps <= self.settings.after_step or own.smooth <= best + above:
            return (own if own.noise is None else replace(own, noise=None, over=0, told=False)), []
        noise = _sigma(own.window[: len(own.window) // 2]) if own.noise is None else own.noise
        above = max(above, self.settings.noise_x * noise)
        if not self._holds(own, best, above):
            return replace(own, noise=noise, over=0), []
        if not own.over:
            own = replace(own, since_step=step.step, since_ts=step.tick.ts)
        own = replace(own, noise=noise, over=own.over + 1)
        if own.told or own.over < self.settings.over_steps:
            return own, []
        own = replace(own, told=True)
        return own, [self._finding(own, best, above, step, view)]

    def _holds(self, own: Trend, best: float, above: float) -> bool:
        """Whether smoothed and recent losses are above the limit, and not on their way back."""
        if own.smooth <= best + above:
            return False
        recent = min(RECENT_STEPS, max(FEW_STEPS, self.settings.over_steps // 2))
        if statistics.median(own.window[-LAST_STEPS:]) <= best + above:
            return False
        height = statistics.median(own.window[-recent:]) - best
        before = own.window[-2 * recent : -recent]
        return height > above and (
            not before or height >= HOLDS * (statistics.median(before) - best)
        )

    def _spiked(self, own: Trend, loss: float, step: Step, view: View) -> Seen[Trend]:
        """Warn of losses far above the usual ones."""
        if len(own.window) < self.settings.window_steps // 2:
            return own, []
        usual = statistics.median(own.window)
        spike = loss > usual + self.settings.spike_least and (
            loss > usual + self.settings.spike_mad_x * _sigma(own.window)
        )
        own = replace(own, spikes=(*own.spikes, spike)[-self.settings.spike_of :])
        many = sum(own.spikes) >= self.settings.spike_count
        if many == own.spiking:
            return own, []
        own = replace(own, spiking=many)
        if not many:
            return own, []
        return own, [
            found(
                view,
                self.name,
                Severity.WARN,
                episode=f"spikes/step{step.step}",
                at=step.tick.ts,
                step=step.step,
                value=loss,
                threshold=usual + self.settings.spike_least,
                source=self.run.source("divergence.spike_least"),
                since=step.tick.ts,
                text=f"{sum(own.spikes)} of the last {len(own.spikes)} losses lie far above their"
                f" median of {usual:.4g}; the last is {loss:.4g}",
            )
        ]

    def _finding(self, own: Trend, best: float, above: float, step: Step, view: View) -> Finding:
        fixed = {
            "divergence.above": self.settings.above,
            "divergence.above_ratio": self.settings.above_ratio * abs(best),
        }
        path = next((path for path, limit in fixed.items() if limit == above), None)
        return found(
            view,
            self.name,
            Severity.HALT,
            episode=f"rise/step{own.since_step}",
            at=step.tick.ts,
            step=step.step,
            value=own.smooth - best,
            threshold=above,
            source=Source.ADAPTIVE if path is None else self.run.source(path),
            since=own.since_ts,
            text=f"the smoothed loss is {own.smooth:.4g}; its best was {best:.4g}. It has stayed"
            f" more than {above:.3g} above that for {own.over} steps",
        )

    def armed(self, own: Trend, view: View) -> bool:
        """Whether enough losses have been told."""
        return own.steps > int(self.settings.after_step)

    def missing(self, own: Trend, view: View) -> str | None:
        """Return a sentence where steps ended and no loss was told."""
        if own.last_step and not own.steps:
            return "No loss was told: nobody knows whether it diverged."
        return None


def _sigma(values: tuple[float, ...]) -> float:
    """Return the standard deviation that the median absolute deviation stands for."""
    if not values:
        return 0.0
    middle = statistics.median(values)
    return SIGMA_OF_MAD * statistics.median(abs(value - middle) for value in values)
