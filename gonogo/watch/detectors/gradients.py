"""D12: gradient norms of zero, spikes, and steps that are always clipped.

Only applied steps count: a skipped fp16 step has no norm. A norm of zero counts only after another
norm was reported, because some trainers write 0 for a norm that they never computed. It does not
count beside a loss of exactly zero (equal rewards, a hinge).
"""

import math
import statistics
from dataclasses import dataclass, field

from gonogo.contract import outcome
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.near import Near
from gonogo.timeline.step import Step
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.view import View, found
from gonogo.watch.window import Window


@dataclass(frozen=True, kw_only=True)
class Norms:
    """The gradient norms of applied steps."""

    last_step: int = 0
    moved: bool = False
    """Whether a norm other than zero was reported."""
    zeros: int = 0
    """Norms of zero in a row."""
    since_step: int = 0
    since_ts: float = 0.0
    window: Window = field(default_factory=Window)
    spiking: bool = False
    steps: int = 0
    free: tuple[int, ...] = ()
    """Numbers (among `steps`) of the last steps that were not clipped, as many as required."""
    clipped: bool = False


class Gradients(Detector[Norms]):
    """D12 (module docstring)."""

    name = outcome.Detector.GRADIENTS
    sentence = (
        "The gradient norm is exactly zero on `zero_steps` applied steps in a row, after it was"
        " another and while the loss is not zero. Separately warns of spikes (`spike_count` of"
        " `spike_of` norms above `spike_x` times the median of `window_steps`), and when more than"
        " `clip_share` of the last `clip_steps` norms are above the order's clipping limit."
    )
    State = Norms
    steps = True

    def observe_step(self, own: Norms, step: Step, view: View) -> Seen[Norms]:
        """Observe the gradient norm of a step."""
        if step.step <= own.last_step:
            own = Norms(moved=own.moved)
        own = replace(own, last_step=step.step)
        norm = step.grad_norm()
        if norm is None or not math.isfinite(norm) or norm < 0.0:
            return own, []
        own = replace(own, steps=own.steps + 1, moved=own.moved or norm > 0.0)
        if not own.moved:
            return own, []
        own, zeros = self._vanished(own, norm, step, view)
        own, spikes = self._spiked(own, norm, step, view)
        own, clips = self._clipped(own, norm, step, view)
        return own, zeros + spikes + clips

    def _vanished(self, own: Norms, norm: float, step: Step, view: View) -> Seen[Norms]:
        """Count norms of exactly zero."""
        if norm > 0.0:
            return (replace(own, zeros=0) if own.zeros else own), []
        if step.loss() == 0.0:
            return own, []
        if not own.zeros:
            own = replace(own, since_step=step.step, since_ts=step.tick.ts)
        own = replace(own, zeros=own.zeros + 1)
        if own.zeros != self.settings.zero_steps:
            return own, []
        text = f"the gradient norm was exactly 0 on {own.zeros} applied steps in a row"
        episode, value = f"zero/step{own.since_step}", float(own.zeros)
        finding = self._finding(Severity.HALT, episode, "zero_steps", value, text, step, view)
        return own, [finding.model_copy(update={"since": own.since_ts})]

    def _spiked(self, own: Norms, norm: float, step: Step, view: View) -> Seen[Norms]:
        """Warn of norms far above the usual ones."""
        settings, values = self.settings, own.window.values
        usual = 0.0
        spike = len(values) >= settings.window_steps // 2 and norm > settings.spike_x * min(values)
        if spike:  # the median is expensive, and seldom needed
            usual = statistics.median(values)
            spike = norm > settings.spike_x * usual > 0.0
        window = own.window.after(
            norm, size=settings.window_steps, spike=spike, spike_of=settings.spike_of
        )
        many = sum(window.spikes) >= settings.spike_count
        begins = many and not own.spiking
        own = replace(own, window=window, spiking=many)
        if not begins:
            return own, []
        text = (
            f"{sum(window.spikes)} of the last {len(window.spikes)} gradient norms are above"
            f" {settings.spike_x:g} times their median of {usual:.4g}"
        )
        episode = f"spikes/step{step.step}"
        return own, [
            self._finding(Severity.WARN, episode, "spike_x", norm / usual, text, step, view)
        ]

    def _clipped(self, own: Norms, norm: float, step: Step, view: View) -> Seen[Norms]:
        """Warn when nearly every step is clipped: the limit sets the length of the steps."""
        clip = clip_of(self.run.order.train)
        if clip is None:
            return own, []
        over = self.settings.clip_steps
        needed = max(1, math.ceil((1.0 - self.settings.clip_share) * over - 1e-9))
        if norm <= clip:
            own = replace(own, free=(*own.free, own.steps)[-needed:])
        lately = sum(number > own.steps - over for number in own.free)
        many = own.steps >= over and lately < needed
        begins = many and not own.clipped
        own = replace(own, clipped=many)
        if not begins:
            return own, []
        share = (over - lately) / over
        text = f"{share:.0%} of the last {over} gradient norms were clipped (limit {clip:g})"
        episode = f"clipped/step{step.step}"
        return own, [self._finding(Severity.WARN, episode, "clip_share", share, text, step, view)]

    def _finding(
        self,
        severity: Severity,
        episode: str,
        setting: str,
        value: float,
        text: str,
        step: Step,
        view: View,
    ) -> Finding:
        return found(
            view,
            self.name,
            severity,
            episode=episode,
            at=step.tick.ts,
            step=step.step,
            value=value,
            threshold=float(getattr(self.settings, setting)),
            source=self.run.source(f"gradients.{setting}"),
            since=step.tick.ts,
            text=text,
        )

    def armed(self, own: Norms, view: View) -> bool:
        """Return whether a gradient norm was reported."""
        return own.moved

    def near(self, own: Norms, view: View, mono: float) -> Near:
        """Return how many steps in a row had a norm of zero."""
        if not own.moved:
            return Near(blind=NOTHING_YET)
        return Near(value=float(own.zeros), limit=float(self.settings.zero_steps), unit="steps")

    def missing(self, own: Norms, view: View) -> str | None:
        """Return a sentence when steps ended and none reported a gradient norm."""
        if own.last_step and not own.moved:
            return "No gradient norm was reported: gradients were not observed."
        return None


def clip_of(train: dict[str, object]) -> float | None:
    """Return the order's gradient clipping limit, if it has one."""
    optim = train.get("optim")
    clip = optim.get("clip") if isinstance(optim, dict) else None
    return float(clip) if isinstance(clip, int | float) and clip > 0 else None
