"""D12: do the gradients say that the model learns nothing, or nothing sound?

Looked at are applied steps alone: what fp16 skipped has no norm. A norm of exactly zero on an
applied step moves nothing. Three kinds of zero prove nothing: lines without sections (older
trainers write 0 for a norm that they never computed) before any other norm was told, a norm that
was rounded to nothing, and one beside a loss of exactly zero (equal rewards in a batch of
reinforcement learning, a hinge that nothing offends), which is told when it lasts. Without
sections, too, a step may be one of several whose gradients are summed, and print 0 until the last.
"""

import math
import statistics
from dataclasses import dataclass

from gonogo.contract import outcome
from gonogo.contract.finding import Finding, Severity
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.step import Step
from gonogo.watch.view import View, found

ROUNDED_FROM, ROUNDED_BELOW = 1e-6, 0.05
"""A norm in between, of two significant digits or fewer, may be followed by a rounded zero."""
FEW_DECIMALS, FEW_UNITS = 4, 5.0
"""So may one of so few units of the last decimal, where no norm has more decimals than that."""
IDLE_X = 20
"""Times `zero_steps` after which zeros of loss and norm together warn."""
UNNAMED_X = 20
"""Times `zero_steps` that a program which names no sections may print a norm of zero."""


@dataclass(frozen=True, kw_only=True)
class Norms:
    """The gradient norms of applied steps."""

    last_step: int = 0
    told: bool = False
    """Whether a norm was told that means something."""
    steps: int = 0
    zeros: int = 0
    """Norms of zero running, beside a loss that is not zero or not known."""
    since_step: int = 0
    since_ts: float = 0.0
    last: float | None = None
    """The last norm that was not zero."""
    decimals: int = 0
    """The most decimals of any norm, up to one more than `FEW_DECIMALS`."""
    idle: int = 0
    """Steps running on which both norm and loss were zero."""
    window: tuple[float, ...] = ()
    spikes: tuple[bool, ...] = ()
    spiking: bool = False
    free: tuple[int, ...] = ()
    """Numbers (among `steps`) of the last steps that were not clipped, as many as must be."""
    clipped: bool = False

    def again(self) -> "Norms":
        """Return the norms at a restart: how the trainer tells them is known."""
        return Norms(told=self.told, last=self.last, decimals=self.decimals)


