"""What the loss says: D10 non_finite, D11 divergence, D26 first_loss.

A step that is not newer than the last one begins a restart in place: values are counted anew.

Not covered: a loss that rises while all is well (of a policy, of two networks that play against
each other, or after a warm restart of the learning rate) is warned of.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from gonogo.contract.finding import Severity, Source
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.near import Near
from gonogo.contract.outcome import Detector as Name
from gonogo.timeline.step import Step
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.view import Beat, View

SIGMA_OF_MAD = 1.4826
"""Standard deviation of a normal distribution per median absolute deviation."""
_FP16, _BF16 = ("fp16", "float16"), ("bf16", "bfloat16")
SEARCH_STEPS = 40
"""So many steps may be skipped in a row while a loss scale is searched: from 2**32 to 1 and some
repeats."""
RECENT_STEPS = 25
"""Losses whose median is compared with that of as many before: does the loss come down?"""
HOLDS_SHARE = 0.95
"""A rise holds while its height keeps this share of the height before."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """The last values of one number, and which of the very last were spikes."""

    values: tuple[float, ...] = ()
    """Oldest first."""
    spikes: tuple[bool, ...] = ()
    spiking: bool = False
    """Whether enough of them were spikes."""

    def after(self, value: float, limit: float, settings: Any) -> "Window":
        """Return the window with one more value, a spike if it is above the limit.

        Args:
            value: the newest value.
            limit: of a spike.
            settings: have `window_steps`, `spike_of` and `spike_count`.
        """
        spikes = (*self.spikes, value > limit)[-settings.spike_of :]
        values = (*self.values, value)[-settings.window_steps :]
        return Window(values=values, spikes=spikes, spiking=sum(spikes) >= settings.spike_count)


def sigma_of(values: Sequence[float]) -> float:
    """Return the standard deviation, estimated by the median absolute deviation."""
    if not values:
        return 0.0
    middle = statistics.median(values)
    return SIGMA_OF_MAD * statistics.median(abs(value - middle) for value in values)


def jitter_of(values: Sequence[float]) -> float:
    """Return the standard deviation of values around their trend.

    Differences of neighbours contain no trend, and twice the variance.
    """
    return sigma_of([after - before for before, after in pairwise(values)]) / math.sqrt(2.0)


@dataclass(frozen=True, kw_only=True)
class Overflows:
    """The last steps under a loss scaler."""

    last_step: int = 0
    recent: tuple[bool, ...] = ()
    """Whether each of the last steps was skipped, and was no search for a scale."""
    applied: bool = False
    """Whether a step was applied."""
    running: int = 0
    """Steps in a row that were skipped."""
    scale: float | None = None
    """Loss scale of the first of them."""
    falling: bool = False
    """Whether the scale has fallen since."""

    @property
    def searching(self) -> bool:
        """Whether the loss scale is searched."""
        return self.falling or not self.applied


class NonFinite(Detector[Overflows]):
    """D10: a loss or gradient norm of an applied step is not finite.

    A loss scaler (fp16, mixed precision) skips steps on overflow by design: several in a row count,
    or too many of the last hundred. A search for the loss scale does not count: its skipped steps
    lower the scale. Where the order names no dtype, a norm that is not finite beside a finite loss
    may be such an overflow. A validation loss that is not finite warns: the set may be empty.
    """

    name = Name.NON_FINITE
    sentence = (
        "The first loss or gradient norm that is not finite. With a loss scaler (fp16, mixed"
        " precision): `fp16_running` skipped steps in a row (40 while they lower the scale), or"
        " `fp16_skipped` of the last `fp16_window_steps`. In bf16: `fp16_window_steps` skipped"
        " steps in a row. Warns of a validation loss that is not finite."
    )
    State = Overflows
    lines = frozenset({Msg.PROGRESS, Msg.STEP_END, Msg.EVAL})
    steps = True
    blind = "no loss was reported"

    def observe_line(self, own: Overflows, event: Beat, view: View) -> Seen[Overflows]:
        """Observe a line that carries a loss or a gradient norm."""
        line, severity = event.line, Severity.HALT
        name, value = _bad_number(line)
        if line.msg == Msg.EVAL:
            name, value, severity = "validation loss", line.val_loss, Severity.WARN
        if value is None or math.isfinite(value):
            return own, []
        if severity is Severity.HALT and self._may_be_overflow(line):
            return own, []
        text, episode = f"the {name} is {value} at step {line.step}", name.replace(" ", "_")
        return own, [self.finding(event, view, severity, episode, text, value=value)]

    def observe_step(self, own: Overflows, step: Step, view: View) -> Seen[Overflows]:
        """Count steps that a loss scaler skipped."""
        if step.step <= own.last_step:
            own = Overflows()
        lines = [row.progress for row in step.ranks.values() if row.progress is not None]
        if not lines:
            return own, []
        skipped = any(map(self._is_skipped, lines))
        if not skipped and own.applied and not any(own.recent):
            return replace(own, last_step=step.step, running=0, falling=False), []
        scales = [line.loss_scale for line in lines if line.loss_scale is not None]
        own = self._after(own, step.step, skipped=skipped, scale=min(scales, default=None))
        many, text = sum(own.recent), ""
        if own.running >= self._limit(own):
            text = f"{own.running} steps in a row were skipped or not finite"
        elif self._dtype() not in _BF16 and many >= self.settings.fp16_skipped:
            text = f"{many} of the last {len(own.recent)} steps were skipped or not finite"
        if not text or not skipped:
            return own, []
        value = float(max(own.running, many))
        return own, [self.finding(step, view, Severity.HALT, "skipped", text, value=value)]

    def _after(self, own: Overflows, step: int, *, skipped: bool, scale: float | None) -> Overflows:
        """Return the state after one more step."""
        running, first = own.running + 1 if skipped else 0, own.scale if own.running else scale
        falling = running > 1 and scale is not None and first is not None and scale < first
        after = replace(
            own,
            last_step=step,
            running=running,
            scale=first,
            falling=falling,
            applied=own.applied or not skipped,
        )
        counts = skipped and not after.searching
        return replace(after, recent=(*own.recent, counts)[-self.settings.fp16_window_steps :])

    def _limit(self, own: Overflows) -> int:
        """Return how many steps in a row may be skipped."""
        if self._dtype() in _BF16:
            return int(self.settings.fp16_window_steps)
        return SEARCH_STEPS if own.searching else int(self.settings.fp16_running)

    def _dtype(self) -> object:
        return self.run.order.identity.dtype or self.run.order.train.get("dtype")

    def _may_be_overflow(self, line: Heartbeat) -> bool:
        """Return whether a loss scaler may have skipped the step of a number that is not finite."""
        dtype = self._dtype()
        if dtype in _FP16 or dtype in _BF16:
            return dtype in _FP16
        if line.skipped is not None or _bad_number(line)[0] == "loss":
            return line.skipped is True
        return line.loss_scale is not None or dtype is None

    def _is_skipped(self, line: Heartbeat) -> bool:
        """Return whether a step was skipped; another number that is not finite has halted."""
        return line.skipped is True or bool(_bad_number(line)[0] and self._may_be_overflow(line))

    def armed(self, own: Overflows, view: View) -> bool:
        """Return whether a loss was reported."""
        return any(stream.loss is not None for stream in view.streams.values())

    def measure(self, own: Overflows, view: View, mono: float) -> Near:
        """Return how many steps in a row were skipped."""
        return Near(value=float(own.running), limit=float(self._limit(own)), unit="steps")


def _bad_number(line: Heartbeat) -> tuple[str, float | None]:
    """Return the name and value of a number that is not finite, or an empty name."""
    for name, value in (("loss", line.loss), ("gradient norm", line.grad_norm)):
        if value is not None and not math.isfinite(value):
            return name, value
    return "", None


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The loss so far."""

    last_step: int = 0
    losses: int = 0
    """Losses since the start of the run, or since it went back to an earlier step."""
    smooth: float = 0.0
    best: float | None = None
    """Lowest smoothed loss; None before the mean is smooth."""
    over: int = 0
    """Steps on which the present rise held."""
    since_step: int = 0
    since_ts: float = 0.0
    window: Window = field(default_factory=Window)


