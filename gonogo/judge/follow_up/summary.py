"""State of an experiment: what a person decided, and the result in a sentence or two.

A person's verdict on a phase stands until evidence is judged again: the next automatic decision
about the phase replaces it. The waiving of a missed condition stands for ever. Each word names the
evidence that it outranks. The summary claims no more than what was seen.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from gonogo.contract.api import OriginView, OverrideView, PhaseView
from gonogo.contract.decision import (
    Condition,
    ConditionState,
    Decision,
    DecisionKind,
    Verdict,
    worst,
)
from gonogo.contract.lifecycle import PhaseState
from gonogo.judge.gate.conditions import ON_MISS, is_approval


def phases_never_ran(phases: Iterable[PhaseView], ran: Container[str]) -> list[str]:
    """Return the phases that never ran, here or where they are inherited from."""
    return [
        phase.name
        for phase in phases
        if phase.name not in ran and phase.state is not PhaseState.INHERITED
    ]


def summarise(
    verdict: Verdict | None,
    phases: Sequence[PhaseView],
    overrides: Sequence[OverrideView],
    *,
    finished: bool,
    never_ran: Sequence[str] = (),
    origin: OriginView | None = None,
    cancelled_by: str | None = None,
) -> str | None:
    """Return what an experiment has come to; None while it is active and nobody intervened."""
    parts = [_by_hand(row) for row in overrides]
    if origin is not None:
        parts.append(_went_on(origin, phases))
    if finished:
        parts += _finished(verdict, phases, overrides, cancelled_by)
        parts += [f"{joined(never_ran)} never ran."] if never_ran else []
    return " ".join(parts) or None


def joined(names: Sequence[str]) -> str:
    """Return names as a sentence has them: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _went_on(origin: OriginView, phases: Sequence[PhaseView]) -> str:
    """Return what was taken over, and from whom."""
    inherited = [phase.name for phase in phases if phase.state is PhaseState.INHERITED]
    passed = f"{joined(inherited)} passed in {origin.experiment}" if inherited else ""
    step = f"{origin.phase} continues after step {origin.step} of {origin.experiment}"
    told = [row for row in (passed, step if origin.step else "") if row]
    return "; ".join(told or [f"It repeats what {origin.experiment} began"]) + "."


def _by_hand(row: OverrideView) -> str:
    why = f" ({row.reason})" if row.reason else ""
    if row.condition is not None:
        return f"By hand: {row.actor} waived the missed condition {row.condition}{why}."
    said = "the evidence says nothing" if row.evidence is None else f"the evidence: {row.evidence}"
    return f"By hand: {row.actor} called {row.phase} {row.verdict}{why}; {said}."


def _finished(
    verdict: Verdict | None,
    phases: Sequence[PhaseView],
    overrides: Sequence[OverrideView],
    cancelled_by: str | None,
) -> list[str]:
    """Return what evidence alone has come to, of the phases that it decided."""
    by_hand = {row.phase for row in overrides if row.condition is None}
    passed = [
        phase.name
        for phase in phases
        if phase.state is PhaseState.PASSED and phase.name not in by_hand
    ]
    failed = [phase.name for phase in phases if phase.state is PhaseState.FAILED]
    here = [phase for phase in phases if phase.state is not PhaseState.INHERITED]
    if len(passed) == len(here) and not overrides:
        return ["Every phase passed."]
    parts = [f"{joined(failed)} failed."] if failed else []
    if verdict is None and not failed:
        parts.append(f"It was cancelled{f' by {cancelled_by}' if cancelled_by else ''}.")
    return [*parts, f"Passed by evidence: {joined(passed)}."] if passed else parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The parts of an automatic decision that matter here, as a list reads them."""

    id: str
    kind: DecisionKind
    phase: str | None
    verdict: Verdict | None
    actor: str = ""
    reason: str = ""
    at: str = ""
    conditions: Sequence[Condition] = ()


def overrides_of(decisions: Iterable[Said | Decision]) -> list[OverrideView]:
    """Return what a person decided and still stands, oldest first."""
    judged: dict[str, Verdict | None] = {}
    verdicts: dict[str, OverrideView] = {}
    missed: dict[str, Verdict] = {}
    waivers: dict[str, OverrideView] = {}
    for row in decisions:
        phase = row.phase or ""
        if row.kind is DecisionKind.AUTO:
            judged[phase] = row.verdict
            verdicts.pop(phase, None)
        elif row.kind is DecisionKind.HUMAN:
            verdicts.pop(phase, None)  # the last word goes last
            late = [said for name, said in missed.items() if name not in waivers]
            verdicts[phase] = _view(row, phase, evidence=worst([judged.get(phase), *late]))
        else:
            _take_conditions(row, missed, waivers)
    return sorted([*verdicts.values(), *waivers.values()], key=lambda row: row.at)


def _take_conditions(
    row: Said | Decision, missed: dict[str, Verdict], waivers: dict[str, OverrideView]
) -> None:
    for condition in row.conditions:
        if is_approval(condition):
            continue  # a person's silence is no evidence
        if condition.state is ConditionState.MISSED:
            missed[condition.id] = ON_MISS[condition.on_miss]
        if condition.state is ConditionState.WAIVED and condition.id in missed:
            phase = condition.id.partition(":")[0]
            waivers[condition.id] = _view(
                row, phase, evidence=missed[condition.id], condition=condition.id
            )


def _view(
    row: Said | Decision, phase: str, *, evidence: Verdict | None, condition: str | None = None
) -> OverrideView:
    return OverrideView(
        decision=row.id,
        phase=phase,
        condition=condition,
        verdict=row.verdict,
        evidence=evidence,
        actor=row.actor,
        reason=row.reason or "",
        at=row.at,
    )
