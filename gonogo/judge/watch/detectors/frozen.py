"""D9: do steps advance while the numbers stand still?

A model that learns on changing batches never has the bit-equal loss for long. A trainer may refresh
its numbers only now and then, so the limits grow with the longest run of equal values that ended by
itself; or it may round them, so that a coarse number halts only together with the other one. An
equal gradient norm counts only where the norm has moved before and is not the clipping limit: who
reports norms after clipping, or none at all, reports a constant.
"""

import math
from dataclasses import dataclass, replace

from gonogo.contract import outcome
from gonogo.contract.finding import Finding, Severity, Source
from gonogo.judge.watch.detector import Detector, Seen
from gonogo.judge.watch.detectors.gradients import clip_of
from gonogo.judge.watch.step import Step
from gonogo.judge.watch.view import View, found

SUSPECT_LONGEST_X = 2
HALT_LONGEST_X = 3
HALF_BITS = 11
"""Significant bits of a half-precision number (bfloat16 has fewer)."""
FEW_DECIMALS = 6
SMALL = 0.05
"""Below it, few decimals are few digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Equal values of one number, one after the other."""

    value: float | None = None
    count: int = 0
    """Steps that had `value`, without another value in between."""
    since_step: int = 0
    since_ts: float = 0.0
    longest: int = 1
    """The longest run that another value has ended."""
    moved: bool = False
    """Whether there ever was another value."""
    single: bool = False
    """Whether a value was told that no half-precision number holds."""
    unrounded: bool = False
    """Whether a value was told with more than six decimals."""
    most: float | None = None
    """The largest value told."""
    ceiling: bool = False
    """Whether `value` had been the largest before it came again: numbers are cut off there."""
    halted: bool = False
    """Whether this run of equal values was found to be a halt."""

    def after(self, value: float | None, step: Step) -> "Run":
        """Return the run with the next step's number; what is unknown changes nothing."""
        if value is None or not math.isfinite(value):
            return self
        if value == self.value:
            return replace(self, count=self.count + 1)
        return Run(
            value=value,
            count=1,
            since_step=step.step,
            since_ts=step.tick.ts,
            longest=max(self.longest, self.count),
            moved=self.moved or self.value is not None,
            most=value if self.most is None else max(self.most, value),
            ceiling=value == self.most,
            single=self.single or not _fits_half(value),
            unrounded=self.unrounded or round(value, FEW_DECIMALS) != value,
        )

    def interrupted(self) -> "Run":
        """Return the run after a restart: the count begins anew, what was learnt stays."""
        longest = max(self.longest, self.count)
        return replace(self, value=None, count=0, longest=longest, halted=False)

    def convinces(self, other: "Run", limit: int) -> bool:
        """Whether equal values can only mean that nothing moves, given the run's other number."""
        if other.count >= limit and (other.moved or not self.moved):
            return True
        if not self.single or self.value is None:
            return False
        return self.unrounded or (not other.moved and abs(self.value) >= SMALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Still:
    """How long loss and gradient norm have stood still."""

    last_step: int = 0
    loss: Run = Run()
    grad_norm: Run = Run()


class Frozen(Detector[Still]):
    """D9 (module docstring)."""

    name = outcome.Detector.FROZEN
    sentence = (
        "The loss is bit-equal on `loss_steps` applied steps running, or the gradient norm on"
        " `grad_norm_steps`: suspect; on `halt_x` times as many: halt. Both limits grow with what"
        " the run has shown to be its way: no suspicion below twice, no halt below three times the"
        " longest run of equal values that ended by itself (a trainer that refreshes its loss every"
        " 50 steps). A loss that was only ever told in half precision halts only where the norm"
        " stands still as well, and so does one of six decimals at most, where the norm moves or"
        " the loss is below 0.05; one that was read from what a program prints halts only with more"
        " decimals than that. An equal norm counts only after it has moved, and never at the"
        " order's clipping limit or where it has come back to the largest ever told, which is such"
        " a limit."
    )
    State = Still
    steps = True

    def observe_step(self, own: Still, step: Step, view: View) -> Seen[Still]:
        """Observe what an applied step says of loss and gradient norm."""
        if step.step <= own.last_step:
            own = Still(loss=own.loss.interrupted(), grad_norm=own.grad_norm.interrupted())
        own = replace(own, last_step=step.step)
        if not all(row.applied for row in step.ranks.values()):
            return own, []
        before = own
        loss, norm = step.loss(), step.grad_norm()
        own = replace(
            own, loss=own.loss.after(loss, step), grad_norm=own.grad_norm.after(norm, step)
        )
        findings: list[Finding] = []
        if own.loss.count > before.loss.count:
            grown, findings = self._grown(own.loss, own.grad_norm, "loss", step, view)
            own = replace(own, loss=grown)
        if own.grad_norm.count > before.grad_norm.count and self._telling(own.grad_norm):
            grown, more = self._grown(own.grad_norm, own.loss, "grad_norm", step, view)
            own, findings = replace(own, grad_norm=grown), findings + more
        return own, findings

    def _telling(self, norm: Run) -> bool:
        """Whether an equal gradient norm says anything."""
        cut_off = norm.ceiling or norm.value == clip_of(self.run.order.train)
        return norm.moved and not cut_off

    def _grown(
        self, run: Run, other: Run, number: str, step: Step, view: View
    ) -> tuple[Run, list[Finding]]:
        """Return the run, and the finding where it has reached one of its limits."""
        least: int = getattr(self.settings, f"{number}_steps")
        suspect = max(least, SUSPECT_LONGEST_X * run.longest)
        halt = max(math.ceil(least * self.settings.halt_x), HALT_LONGEST_X * run.longest)
        printed = view.reads_output() and not run.unrounded
        if run.count >= halt and not run.halted and not printed and run.convinces(other, halt):
            finding = self._finding(run, number, Severity.HALT, halt, step, view)
            return replace(run, halted=True), [finding]
        if run.count == suspect:
            return run, [self._finding(run, number, Severity.SUSPECT, suspect, step, view)]
        return run, []

    def _finding(
        self, run: Run, number: str, severity: Severity, limit: int, step: Step, view: View
    ) -> Finding:
        path = f"frozen.{number}_steps"
        least: int = getattr(self.settings, f"{number}_steps")
        adaptive = limit > math.ceil(least * self.settings.halt_x)
        named = "loss" if number == "loss" else "gradient norm"
        return found(
            view,
            self.name,
            severity,
            episode=f"{number}/step{run.since_step}",
            at=step.tick.ts,
            step=step.step,
            value=float(run.count),
            threshold=float(limit),
            source=Source.ADAPTIVE if adaptive else self.run.source(path),
            since=run.since_ts,
            text=f"the {named} has been {run.value:.9g} on {run.count} steps running, since step"
            f" {run.since_step} (limit {limit})",
        )

    def armed(self, own: Still, view: View) -> bool:
        """Whether a number has been told that could stand still."""
        return own.loss.value is not None or own.grad_norm.value is not None

    def missing(self, own: Still, view: View) -> str | None:
        """Return a sentence where steps ended and no number was told."""
        if own.last_step and not self.armed(own, view):
            return "Neither loss nor gradient norm was told: nobody knows whether they stood still."
        return None


def _fits_half(value: float) -> bool:
    """Whether a half-precision number holds the value exactly."""
    mantissa, _ = math.frexp(value)
    return math.ldexp(mantissa, HALF_BITS).is_integer()
