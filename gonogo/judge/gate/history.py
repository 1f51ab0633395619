"""What do the other runs of the phase say? Confirmations, remedies and restarts, as facts.

`facts.history` is added by `decide` when a phase's decision rests on more than one run:
`restart_storm`, `confirmations` (`run`, `variant`, `verdict`, `code`, in the order they were made;
`until` where only a few steps were ordered), `failed_step` and `remedy` (the diagnosis and patch
under which the judged run was made). A run directory that is judged by itself knows only what its
order tells (`rerun`): what it was made for, and whether it ends before its phase does.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from gonogo.contract.canonical import canonical_bytes, wire_value
from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import PASSING, CriterionOutcome, CriterionResult, Verdict
from gonogo.contract.facts import Confirmation, Facts, FailedBefore, History, Rerun, Undecided
from gonogo.contract.order import CarriedRemedy, Order, RunReason
from gonogo.contract.taint import Taint

REPRODUCED = "reproduced"
REMEDIED = "remedied"
CARRIED = "remedy_carried"
UNPASSED = "unpassed"
UNDECIDED = "undecided"
FAILED_BEFORE = "failed_before"
WHOLE_PHASE = "whole_phase"
"""Id of the criterion of a rerun that only answers: the phase needs the run that goes on."""


def with_history(facts: Facts, history: History | None) -> Facts:
    """Return the facts of a run with those of the phase's other runs beside them.

    These are as a decision records them: what a patch says is told in words, in the order of its
    names and with numbers as they are read again, so that a replay tells the same.
    """
    if history is None:
        return facts
    said = canonical_bytes(wire_value(history.model_dump(mode="json", exclude_unset=True)))
    return facts.model_copy(update={"history": History.model_validate_json(said)})


def rerun_of(order: Order) -> Rerun:
    """Return what the order of a confirmation or a remedy tells of it."""
    reason: Literal["confirm", "remedy"] = (
        "confirm" if order.reason is RunReason.CONFIRM else "remedy"
    )
    return Rerun(reason=reason, until=early_end_of(order))


def early_end_of(order: Order) -> int | None:
    """Return the last step of an order that ends before its phase does; None of any other."""
    whole = order.train.get("steps")
    ends_early = type(whole) is int and order.steps is not None and order.steps < whole
    return order.steps if ends_early else None


def confirmed_verdict(history: History | None, verdict: Verdict) -> Verdict:
    """Return what confirmations make of a NO_GO (R15).

    The first rerun is unchanged: passing, it makes the failure unreproduced; only when it fails
    too were variants run. An inconclusive rerun makes the whole gate inconclusive, and so does one
    that answered and did not go on to the phase's last step.
    """
    rows = history.confirmations if history is not None else []
    last = {_named(row): row for row in rows}  # a rerun that went on is told after its answer
    unchanged = last.pop(None, None)
    if unchanged is None:
        return verdict
    if unchanged.verdict in PASSING:
        return Verdict.CONDITIONAL_GO if unchanged.until is None else Verdict.INCONCLUSIVE
    if unchanged.verdict is not Verdict.NO_GO:
        return Verdict.INCONCLUSIVE
    variants = [row for row in last.values() if not is_isolating(_patch_of(row))]
    if any(row.verdict in PASSING and row.until is None for row in variants):
        return Verdict.CONDITIONAL_GO
    if any(row.verdict is not Verdict.NO_GO for row in variants):
        return Verdict.INCONCLUSIVE
    return verdict


def is_isolating(change: Mapping[str, Any] | None) -> bool:
    """Say whether a change only shows where a failure lies: no phase passes on other data."""
    return "data" in dict((change or {}).get("train") or {})


def _patch_of(row: Confirmation) -> dict[str, Any] | None:
    return None if row.variant is None else row.variant.document()


def _named(row: Confirmation) -> str | None:
    """Return what was changed as text; None: nothing."""
    return None if row.variant is None else row.variant.text()


def history_criteria(history: History | None) -> list[CriterionResult]:
    """Return what the phase's other runs add to the gate table.

    Args:
        history: of the judged run.
    """
    if history is None:
        return []
    results = []
    rows = history.confirmations
    if rows:
        unchanged = [row.verdict for row in _unchanged(rows)]
        failed = 1 + sum(verdict is Verdict.NO_GO for verdict in unchanged)
        passed = any(row.verdict in PASSING for row in rows)
        results.append(
            _conditional(
                REPRODUCED,
                CriterionOutcome.FAIL if passed else CriterionOutcome.INCONCLUSIVE,
                {"failed": failed, "runs": 1 + len(unchanged)},
                _reproduction(rows, failed, 1 + len(unchanged)),
            )
        )
    results += _rerun_criteria(history.rerun)
    remedy = history.remedy
    if remedy is not None:
        text = f"this run was made with the remedy of {remedy.diagnosis}: {remedy.patch}"
        results.append(_conditional(REMEDIED, CriterionOutcome.FAIL, remedy.patch, text))
    results += _undecided_criteria(history.undecided)
    return [*results, *_failed_criteria(history.failed_before)]


def _unchanged(rows: Sequence[Confirmation]) -> list[Confirmation]:
    """Return the unchanged reruns that say whether a failure comes again.

    Where it came again in the last of them, one before that decided nothing has not shown that it
    may not: neither an answer from which the phase went on and failed, nor an inconclusive one.
    """
    found = [row for row in rows if row.variant is None]
    if not found or found[-1].verdict is not Verdict.NO_GO:
        return found
    return [row for row in found if row.verdict is Verdict.NO_GO]


def _undecided_criteria(undecided: Sequence[Undecided]) -> Iterator[CriterionResult]:
    """Yield that runs of the same order came to no decision before: the best of several is none."""
    if not undecided:
        return
    told = "; ".join(f"{row.run}: {', '.join(row.criteria)}" for row in undecided)
    text = f"{len(undecided)} of {len(undecided) + 1} whole runs left it undecided ({told})"
    observed = {"undecided": len(undecided), "runs": len(undecided) + 1}
    yield _conditional(UNDECIDED, CriterionOutcome.FAIL, observed, text)


def _failed_criteria(failed: Sequence[FailedBefore]) -> Iterator[CriterionResult]:
    """Yield that runs of the same order had failed before they were ended: that is not undone."""
    if not failed:
        return
    told = "; ".join(f"{row.run} ({row.code}): {', '.join(row.criteria)}" for row in failed)
    text = f"what had failed when a run of it was ended is not undone ({told})"
    observed = [row.run for row in failed]
    yield _conditional(FAILED_BEFORE, CriterionOutcome.FAIL, observed, text)


def carried_criteria(carried: Sequence[CarriedRemedy]) -> list[CriterionResult]:
    """Return what it adds to the gate table that remedies of earlier phases were carried on.

    The phase passes as it was ordered, and not as the plan has it: that is a condition.
    """
    if not carried:
        return []
    told = "; ".join(row.told() for row in carried)
    observed = [row.diagnosis for row in carried]
    return [_conditional(CARRIED, CriterionOutcome.FAIL, observed, f"carried on: {told}")]


def taint_criteria(taints: Sequence[Taint]) -> list[CriterionResult]:
    """Return what the taints of a run's checkpoint add to the gate table: one condition.

    The gate sees the steps after the checkpoint alone. They do not undo what the steps before them
    had shown.
    """
    if not taints:
        return []
    text = "; ".join(taint.words() for taint in taints)
    observed = [taint.found for taint in taints]
    evidence = f"it resumes from a checkpoint: {text}"
    return [_conditional(UNPASSED, CriterionOutcome.FAIL, observed, evidence)]


def _rerun_criteria(rerun: Rerun | None) -> Iterator[CriterionResult]:
    """Yield what a rerun's order adds, where nobody names the runs before it.

    One that ends before its phase does shows nothing of the phase: missing evidence never passes.
    One that confirms and goes to the end follows a failure that did not come again.
    """
    if rerun is None:
        return
    if rerun.until is not None:
        yield CriterionResult(
            id=WHOLE_PHASE,
            severity=GateSeverity.REQUIRED,
            outcome=CriterionOutcome.INCONCLUSIVE,
            observed=rerun.until,
            evidence=(
                f"made to end at step {rerun.until}, it only answers whether a failure comes again;"
                " the phase needs the run that goes on to its last step"
            ),
        )
    if rerun.reason == "confirm":
        text = "this run was made to confirm a failure that order.json does not name"
        yield _conditional(REPRODUCED, CriterionOutcome.FAIL, None, text)


def _conditional(
    name: str, outcome: CriterionOutcome, observed: Any, evidence: str
) -> CriterionResult:
    return CriterionResult(
        id=name,
        severity=GateSeverity.CONDITIONAL,
        outcome=outcome,
        observed=observed,
        evidence=evidence,
    )


def _reproduction(rows: Sequence[Confirmation], failed: int, runs: int) -> str:
    """Return one sentence with counts; a variable is named only when its variant passed."""
    variants: dict[str, list[bool]] = {}
    for row in rows:
        if row.variant is not None:
            variants.setdefault(row.variant.text(), []).append(row.verdict in PASSING)
    text = f"failed in {failed} of {runs} unchanged runs"
    if not variants:
        return f"not reproduced: {text}" if failed < runs else text
    told = [f"passed {sum(won)} of {len(won)} with {name}" for name, won in variants.items()]
    return f"{text}; {'; '.join(told)}"
