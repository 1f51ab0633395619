"""Whether the model learns: D9 frozen, D12 gradients, D13 gate_collapse.

A step that is not newer than the last one begins a restart in place: values are counted anew.

Not covered: a loss of exactly zero, a gradient norm that has never moved and a norm at the clipping
limit are no evidence of frozen values.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.near import Near
from gonogo.contract.order import MOST_STEPS
from gonogo.contract.outcome import Detector as Name
from gonogo.timeline.step import Step
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.detectors.loss import Window
from gonogo.watch.state import replace
from gonogo.watch.view import Run, View

LONGEST_X = 3
"""Frozen values need at least so many times the longest run of equal ones that ended by itself:
some trainers report a loss every so many steps and repeat it in between."""
ALL_LAYERS = 1.0
MANY_LAYERS = 100
"""Without a number of layers in the order, one layer is a small share."""


@dataclass(frozen=True, kw_only=True)
class EqualValues:
    """Equal values of one number in a row."""

    value: float | None = None
    count: int = 0
    """Steps that had `value`, without another value in between."""
    since_step: int = 0
    since_ts: float = 0.0
    longest: int = 1
    """The longest run of equal values that another value has ended."""
    moved: bool = False
    """Whether the number has ever changed."""

    def after(self, value: float | None, step: Step) -> "EqualValues":
        """Return the run with the next step's number; a missing number changes nothing."""
        if value is None or not math.isfinite(value):
            return self
        if value == self.value:
            return replace(self, count=self.count + 1)
        return EqualValues(
            value=value,
            count=1,
            since_step=step.step,
            since_ts=step.tick.ts,
            longest=max(self.longest, self.count),
            moved=self.moved or self.value is not None,
        )

    def restarted(self) -> "EqualValues":
        """Return the run after a restart, which did not end it by itself."""
        return EqualValues(longest=self.longest, moved=self.moved)


@dataclass(frozen=True, kw_only=True)
class Still:
    """How long the loss and the gradient norm have been equal."""

    last_step: int = 0
    loss: EqualValues = EqualValues()
    grad_norm: EqualValues = EqualValues()


class Frozen(Detector[Still]):
    """D9: steps advance while the loss or the gradient norm stays bit-equal."""

    name = Name.FROZEN
    sentence = (
        "The loss is bit-equal on `halt_x` times `loss_steps` applied steps in a row, or the"
        " gradient norm on `halt_x` times `grad_norm_steps`; no fewer than three times the longest"
        " run of equal values that ended by itself."
    )
    State = Still
    steps = True

    def observe_step(self, own: Still, step: Step, view: View) -> Seen[Still]:
        """Observe loss and gradient norm of an applied step."""
        if step.step <= own.last_step:
            own = Still(loss=own.loss.restarted(), grad_norm=own.grad_norm.restarted())
        before = own = replace(own, last_step=step.step)
        if not step.applied():
            return own, []
        own = replace(
            own,
            loss=own.loss.after(step.loss(), step),
            grad_norm=own.grad_norm.after(step.grad_norm(), step),
        )
        findings: list[Finding] = []
        if own.loss.count > before.loss.count and own.loss.value:
            findings += self._judged("loss", own.loss, step, view)
        norm = own.grad_norm
        evidence = norm.moved and norm.value and norm.value != clip_of(self.run)
        if norm.count > before.grad_norm.count and evidence:
            findings += self._judged("grad_norm", norm, step, view)
        return own, findings

    def _limit(self, number: str, run: EqualValues) -> tuple[int, Source]:
        """Return after how many equal values the number is frozen."""
        steps = getattr(self.settings, f"{number}_steps")
        least = math.ceil(min(steps * self.settings.halt_x, MOST_STEPS))
        if LONGEST_X * run.longest > least:
            return LONGEST_X * run.longest, Source.ADAPTIVE
        return least, self.run.source(f"frozen.{number}_steps")

    def _judged(self, number: str, run: EqualValues, step: Step, view: View) -> list[Finding]:
        """Return the finding of equal values that have just reached the limit."""
        limit, source = self._limit(number, run)
        if run.count != limit:
            return []
        label = "loss" if number == "loss" else "gradient norm"
        text = f"the {label} has been {run.value:.9g} on {limit} steps in a row"
        episode = f"{number}/step{run.since_step}"
        return [
            self.finding(
                step, view, Severity.HALT, episode, f"{text}, since step {run.since_step}",
                since=run.since_ts, value=float(limit), threshold=float(limit), source=source,
            )
        ]  # fmt: skip

    def armed(self, own: Still, view: View) -> bool:
        """Return whether a number was reported."""
        return own.loss.value is not None or own.grad_norm.value is not None

    def measure(self, own: Still, view: View, mono: float) -> Near:
        """Return for how many steps the loss has been equal."""
        limit = self._limit("loss", own.loss)[0]
        return Near(value=float(own.loss.count), limit=float(limit), unit="steps")

    def missing(self, own: Still, view: View) -> str | None:
        """Return a sentence when steps ended and reported neither number."""
        if own.last_step and not self.armed(own, view):
            return "Neither loss nor gradient norm was reported: frozen values were not observed."
        return None


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
    counted: int = 0
    clipped: int = 0
    """Of the last `counted` norms, those above the clipping limit."""


