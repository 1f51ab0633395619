"""Which remedy of the plan may be tried, and did it help?

A remedy answers a phase that failed for a known reason. It also answers one that completed and left
a condition open which that reason explains, as devices that idle do (R25); then it must do better:
a run that leaves no fewer conditions open is set aside, and the phase is what it was without it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gonogo.contract.decision import PASSING, Verdict
from gonogo.contract.facts import Remedy
from gonogo.contract.order import CarriedRemedy, RunReason
from gonogo.contract.outcome import OutcomeClass
from gonogo.contract.plan import Plan
from gonogo.judge.course.action import Action, Attempt
from gonogo.judge.course.reruns import laid_over, rerun

SAY_NOTHING = (OutcomeClass.INFRA, OutcomeClass.OPERATOR)
"""Ends that say nothing of a phase: its host's, and a person's."""


def remedied(first: Attempt) -> Remedy | None:
    """Return the remedy under which a run was made, as a fact; None without one."""
    if first.reason is not RunReason.REMEDY or first.change is None:
        return None
    patch = {name: value for name, value in first.change.items() if name != "diagnosis"}
    return Remedy(diagnosis=first.change.get("diagnosis") or "unknown", patch=patch)


def next_remedy(
    plan: Plan,
    phase: str,
    failed: Attempt,
    runs: Sequence[Attempt],
    carried: Sequence[CarriedRemedy] = (),
) -> Action | None:
    """Return the rerun with the plan's remedy for the diagnosis, while any is left.

    A remedy that uncovers another failure is kept, and the next one is laid over it; one that
    leaves the failure as it was is the last, also where an earlier phase left it (`carried`).
    """
    used = _remedies_of(runs)
    name = failed.diagnosis or ""
    patch = plan.remedies.get(name)
    if patch is None or len(used) >= plan.max_remedies:
        return None
    if any(row.get("diagnosis") == name for row in used):
        return None
    if any(row.diagnosis == name for row in carried):
        return None
    before = failed.change if failed.reason is RunReason.REMEDY else None
    change: Mapping[str, Any] = laid_over(before or {}, patch.document())
    text = f"{name}: remedy {len(used) + 1} of {plan.max_remedies}"
    return rerun(plan, phase, failed, RunReason.REMEDY, {**change, "diagnosis": name}, text)


def _remedies_of(runs: Iterable[Attempt]) -> list[Mapping[str, Any]]:
    """Return the remedies that runs of a phase were made with, each once."""
    found: list[Mapping[str, Any]] = []
    for row in runs:
        if row.reason is RunReason.REMEDY and row.change is not None and row.change not in found:
            found.append(row.change)
    return found


def set_aside(runs: Sequence[Attempt]) -> tuple[list[Attempt], str | None]:
    """Return the runs without the remedies that settled no condition, and what to say of them.

    Args:
        runs: of a phase, in the order of their start.
    """
    kept: list[Attempt] = []
    told = None
    for row, answered in _answered(runs):
        if answered is None or row.outcome.klass in SAY_NOTHING or _is_better(row, answered):
            kept.append(row)
        else:
            failed = row.outcome.klass is not OutcomeClass.SUCCESS
            how = f"ended as {row.outcome.code} and " if failed else ""
            told = f"{_named(row, answered)} {how}settled no condition"
    return kept, told


def never_ended(runs: Sequence[Attempt]) -> str | None:
    """Return what to say of a remedy that was to settle a condition and has no end of its own.

    None: the last of the runs is no such remedy.
    """
    row, answered = list(_answered(runs))[-1]
    if answered is None or row.outcome.klass is not OutcomeClass.INFRA:
        return None
    return f"{_named(row, answered)} came to no end"


def lost_answers(runs: Sequence[Attempt]) -> set[str]:
    """Return the remedies for a condition that said nothing: what they left goes on nowhere else.

    A retry of one goes on from it, and the phase after this one does not begin with it.
    """
    return {
        row.run
        for row, answered in _answered(runs)
        if answered is not None and row.outcome.klass in SAY_NOTHING
    }


def _answered(runs: Iterable[Attempt]) -> Iterator[tuple[Attempt, Attempt | None]]:
    """Yield each run with the one whose open condition it is the remedy for, if it is any's."""
    before: Attempt | None = None
    for row in runs:
        answered = before if before is not None and _answers(row, before) else None
        yield row, answered
        says = row.outcome.klass not in SAY_NOTHING
        if says and (answered is None or _is_better(row, answered)):
            before = row


def _named(row: Attempt, answered: Attempt) -> str:
    return f"the remedy of {answered.diagnosis} ({row.run})"


def _answers(row: Attempt, before: Attempt) -> bool:
    """Say whether a run tries the remedy for why the run before it left a condition open."""
    change = row.change or {}
    named = row.reason is RunReason.REMEDY and change.get("diagnosis") == before.diagnosis
    return named and may_settle(before)


def may_settle(row: Attempt) -> bool:
    """Say whether a remedy may settle a condition that a run left open.

    Of a confirmation none is: what it was made for failed, and a remedy answers that.
    """
    conditional = row.verdict is Verdict.CONDITIONAL_GO and row.answerable
    return conditional and row.until is None and row.reason is not RunReason.CONFIRM


def _is_better(row: Attempt, before: Attempt) -> bool:
    return row.verdict in PASSING and set(row.unmet) < set(before.unmet)