class Divergence(Detector[Trend]):
    """D11: the loss rises and stays up.

    The smoothed loss is compared with its best. A noisy loss has a wider limit. A step counts only
    while the last losses do not come down, so a spike that decays is no divergence.
    """

    name = Name.DIVERGENCE
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
            own = Trend(best=None if view.is_another(step.ranks) else own.best)
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
        return replace(own, losses=losses, smooth=smooth, best=best)

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
        noise = float(self.settings.noise_x) * jitter_of(own.window.values)
        source = Source.ADAPTIVE if noise > limit else self.run.source("divergence.above")
        limit = max(limit, noise)
        if own.smooth <= best + limit or not self._holds(own, best, limit):
            return own, []
        if not own.over:
            own = replace(own, since_step=step.step, since_ts=step.tick.ts)
        own = replace(own, over=own.over + 1)
        if own.over != self.settings.over_steps:
            return own, []
        text = (
            f"the smoothed loss is {own.smooth:.4g}; its best was {best:.4g}. It has stayed"
            f" more than {limit:.3g} above its best for {own.over} steps"
        )
        episode, value = f"rise/step{own.since_step}", own.smooth - best
        return own, [
            self.finding(
                step,
                view,
                Severity.HALT,
                episode,
                text,
                value=value,
                threshold=limit,
                source=source,
                since=own.since_ts,
            )
        ]

    def _holds(self, own: Trend, best: float, limit: float) -> bool:
        """Return whether the last losses are above the limit, and do not come down."""
        count = min(RECENT_STEPS, self.settings.over_steps)
        now = statistics.median(own.window.values[-count:])
        before = statistics.median(own.window.values[-2 * count :][:count])
        return now > best + limit and now - best >= HOLDS_SHARE * (before - best)

    def _spiked(self, own: Trend, loss: float, step: Step, view: View) -> Seen[Trend]:
        """Warn of losses far above the usual ones."""
        settings, values = self.settings, own.window.values
        limit = math.inf
        if len(values) >= settings.window_steps // 2 and loss > min(values) + settings.spike_least:
            sigma = settings.spike_mad_x * sigma_of(values)
            limit = statistics.median(values) + max(settings.spike_least, sigma)
        window = own.window.after(loss, limit, settings)
        begins, own = window.spiking and not own.window.spiking, replace(own, window=window)
        if not begins:
            return own, []
        text = (
            f"{sum(window.spikes)} of the last {len(window.spikes)} losses are far above their"
            f" median; the last loss is {loss:.4g}"
        )
        episode, setting = f"spikes/step{step.step}", "spike_least"
        return own, [
            self.finding(
                step,
                view,
                Severity.WARN,
                episode,
                text,
                setting=setting,
                value=loss,
                threshold=limit,
                since=step.tick.ts,
            )
        ]

    def armed(self, own: Trend, view: View) -> bool:
        """Return whether there were enough losses."""
        return own.losses > int(self.settings.after_step)

    def measure(self, own: Trend, view: View, mono: float) -> Near:
        """Return how far the smoothed loss is above its best."""
        best = own.smooth if own.best is None else own.best
        return Near(value=own.smooth - best, limit=self._limit(best))

    def missing(self, own: Trend, view: View) -> str | None:
        """Return a sentence when steps ended and too few of them reported a loss."""
        if not own.last_step or self.armed(own, view):
            return None
        return (
            f"{own.losses} losses were reported; divergence is watched after"
            f" {self.settings.after_step}."
        )


