"""What did a person decide that still stands? Decisions in, words that outrank evidence out.

A person's verdict on a phase stands until evidence is judged anew: the phase's next automatic
decision replaces it. The waiving of a condition that evidence had missed stands for ever. Nothing
that evidence said is lost by it: each word names what it outranks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gonogo.contract.api import OverrideView
from gonogo.contract.decision import (
    Condition,
    ConditionState,
    Decision,
    DecisionKind,
    Verdict,
    worst,
)
from gonogo.judge.gate.approval import is_approval
from gonogo.judge.gate.conditions import ON_MISS


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A decision, as far as it matters here; who and why only where a person decided."""

    id: str
    kind: DecisionKind
    phase: str | None
    verdict: Verdict | None
    actor: str = ""
    reason: str = ""
    at: str = ""
    conditions: Sequence[Condition] = ()


def said_of(decision: Decision) -> Said:
    """Return a decision as `overrides_of` takes it."""
    return Said(
        id=decision.id,
        kind=decision.kind,
        phase=decision.phase,
        verdict=decision.verdict,
        actor=decision.actor,
        reason=decision.reason or "",
        at=decision.at,
        conditions=decision.conditions,
    )


def overrides_of(decisions: Iterable[Said]) -> list[OverrideView]:
    """Return what a person decided and still stands, oldest first.

    Args:
        decisions: of one experiment, in their order.
    """
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
    row: Said, missed: dict[str, Verdict], waivers: dict[str, OverrideView]
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
    row: Said, phase: str, *, evidence: Verdict | None, condition: str | None = None
) -> OverrideView:
    return OverrideView(
        decision=row.id,
        phase=phase,
        condition=condition,
        verdict=row.verdict,
        evidence=evidence,
        actor=row.actor,
        reason=row.reason,
        at=row.at,
    )