class Gradients(Detector[Norms]):
    """D12 (module docstring)."""

    name = outcome.Detector.GRADIENTS
    sentence = (
        "The gradient norm is exactly zero on `zero_steps` applied steps running: halt (a warning"
        " where the norm before shows that norms are rounded: below 0.05 and of two digits, or at"
        " most five units of the last decimal where no norm has more than four decimals), of a"
        " program that names no sections on twenty times as many: it may print 0 for each part of a"
        " step whose gradients it sums. Steps"
        " whose loss is exactly zero as well are not counted (equal rewards, a hinge); on twenty"
        " times `zero_steps` of them running: warn."
        " `spike_count` of `spike_of` norms above `spike_x` times the median of `window_steps`:"
        " warn. More than `clip_share` of the last `clip_steps` norms above the order's clipping"
        " limit: warn. A null norm (a skipped fp16 step, a trainer that tells none) is unknown and"
        " says nothing."
    )
    State = Norms
    """2: of a program that names no sections more zeros running halt."""
    steps = True

    def observe_step(self, own: Norms, step: Step, view: View) -> Seen[Norms]:
        """Observe the gradient norm of a step, where it was applied."""
        if step.step <= own.last_step:
            own = Norms() if view.is_another(step.ranks) else own.again()
        own = replace(own, last_step=step.step)
        norm = step.grad_norm()
        if norm is None or not math.isfinite(norm) or norm < 0.0:
            return own, []
        if norm == 0.0 and not own.told and not _labelled(view):
            return own, []
        own = replace(own, told=True, steps=own.steps + 1)
        own, zeros = self._vanished(own, norm, step, view)
        own, spikes = self._spiked(own, norm, step, view)
        own, clips = self._clipped(own, norm, step, view)
        return own, zeros + spikes + clips

    def _vanished(self, own: Norms, norm: float, step: Step, view: View) -> Seen[Norms]:
        """Count norms of exactly zero."""
        if norm > 0.0:
            decimals = max(own.decimals, _decimals(norm))
            return replace(own, zeros=0, idle=0, last=norm, decimals=decimals), []
        if step.loss() == 0.0:
            return self._idled(own, step, view)
        own = replace(own, idle=0)
        if not own.zeros:
            own = replace(own, since_step=step.step, since_ts=step.tick.ts)
        own = replace(own, zeros=own.zeros + 1)
        if own.zeros != self.settings.zero_steps * (1 if _labelled(view) else UNNAMED_X):
            return own, []
        severity = Severity.WARN if _rounded(own.last, own.decimals) else Severity.HALT
        text = f"the gradient norm was exactly 0 on {own.zeros} applied steps running"
        finding = self._finding(
            severity, f"zero/step{own.since_step}", "zero_steps", float(own.zeros), text, step, view
        )
        return own, [finding.model_copy(update={"since": own.since_ts})]

    def _idled(self, own: Norms, step: Step, view: View) -> Seen[Norms]:
        """Count steps on which there was nothing to learn: neither loss nor gradient."""
        own = replace(own, idle=own.idle + 1)
        if own.idle != IDLE_X * self.settings.zero_steps:
            return own, []
        text = f"loss and gradient norm were exactly 0 on {own.idle} applied steps running"
        episode = f"idle/step{step.step}"
        return own, [
            self._finding(Severity.WARN, episode, "zero_steps", float(own.idle), text, step, view)
        ]

    def _spiked(self, own: Norms, norm: float, step: Step, view: View) -> Seen[Norms]:
        """Warn of norms far above the usual ones."""
        spike, usual, spike_x = False, 0.0, self.settings.spike_x
        told = len(own.window) >= self.settings.window_steps // 2
        if told and norm > spike_x * min(own.window):  # no median lies lower, and medians are dear
            usual = statistics.median(own.window)
            spike = usual > 0.0 and norm > spike_x * usual
        own = replace(
            own,
            window=(*own.window, norm)[-self.settings.window_steps :],
            spikes=(*own.spikes, spike)[-self.settings.spike_of :],
        )
        many = sum(own.spikes) >= self.settings.spike_count
        if many == own.spiking:
            return own, []
        own = replace(own, spiking=many)
        if not many:
            return own, []
        text = (
            f"{sum(own.spikes)} of the last {len(own.spikes)} gradient norms are above"
            f" {self.settings.spike_x:g} times their median of {usual:.4g}"
        )
        episode = f"spikes/step{step.step}"
        return own, [
            self._finding(Severity.WARN, episode, "spike_x", norm / usual, text, step, view)
        ]

    def _clipped(self, own: Norms, norm: float, step: Step, view: View) -> Seen[Norms]:
        """Warn where nearly every step is clipped: the limit, not the gradient, sets its length."""
        clip = clip_of(self.run.order.train)
        if clip is None:
            return own, []
        over = self.settings.clip_steps
        needed = math.ceil((1.0 - self.settings.clip_share) * over - 1e-9)
        if norm <= clip:
            own = replace(own, free=(*own.free, own.steps)[-max(1, needed) :])
        lately = sum(number > own.steps - over for number in own.free)
        many = own.steps >= over and lately < needed
        if many == own.clipped:
            return own, []
        own = replace(own, clipped=many)
        if not many:
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
        """Whether a gradient norm has been told."""
        return own.told

    def missing(self, own: Norms, view: View) -> str | None:
        """Return a sentence where steps ended and no norm of an applied one was told."""
        if own.last_step and not own.told:
            return "No gradient norm was told: vanishing and exploding gradients were not observed."
        return None


def clip_of(train: dict[str, object]) -> float | None:
    """Return the order's gradient clipping limit, where it names one."""
    optim = train.get("optim")
    clip = optim.get("clip") if isinstance(optim, dict) else None
    return float(clip) if isinstance(clip, int | float) and clip > 0 else None


def _labelled(view: View) -> bool:
    """Whether a rank names its sections: a trainer of this protocol, which leaves out what it
    does not know."""
    return any(stream.labelled for stream in view.streams.values())


def _decimals(norm: float) -> int:
    """Return how many decimals a norm has, at most one more than few."""
    few = range(FEW_DECIMALS + 1)
    return next((count for count in few if round(norm, count) == norm), FEW_DECIMALS + 1)


def _rounded(last: float | None, decimals: int) -> bool:
    """Whether a zero after this norm may be a small norm that was rounded."""
    if last is None:
        return False
    if 0 < decimals <= FEW_DECIMALS and last <= FEW_UNITS * 10.0**-decimals:
        return True
    return ROUNDED_FROM <= last < ROUNDED_BELOW and float(f"{last:.1e}") == last