@dataclass(frozen=True, kw_only=True)
class FirstSeen:
    """Whether the first loss was reported."""

    seen: bool = False


class FirstLoss(Detector[FirstSeen]):
    """D26: the first loss is not near ln(vocab), that of an untrained model (bytes: 5.545)."""

    name = Name.FIRST_LOSS
    sentence = "Warns when the loss of step 1 differs from ln(vocabulary) by more than `tolerance`."
    State = FirstSeen
    lines = frozenset({Msg.PROGRESS})
    blind = "the first loss was reported, the run resumes, or its vocabulary is not known"

    def observe_line(self, own: FirstSeen, event: Beat, view: View) -> Seen[FirstSeen]:
        """Observe the line that carries the loss of step 1."""
        loss = event.line.loss
        if event.line.step != 1 or loss is None or not self.armed(own, view):
            return own, []
        own, tolerance = FirstSeen(seen=True), self.settings.tolerance
        expected = math.log(self.run.order.identity.vocab or 1)
        if not math.isfinite(loss) or abs(loss - expected) <= tolerance:
            return own, []
        text = f"the first loss is {loss:.4g}; ln(vocab) is {expected:.4g} (tolerance {tolerance})"
        return own, [
            self.finding(
                event,
                view,
                Severity.WARN,
                "step1",
                text,
                setting="tolerance",
                value=loss,
                threshold=tolerance,
            )
        ]

    def armed(self, own: FirstSeen, view: View) -> bool:
        """Return whether the first loss is still to come; a resumed run has none."""
        order = self.run.order
        return bool(order.identity.vocab) and order.resume_from is None and not own.seen
