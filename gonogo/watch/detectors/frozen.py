"""D9: do steps advance while the numbers stand still?

A model that learns on changing batches never has the bit-equal loss for long. Other things hold a
number: a trainer refreshes it only now and then, rounds it, or computes an honest zero (a hinge, or
equal rewards). So the gradient norm is asked: while it moves, the model is not frozen and an equal
loss is worth a warning at most; but our own trainer tells a loss of each step, and none twice.
Where the norm says nothing, a loss that never moved, or of few decimals, is given five times as
long, and every limit grows with the longest run of equal values that ended by itself. Of another
trainer than ours that way is known once a number has changed a few times: a run that is resumed in
the midst of a period, or refreshes by the clock, begins with a short one. An equal norm counts only
after it has moved, and not where it is cut off: at the order's clipping limit, or at the largest
ever told where that is round or was reached before.
"""

import math
from dataclasses import dataclass

from gonogo.contract import outcome
from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.order import MOST_STEPS
from gonogo.contract.workload import is_ours
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.detectors.gradients import clip_of
from gonogo.watch.state import replace
from gonogo.watch.step import Step
from gonogo.watch.view import View, found

SUSPECT_LONGEST_X = 2
HALT_LONGEST_X = 3
PATIENT_X = 5
"""How much longer a loss may stand still that may be held or rounded, where no norm is evidence."""
UNMOVED_X = 30
"""The same of a loss that has never changed, of another trainer than ours that tells no norm: it
may refresh it every so many hundred steps. One that never does passes no gate."""
HALF_BITS = 11
"""Significant bits of a half-precision number (bfloat16 has fewer)."""
KNOWN_CHANGES = 8
"""So often a number has changed by the time that its way is known."""
FEW_DECIMALS = 6
SMALL = 0.05
"""Below it, few decimals are few digits."""
ROUND_ERROR_RATIO = 1e-6
"""How far a round number may be off, as single precision holds it."""


@dataclass(frozen=True, kw_only=True)
class EqualValues:
    """Equal values of one number, one after the other."""

    value: float | None = None
    count: int = 0
    """Steps that had `value`, without another value in between."""
    since_step: int = 0
    since_ts: float = 0.0
    longest: int = 1
    """The longest run that another value has ended."""
    changes: int = 0
    """How often another value came, up to `KNOWN_CHANGES`."""
    single: bool = False
    """Whether a value was told that no half-precision number holds."""
    unrounded: bool = False
    """Whether a value was told with more than six decimals and digits."""
    most: float | None = None
    """The largest value told."""
    ceiling: bool = False
    """Whether `value` had been the largest before it came again: numbers are cut off there."""
    warned: bool = False
    halted: bool = False
    """Whether this run of equal values was found to be a halt."""

    def after(self, value: float | None, step: Step) -> "EqualValues":
        """Return the run with the next step's number; what is unknown changes nothing."""
        if value is None or not math.isfinite(value):
            return self
        if value == self.value:
            return replace(self, count=self.count + 1)
        return replace(
            self,
            value=value,
            count=1,
            since_step=step.step,
            since_ts=step.tick.ts,
            longest=max(self.longest, self.count),
            changes=min(KNOWN_CHANGES, self.changes + (self.value is not None)),
            most=value if self.most is None else max(self.most, value),
            ceiling=value == self.most,
            single=self.single or not _fits_half(value),
            unrounded=self.unrounded or _is_unrounded(value),
            warned=False,
            halted=False,
        )

    def interrupted(self) -> "EqualValues":
        """Return the run after a restart: the count begins anew, what was learnt stays.

        What the restart cut did not end by itself, and is nobody's way.
        """
        return replace(self, value=None, count=0, since_step=0)

    @property
    def moved(self) -> bool:
        """Whether there ever was another value."""
        return self.changes > 0

    def stands(self, limit: int) -> bool:
        """Whether a number that used to move has stood still for `limit` and for its own way."""
        return self.moved and self.count >= max(limit, HALT_LONGEST_X * self.longest)

    def moves(self, other: "EqualValues", limit: int) -> bool:
        """Whether this number has gone on changing while `other` stood still."""
        return self.since_step > other.since_step and self.count < limit

    @property
    def cut_off(self) -> bool:
        """Whether the value is the largest ever told as only a limit is: round, or met before."""
        return self.value == self.most and (self.ceiling or is_round(self.value or 0.0))


