"""What the decisions of experiments come to, and why a run did not end in GO."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from gonogo.contract.api import OverrideView
from gonogo.contract.decision import Cause, Condition, Decision, DecisionKind
from gonogo.contract.facts import Facts
from gonogo.contract.lifecycle import RunState
from gonogo.contract.outcome import OutcomeClass
from gonogo.contract.records import ExitRecord
from gonogo.judge.follow_up.explanation import TORCHRUN_LOG, cause_of, describe_cause, last_line
from gonogo.judge.follow_up.summary import Said, overrides_of
from gonogo.judge.gate.conditions import all_met
from gonogo.judge.gate.verdict import Judgement
from gonogo.ledger.recorded import parse_decision
from gonogo.rundir import TAIL_BYTES
from service.db.schema import DecisionRow, RunRow
from service.db.store import Session
from service.evidence.files import load_log
from service.queries.experiments import load_documents, load_outlines
from service.queries.runs import load_findings

_TRAINS = (RunState.RUNNING, RunState.HALTING)


@dataclass(slots=True, kw_only=True)
class Decided:
    """What the decisions of one experiment come to."""

    overrides: list[OverrideView] = field(default_factory=list)
    judged: list[DecisionRow] = field(default_factory=list)
    """The last automatic decision of each phase, in their order."""
    last: str | None = None


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


def _light(row: DecisionRow) -> Said:
    return Said(id=row.id, kind=row.kind, phase=row.phase, verdict=row.verdict)


def _judged(rows: Sequence[DecisionRow]) -> list[DecisionRow]:
    last: dict[str, DecisionRow] = {}
    for row in rows:
        if row.kind == DecisionKind.AUTO and row.phase is not None:
            last.pop(row.phase, None)
            last[row.phase] = row
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
    bad = [row for row in judged if row.cause and not all_met(left.get(row.phase or "", ()))]
    latest = max((row.at for row in judged), default=float("-inf"))
    ended = [run for run in runs if run.outcome and (run.ended_at or 0.0) > latest]
    if ended and ended[-1].phase == runs[-1].phase != tried:
        outcome = ended[-1].outcome
        if outcome is not None and outcome.klass is not OutcomeClass.SUCCESS:
            return Cause(text=f"{ended[-1].phase}: {cause_of([], outcome, [])}")
    if not bad or bad[-1].cause is None:
        return None
    return bad[-1].cause.model_copy(update={"text": f"{bad[-1].phase}: {bad[-1].cause.text}"})


_MOST_LINES = 100_000
"""No bound of its own: of the log's end that counts, however many ranks wrote into it."""


def load_cause(session: Session, run: RunRow, judgement: Judgement, facts: Facts) -> Cause | None:
    """Return why the verdict on an ended run is not GO; None for a GO."""
    exits = ExitRecord.model_validate(run.exit).ranks if run.exit else {}
    return describe_cause(
        judgement.verdict,
        load_findings(session, run.id),
        run.outcome,
        judgement.criteria,
        diagnosis=judgement.diagnosis,
        exits=exits,
        read_tail=lambda name: _load_tail(session, run.id, name),
        ranks_per_log=_ranks_per_log(run),
    )


def load_last_line(session: Session, run: RunRow, rank: int) -> tuple[str, str] | None:
    """Return the log that holds what a rank has written so far and its last line, if there is
    one."""
    own = f"rank{rank}.log"
    line = last_line(_load_end(session, run.id, rank))
    if line is None and (ranks := _ranks_per_log(run)):  # its ranks on a node write into one
        shared = rank - rank % ranks
        own, line = f"rank{shared}.log", last_line(_load_end(session, run.id, shared), rank)
    return None if line is None else (own, line)


def _ranks_per_log(run: RunRow) -> int:
    """Return how many ranks of a command write into one log; 0 without a command."""
    order = run.order or {}
    return int(order["world_size"]) // int(order.get("nodes") or 1) if order.get("command") else 0


def _load_tail(session: Session, run: str, name: str) -> str:
    rank = None if name == TORCHRUN_LOG else int(name.removeprefix("rank").removesuffix(".log"))
    return _load_end(session, run, rank)


def _load_end(session: Session, run: str, rank: int | None) -> str:
    text = load_log(session, run, rank, _MOST_LINES, 0).text
    return text.encode()[-TAIL_BYTES:].decode(errors="replace")
