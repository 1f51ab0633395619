"""D9: steps advance while the loss or the gradient norm stays bit-equal.

A model that learns on changing batches never reports the bit-equal loss for long. Some trainers
report a loss only every so many steps and repeat it in between: the limit grows with the longest
run of equal values that ended by itself.

Not covered: a loss of exactly zero, a norm that has never moved, and a norm at the order's clipping
limit are no evidence. A loss that is rounded to few digits may be warned of.
"""

import math
from dataclasses import dataclass

from gonogo.contract import outcome
from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.near import Near
from gonogo.contract.order import MOST_STEPS
from gonogo.timeline.step import Step
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.detectors.gradients import clip_of
from gonogo.watch.state import replace
from gonogo.watch.view import View, found

LONGEST_X = 3
"""The limit is at least so many times the longest run of equal values that ended by itself."""


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
    """D9 (module docstring)."""

    name = outcome.Detector.FROZEN
    sentence = (
        "The loss is bit-equal on `loss_steps` applied steps in a row, or the gradient norm on"
        " `grad_norm_steps`: suspect. `halt_x` times as many are the limit, but no fewer than three"
        " times the longest run of equal values that ended by itself."
    )
    State = Still
    steps = True

    def observe_step(self, own: Still, step: Step, view: View) -> Seen[Still]:
        """Observe loss and gradient norm of an applied step."""
        if step.step <= own.last_step:
            own = Still(loss=own.loss.restarted(), grad_norm=own.grad_norm.restarted())
        if not step.applied():
            return replace(own, last_step=step.step), []
        before = own
        own = Still(
            last_step=step.step,
            loss=own.loss.after(step.loss(), step),
            grad_norm=own.grad_norm.after(step.grad_norm(), step),
        )
        findings: list[Finding] = []
        if own.loss.count > before.loss.count and own.loss.value:
            findings += self._grown("loss", own.loss, step, view)
        if own.grad_norm.count > before.grad_norm.count and self._counts(own.grad_norm):
            findings += self._grown("grad_norm", own.grad_norm, step, view)
        return own, findings

    def _counts(self, norm: EqualValues) -> bool:
        """Return whether an equal gradient norm is evidence."""
        return norm.moved and bool(norm.value) and norm.value != clip_of(self.run.order.train)

    def _limit(self, number: str, run: EqualValues) -> tuple[int, Source]:
        """Return after how many equal values the number is frozen."""
        path = f"{number}_steps"
        least = min(getattr(self.settings, path) * self.settings.halt_x, MOST_STEPS)
        adaptive = LONGEST_X * run.longest
        if adaptive > least:
            return adaptive, Source.ADAPTIVE
        return math.ceil(least), self.run.source(f"frozen.{path}")

    def _grown(self, number: str, run: EqualValues, step: Step, view: View) -> list[Finding]:
        """Return the finding of a run of equal values that has just reached a limit."""
        limit, source = self._limit(number, run)
        suspect = math.ceil(limit / self.settings.halt_x)
        if run.count not in (suspect, limit):
            return []
        halts = run.count == limit
        label = "loss" if number == "loss" else "gradient norm"
        return [
            found(
                view,
                self.name,
                Severity.HALT if halts else Severity.SUSPECT,
                episode=f"{number}/step{run.since_step}",
                at=step.tick.ts,
                step=step.step,
                value=float(run.count),
                threshold=float(limit if halts else suspect),
                source=source,
                since=run.since_ts,
                text=f"the {label} has been {run.value:.9g} on {run.count} steps in a row, since"
                f" step {run.since_step} (limit {limit})",
            )
        ]

    def armed(self, own: Still, view: View) -> bool:
        """Return whether a number was reported."""
        return own.loss.value is not None or own.grad_norm.value is not None

    def near(self, own: Still, view: View, mono: float) -> Near:
        """Return for how many steps the loss has been equal."""
        if own.loss.value is None:
            return Near(blind=NOTHING_YET)
        return Near(
            value=float(own.loss.count), limit=float(self._limit("loss", own.loss)[0]), unit="steps"
        )

    def missing(self, own: Still, view: View) -> str | None:
        """Return a sentence when steps ended and reported neither number."""
        if own.last_step and not self.armed(own, view):
            return "Neither loss nor gradient norm was reported: frozen values were not observed."
        return None