@dataclass(frozen=True, kw_only=True)
class Still:
    """How long loss and gradient norm have stood still."""

    last_step: int = 0
    loss: EqualValues = EqualValues()
    grad_norm: EqualValues = EqualValues()


class Frozen(Detector[Still]):
    """D9 (module docstring)."""

    name = outcome.Detector.FROZEN
    sentence = (
        "The loss is bit-equal on `loss_steps` applied steps running, or the gradient norm on"
        " `grad_norm_steps`: suspect; on `halt_x` times as many: halt. Both limits grow with"
        " what the run has shown to be its way: no suspicion below twice, no halt below three"
        " times the longest run of equal values that ended by itself (a trainer that refreshes"
        " its loss every 50 steps), and are five times as long where a number of another trainer"
        " than ours has not changed eight times yet. While the norm moves, no equal loss halts"
        " that another trainer than ours tells: one of more than six decimals and digits warns;"
        " ours tells none twice, so one of 0.05 or more halts. A loss of exactly zero never"
        " halts. Where no norm that used to move stands still as well, five times as many steps"
        " are needed of a loss that has never changed or has six decimals or digits at most"
        " (thirty times of one that has never changed, of another trainer than ours which"
        " tells no norm), and one that was only ever told in half precision, or is rounded and"
        " below 0.05, does not"
        " halt; one that was read from what a program prints halts only with more decimals and"
        " digits than that. An equal norm counts only after it has moved, not at zero (D12), and"
        " never at the order's clipping limit or at the largest ever told where that is a round"
        " number or was told before, which is such a limit."
    )
    State = Still
    """2: equal values that a restart cut short widen no limit. 3: a small number of six digits at
    most (1.05e-05) is rounded; a user's loss that has never changed, without a norm, may be one of
    1000 steps."""
    steps = True

    def observe_step(self, own: Still, step: Step, view: View) -> Seen[Still]:
        """Observe what an applied step says of loss and gradient norm."""
        if step.step <= own.last_step:
            own = Still(loss=own.loss.interrupted(), grad_norm=own.grad_norm.interrupted())
        if not step.applied():
            return replace(own, last_step=step.step), []
        before = own
        own = Still(
            last_step=step.step,
            loss=own.loss.after(step.loss(), step),
            grad_norm=own.grad_norm.after(step.grad_norm(), step),
        )
        findings: list[Finding] = []
        if own.loss.count <= before.loss.count and own.grad_norm.count <= before.grad_norm.count:
            return own, findings
        telling = self._telling(own.grad_norm)
        if own.loss.count > before.loss.count:
            loss_run, findings = self._loss_grown(own.loss, own.grad_norm, telling, step, view)
            own = replace(own, loss=loss_run)
        if own.grad_norm.count > before.grad_norm.count and telling and own.grad_norm.value:
            norm_run, more = self._norm_grown(own.grad_norm, own.loss, step, view)
            own, findings = replace(own, grad_norm=norm_run), findings + more
        return own, findings

    def _telling(self, norm: EqualValues) -> bool:
        """Whether an equal gradient norm says anything."""
        return norm.moved and not norm.cut_off and norm.value != clip_of(self.run.order.train)

    def _loss_grown(
        self, loss: EqualValues, norm: EqualValues, telling: bool, step: Step, view: View
    ) -> Seen[EqualValues]:
        """Return the run of losses, and the finding where it has reached one of its limits."""
        suspect, halt = self._limits(loss, "loss")
        corroborated = telling and norm.stands(halt)
        if not corroborated and not (loss.moved and loss.unrounded):
            halt = max(halt, self._least_halt("loss") * PATIENT_X)
        if not loss.moved and norm.most is None and not self._is_ours():
            halt = max(halt, self._least_halt("loss") * UNMOVED_X)
        exact = loss.unrounded and bool(loss.value)
        if loss.count >= halt and norm.moves(loss, halt) and self._may_be_told_again(loss):
            if exact and not loss.warned and not view.reads_output():
                finding = self._finding(loss, "loss", Severity.WARN, halt, step, view)
                return replace(loss, warned=True), [finding]
        elif loss.count >= halt and not loss.halted and loss.value:
            both = corroborated or (not loss.moved and norm.count >= halt and not norm.moved)
            coarse = not loss.single or norm.moved or abs(loss.value) < SMALL
            if (loss.unrounded or not view.reads_output()) and (
                both or (loss.single and loss.unrounded) or not coarse
            ):
                finding = self._finding(loss, "loss", Severity.HALT, halt, step, view)
                return replace(loss, halted=True), [finding]
        if loss.count == suspect:
            return loss, [self._finding(loss, "loss", Severity.SUSPECT, suspect, step, view)]
        return loss, []

    def _may_be_told_again(self, loss: EqualValues) -> bool:
        """Whether an equal loss may be an old one; our own trainer tells one of each step."""
        exact = loss.moved and loss.single and loss.unrounded and abs(loss.value or 0.0) >= SMALL
        return not (self._is_ours() and exact)

    def _is_ours(self) -> bool:
        return is_ours(self.run.order.entry, self.run.order.command)

    def _norm_grown(
        self, norm: EqualValues, loss: EqualValues, step: Step, view: View
    ) -> Seen[EqualValues]:
        """Return the run of norms, and the finding where it has reached one of its limits."""
        suspect, halt = self._limits(norm, "grad_norm")
        printed = view.reads_output() and not norm.unrounded
        if norm.count >= halt and not norm.halted and not printed:
            sharp = norm.single and (
                norm.unrounded or (not loss.moved and (norm.value or 0.0) >= SMALL)
            )
            if sharp or loss.stands(halt):
                finding = self._finding(norm, "grad_norm", Severity.HALT, halt, step, view)
                return replace(norm, halted=True), [finding]
        if norm.count == suspect:
            return norm, [self._finding(norm, "grad_norm", Severity.SUSPECT, suspect, step, view)]
        return norm, []

    def _least_halt(self, number: str) -> int:
        least: int = getattr(self.settings, f"{number}_steps")
        halt_x: float = self.settings.halt_x
        return math.ceil(min(least * halt_x, MOST_STEPS))

    def _limits(self, run: EqualValues, number: str) -> tuple[int, int]:
        """Return after how many equal values a number is suspect, and halts."""
        least: int = getattr(self.settings, f"{number}_steps")
        suspect = max(least, SUSPECT_LONGEST_X * run.longest)
        least_halt = self._least_halt(number)
        if run.moved and run.changes < KNOWN_CHANGES and not self._is_ours():
            least_halt *= PATIENT_X
        return suspect, max(least_halt, HALT_LONGEST_X * run.longest)

    def _finding(
        self, run: EqualValues, number: str, severity: Severity, limit: int, step: Step, view: View
    ) -> Finding:
        path = f"frozen.{number}_steps"
        adaptive = limit > self._least_halt(number)
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


def is_exact(value: float) -> bool:
    """Whether a number was neither rounded nor computed in half precision, and is not zero."""
    return bool(value) and _is_unrounded(value) and not _fits_half(value)


def _is_unrounded(value: float) -> bool:
    """Whether a number has more than six decimals, and as many digits: `1.05e-05` has three."""
    if round(value, FEW_DECIMALS) == value:
        return False
    return float(f"{value:.{FEW_DECIMALS - 1}e}") != value


def _fits_half(value: float) -> bool:
    """Whether a half-precision number holds the value exactly."""
    mantissa, _ = math.frexp(value)
    return math.ldexp(mantissa, HALF_BITS).is_integer()


def is_round(value: float) -> bool:
    """Whether a number has two significant digits at most, as people choose limits."""
    return abs(value - float(f"{value:.1e}")) <= ROUND_ERROR_RATIO * abs(value)