class Gradients(Detector[Norms]):
    """D12: gradient norms of zero, spikes, and steps that are always clipped.

    A norm of zero counts only after another norm was reported, because some trainers write 0 for a
    norm that they never computed. It does not count beside a loss of exactly zero (equal rewards).
    """

    name = Name.GRADIENTS
    sentence = (
        "The gradient norm is exactly zero on `zero_steps` applied steps in a row, after it was"
        " another and while the loss is not zero. Separately warns of spikes (`spike_count` of"
        " `spike_of` norms above `spike_x` times the median of `window_steps`), and when more than"
        " `clip_share` of `clip_steps` norms are above the order's clipping limit."
    )
    State = Norms
    steps = True

    def observe_step(self, own: Norms, step: Step, view: View) -> Seen[Norms]:
        """Observe the gradient norm of an applied step."""
        if step.step <= own.last_step:
            own = Norms(moved=own.moved)
        own, norm = replace(own, last_step=step.step), step.grad_norm()
        if norm is None or not math.isfinite(norm) or norm < 0.0:
            return own, []
        own = replace(own, moved=own.moved or norm > 0.0)
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
        found = self._found("zero_steps", float(own.zeros), text, step, view, own)
        return own, found

    def _spiked(self, own: Norms, norm: float, step: Step, view: View) -> Seen[Norms]:
        """Warn of norms far above the usual ones."""
        settings, values, limit = self.settings, own.window.values, math.inf
        if len(values) >= settings.window_steps // 2 and norm > settings.spike_x * min(values):
            limit = settings.spike_x * statistics.median(values) or math.inf
        window = own.window.after(norm, limit, settings)
        begins, own = window.spiking and not own.window.spiking, replace(own, window=window)
        if not begins:
            return own, []
        text = (
            f"{sum(window.spikes)} of the last {len(window.spikes)} gradient norms are above"
            f" {settings.spike_x:g} times their median"
        )
        return own, self._found("spike_x", norm * settings.spike_x / limit, text, step, view)

    def _clipped(self, own: Norms, norm: float, step: Step, view: View) -> Seen[Norms]:
        """Warn when nearly every step is clipped: the limit sets the length of the steps."""
        clip, over = clip_of(self.run), self.settings.clip_steps
        if clip is None:
            return own, []
        counted, clipped = own.counted + 1, own.clipped + (norm > clip)
        if counted < over:
            return replace(own, counted=counted, clipped=clipped), []
        own, share = replace(own, counted=0, clipped=0), clipped / counted
        if share <= self.settings.clip_share:
            return own, []
        text = f"{share:.0%} of the last {over} gradient norms were clipped (limit {clip:g})"
        return own, self._found("clip_share", share, text, step, view)

    def _found(
        self, setting: str, value: float, text: str, step: Step, view: View,
        zeros: Norms | None = None,
    ) -> list[Finding]:  # fmt: skip
        """Return a warning, or the halt of norms of zero."""
        severity = Severity.WARN if zeros is None else Severity.HALT
        since_step = step.step if zeros is None else zeros.since_step
        since_ts = step.tick.ts if zeros is None else zeros.since_ts
        limit, episode = float(getattr(self.settings, setting)), f"{setting}/step{since_step}"
        return [
            self.finding(
                step,
                view,
                severity,
                episode,
                text,
                setting=setting,
                value=value,
                threshold=limit,
                since=since_ts,
            )
        ]

    def armed(self, own: Norms, view: View) -> bool:
        """Return whether a gradient norm was reported."""
        return own.moved

    def measure(self, own: Norms, view: View, mono: float) -> Near:
        """Return how many steps in a row had a norm of zero."""
        return Near(value=float(own.zeros), limit=float(self.settings.zero_steps), unit="steps")

    def missing(self, own: Norms, view: View) -> str | None:
        """Return a sentence when steps ended and none reported a gradient norm."""
        if own.last_step and not own.moved:
            return "No gradient norm was reported: gradients were not observed."
        return None


def clip_of(run: Run) -> float | None:
    """Return the order's gradient clipping limit, if it has one."""
    optim = run.order.train.get("optim")
    clip = optim.get("clip") if isinstance(optim, dict) else None
    return float(clip) if isinstance(clip, int | float) and clip > 0 else None


