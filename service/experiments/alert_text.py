"""Texts of alerts about decisions, findings and approvals; each ends with a command."""

from collections.abc import Sequence

from gonogo.contract.api import OverrideView
from gonogo.contract.decision import Decision, DecisionKind
from gonogo.contract.finding import Finding
from gonogo.judge.follow_up.summary import joined
from gonogo.ledger.seal import SERVICE_ACTOR
from service.db.documents import Awaited
from service.instants import stamp


def decision_text(
    experiment: str, name: str, decision: Decision, overrides: Sequence[OverrideView]
) -> str:
    """Return the text of the alert that a decision was made.

    Args:
        overrides: what a person decided and stands, this decision included.
    """
    place = f"{name}, {decision.phase}" if decision.phase else name
    verdict = decision.verdict.value if decision.verdict else "no verdict"
    words = f"{verdict} by hand" if decision.by_hand and decision.verdict else verdict
    parts = [f"{place}: {words} ({decision.kind})"]
    parts += _why(decision, overrides)
    others = [row.phase for row in overrides if row.decision != decision.id]
    if others:
        parts.append(f"Decided by hand before: {joined(others)}")
    return with_next(". ".join(part.rstrip(".") for part in parts), f"show {experiment}")


def finding_text(
    experiment: str, place: str, finding: Finding, said: tuple[str, str] | None
) -> str:
    """Return the text of the alert that a finding ends a run, or asks for a person.

    Args:
        place: its name, and the phase.
        said: a log and the last line of the rank that it names; None: it has said nothing.
    """
    line = "" if said is None else f"; last line of {said[0]} so far: {said[1]}"
    return with_next(f"{place}: {finding.text}{line}", f"show {experiment}")


def with_next(text: str, command: str) -> str:
    """Return a text with the command of `gonogo` to type."""
    return f"{text.rstrip('.')}. Next: gonogo {command}"


def approval_text(experiment: str, name: str, awaited: Awaited) -> str:
    """Return the text of the alert that a person's approval is waited for."""
    parts = [f"{name}, {awaited.phase}: waits for {awaited.text}"]
    if awaited.expires_s is not None and awaited.asked_at is not None:
        parts.append(f"It is taken until {stamp(awaited.asked_at + awaited.expires_s)}")
    return with_next(". ".join(parts), f"promote {experiment} --reason WHY")


def _why(decision: Decision, overrides: Sequence[OverrideView]) -> list[str]:
    own = next((row for row in overrides if row.decision == decision.id), None)
    if decision.kind is DecisionKind.HUMAN:
        evidence = "nothing" if own is None or own.evidence is None else own.evidence
        parts = [f"{decision.actor}: {decision.reason}", f"The evidence says {evidence}"]
        return [*parts, f"Never ran: {joined(decision.never_ran)}"] if decision.never_ran else parts
    if decision.kind is DecisionKind.CONDITION and decision.actor != SERVICE_ACTOR:
        parts = [f"{decision.actor}: {decision.reason or 'gave no reason'}"]
        parts += [f"Waived: {joined(decision.waives)}"] if decision.waives else []
        return [*parts, f"The evidence says {own.evidence}"] if own and own.evidence else parts
    if decision.cause is not None:
        look = f"Look at {'; '.join(decision.cause.look)}" if decision.cause.look else ""
        return [decision.cause.told(), *([look] if look else [])]
    return [decision.reason] if decision.kind is DecisionKind.CONDITION and decision.reason else []
