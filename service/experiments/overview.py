"""Summaries of the decisions of experiments, mostly from columns: whole documents are large."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from gonogo.contract.api import OverrideView
from gonogo.contract.decision import Cause, Condition, Decision, DecisionKind
from gonogo.contract.lifecycle import RunState
from gonogo.contract.outcome import OutcomeClass
from gonogo.judge.follow_up.explanation import cause_of
from gonogo.judge.follow_up.summary import Said, overrides_of
from gonogo.judge.gate.conditions import all_met
from gonogo.ledger.recorded import parse_decision
from service.db.schema import RunRow
from service.db.store import Session
from service.queries.decisions import Outline, load_documents, load_outlines

_TRAINS = (RunState.RUNNING, RunState.HALTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The last automatic decision about a phase."""

    phase: str
    decision: str
    at: float
    cause: Cause | None


@dataclass(slots=True, kw_only=True)
class Decided:
    """What the decisions of one experiment come to."""

    overrides: list[OverrideView] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    """The last automatic decision of each phase, in their order."""
    last: str | None = None
    """Id of the newest decision."""


def load_decided(session: Session, experiments: Sequence[str]) -> dict[str, Decided]:
    """Return what the decisions of each experiment come to."""
    rows = load_outlines(session, experiments)
    by_hand = load_documents(session, [row.id for row in rows if row.kind != DecisionKind.AUTO])
    wholes = {name: parse_decision(text).decision for name, text in by_hand.items()}
    found: dict[str, Decided] = {name: Decided() for name in experiments}
    for name, together in groupby(rows, key=attrgetter("experiment")):
        one, own = found[name], list(together)
        one.overrides = overrides_of(wholes.get(row.id) or _light(row) for row in own)
        one.judged = _judged(own)
        one.last = own[-1].id
    return found


def last_judged(decisions: Sequence[Decision], run: str) -> Decision | None:
    """Return the last decision about a run that looked at criteria, if there is one."""
    return next((row for row in reversed(decisions) if row.run == run and row.criteria), None)


def _light(row: Outline) -> Said:
    return Said(
        id=row.id,
        kind=row.kind,
        phase=row.phase,
        verdict=row.verdict,
    )


def _judged(rows: Sequence[Outline]) -> list[Judged]:
    last: dict[str, Judged] = {}
    for row in rows:
        if row.kind == DecisionKind.AUTO and row.phase is not None:
            last.pop(row.phase, None)
            last[row.phase] = Judged(phase=row.phase, decision=row.id, at=row.at, cause=row.cause)
    return list(last.values())


def standing_cause(
    decided: Decided, runs: Sequence[RunRow], conditions: Sequence[Condition]
) -> Cause | None:
    """Return what the evidence says against an experiment, with its phase; None: nothing.

    That is the cause of the last phase whose decision is not GO and that left something unmet, or
    the failure of a newer run. While a phase trains, its earlier attempts do not count.
    """
    tried = runs[-1].phase if runs and runs[-1].state in _TRAINS else None
    judged = [row for row in decided.judged if row.phase != tried]
    left: dict[str, list[Condition]] = {}
    for condition in conditions:
        left.setdefault(condition.id.partition(":")[0], []).append(condition)
    bad = [row for row in judged if row.cause and not all_met(left.get(row.phase, ()))]
    latest = max((row.at for row in judged), default=float("-inf"))
    ended = [run for run in runs if run.outcome and (run.ended_at or 0.0) > latest]
    if ended and ended[-1].phase == runs[-1].phase != tried:
        outcome = ended[-1].outcome
        if outcome is not None and outcome.klass is not OutcomeClass.SUCCESS:
            return Cause(text=f"{ended[-1].phase}: {cause_of([], outcome, [])}")
    if not bad or bad[-1].cause is None:
        return None
    return bad[-1].cause.model_copy(update={"text": f"{bad[-1].phase}: {bad[-1].cause.text}"})