@dataclass(frozen=True, kw_only=True)
class Sightings:
    """Collapsed gates that were seen far enough apart, without sound gates in between."""

    seen: int = 0
    since_step: int = 0
    since_ts: float = 0.0
    last_step: int = 0

    def after(self, step: Step, apart: int, *, collapsed: bool) -> "Sightings":
        """Return the sightings after one more step that reported its gates."""
        if not collapsed:
            return Sightings()
        number = step.step
        if not self.seen:
            return Sightings(seen=1, since_step=number, since_ts=step.tick.ts, last_step=number)
        if number - self.last_step < max(1, apart):
            return self
        return replace(self, seen=self.seen + 1, last_step=number)


@dataclass(frozen=True, kw_only=True)
class Gates:
    """What was seen of the gates."""

    last_step: int = 0
    reported: bool = False
    most: Sightings = Sightings()
    """More than `layer_share` of the layers collapsed."""
    some: Sightings = Sightings()
    """At least one layer collapsed."""


class GateCollapse(Detector[Gates]):
    """D13: the branch gates choose one branch only.

    A progress line reports which share of the layers has collapsed gates (`gate_collapse_frac`).
    A trainer may report the mean normalised entropy over layers, or the largest gate. The mean is
    compared with the entropy limit, and the largest gate proves one layer.
    """

    name = Name.GATE_COLLAPSE
    sentence = (
        "After step `after_step`, the gates of more than `layer_share` of the layers have collapsed"
        " (normalised entropy below `entropy`, or a gate above `max_gate`) on `distinct` steps at"
        " least `apart_steps` apart, without a step of sound gates in between. Warns of one layer."
    )
    State = Gates
    steps = True
    blind = "no gate statistics were reported yet"

    def observe_step(self, own: Gates, step: Step, view: View) -> Seen[Gates]:
        """Observe the gate statistics of a step."""
        if step.step <= own.last_step:
            own = Gates(reported=own.reported)
        own = replace(own, last_step=step.step)
        share = min(step.values(self._share_of).values(), default=None)
        if share is None:
            return own, []
        own, before, limit = replace(own, reported=True), own, self.settings.layer_share
        if step.step <= self.settings.after_step:
            return own, []
        apart = self.settings.apart_steps
        own = replace(
            own,
            most=own.most.after(step, apart, collapsed=share > limit),
            some=own.some.after(step, apart, collapsed=share > 0.0),
        )
        findings = []
        for was, now, severity, least in (
            (before.some, own.some, Severity.WARN, 0.0),
            (before.most, own.most, Severity.HALT, limit),
        ):
            if was.seen < now.seen == self.settings.distinct:
                text = f"the gates of {share:.0%} of the layers have collapsed on {now.seen} steps"
                text = f"{text} at least {apart} apart, since step {now.since_step}"
                episode, setting = f"step{now.since_step}", "layer_share"
                findings.append(
                    self.finding(
                        step,
                        view,
                        severity,
                        episode,
                        text,
                        setting=setting,
                        value=share,
                        threshold=least,
                        since=now.since_ts,
                    )
                )
        return own, findings

    def _share_of(self, line: Heartbeat) -> float | None:
        """Return the share of collapsed layers that a rank reported, or None."""
        share, entropy, largest = map(
            _finite, (line.gate_collapse_frac, line.gate_entropy, line.gate_max)
        )
        if share is not None or (entropy is None and largest is None):
            return share
        if entropy is not None and entropy < self.settings.entropy:
            return ALL_LAYERS
        if largest is not None and largest > self.settings.max_gate:
            return ALL_LAYERS / (self.run.order.identity.layers or MANY_LAYERS)
        return 0.0

    def armed(self, own: Gates, view: View) -> bool:
        """Return whether gate statistics are reported, after the first `after_step` steps."""
        return own.reported and own.last_step > self.settings.after_step

    def measure(self, own: Gates, view: View, mono: float) -> Near:
        """Return on how many steps most of the gates had collapsed."""
        return Near(value=float(own.most.seen), limit=float(self.settings.distinct), unit="steps")

    def missing(self, own: Gates, view: View) -> str | None:
        """Return a sentence when no gate statistics were reported."""
        if own.reported:
            return None
        if _switched_off(self.run.order.env):
            return "Gate statistics were switched off (NSA_DISABLE_AUX_STATS): gates not observed."
        if not own.last_step:
            return None
        return "No gate statistics were reported: a collapse of the branch gates was not observed."


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _switched_off(env: Mapping[str, str]) -> bool:
    value = env.get("NSA_DISABLE_AUX_STATS", "0").strip().lower()
    return value not in ("", "0", "false", "no", "off")
