"""Recording decisions: sealed into the experiment's chain, with an alert, once.

After the commit every service writes the files (`GONOGO_HOME/decisions/{id}.json`) that its home
lacks.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from sqlalchemy import delete
from sqlalchemy.orm import Session

from gonogo.contract.api import AlertType
from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.decision import Condition, CriterionResult, Decision, DecisionKind, Verdict
from gonogo.contract.ids import Kind, new_id
from gonogo.contract.rules import OpenCondition
from gonogo.judge.gate.conditions import conditions_of, experiment_verdict
from gonogo.ledger.recorded import RecordedDecision, parse_decision
from gonogo.ledger.seal import SERVICE_ACTOR, Entry, Place, append
from gonogo.ledger.sign import SigningKey
from gonogo.rundir import save_json
from service.db.schema import ConditionRow, DecisionRow, ExperimentRow, RunRow
from service.db.store import Topic, ring
from service.experiments.lifecycle import Deed, decision_text, queue_alert, record_event
from service.experiments.overview import load_decided
from service.instants import stamp
from service.queries.experiments import (
    load_chain,
    load_decisions,
    load_documents,
    load_ids,
    phases_of,
)

SIGNING_KEY = "signing_key"
"""Where a session carries the home's key (`Store`)."""


def record_decision(
    deed: Deed,
    experiment: ExperimentRow,
    entry: Entry,
    *,
    phase: str | None,
    run: str | None,
    supersede: bool = False,
) -> RecordedDecision:
    """Append a decision to its experiment's chain, signed by the home, and return it."""
    key: SigningKey = deed.session.info[SIGNING_KEY]
    earlier = load_chain(deed.session, experiment.id)
    about = [
        row.id for row in earlier if row.phase == phase and row.kind is not DecisionKind.CONDITION
    ]
    experiment.decision_seq += 1
    place = Place(
        id=new_id(Kind.DECISION),
        seq=experiment.decision_seq,
        experiment=experiment.id,
        phase=phase,
        run=run,
        at=stamp(deed.now),
        prev_hash=earlier[-1].hash if earlier else None,
        supersedes=about[-1] if supersede and about else None,
    )
    recorded = append(entry, place, key)
    decision = recorded.decision
    deed.session.add(
        DecisionRow(
            id=decision.id,
            experiment=experiment.id,
            seq=decision.seq,
            phase=phase,
            run=run,
            kind=decision.kind,
            verdict=decision.verdict,
            hash=decision.hash,
            at=deed.now,
            document=canonical_bytes(recorded.document).decode(),
            cause=decision.cause,
        )
    )
    deed.session.flush()
    ring(deed.session, Topic.DECIDED)
    _tell(deed, experiment, decision)
    _show_conditions(deed, experiment)
    return recorded


def _tell(deed: Deed, experiment: ExperimentRow, decision: Decision) -> None:
    record_event(
        deed,
        experiment,
        "decision.made",
        run=deed.session.get(RunRow, decision.run) if decision.run else None,
        phase=decision.phase,
        decision=decision.id,
        kind=decision.kind.value,
        by_hand=decision.by_hand,
        verdict=decision.verdict.value if decision.verdict else None,
        reason=decision.reason,
        seq=decision.seq,
        hash=decision.hash,
        key_id=decision.key_id,
    )
    queue_alert(
        deed,
        experiment,
        AlertType.DECISION_MADE,
        decision_text(
            experiment.id,
            experiment.name,
            decision,
            load_decided(deed.session, [experiment.id])[experiment.id].overrides,
        ),
        phase=decision.phase,
        decision=decision.model_dump(mode="json", exclude={"facts", "rules"}),
    )


def _show_conditions(deed: Deed, experiment: ExperimentRow) -> None:
    deed.session.execute(delete(ConditionRow).where(ConditionRow.experiment == experiment.id))
    rows = conditions_of(load_decisions(deed.session, experiment.id))
    deed.session.add_all(
        ConditionRow(
            experiment=experiment.id,
            id=row.condition.id,
            phase=row.condition.id.partition(":")[0],
            n=number,
            state=row.condition.state,
            document=row.condition.wire(),
        )
        for number, row in enumerate(rows)
    )
    deed.session.flush()


def load_conditions(session: Session, experiment: str) -> list[OpenCondition]:
    """Return every condition of an experiment in its present state."""
    return conditions_of(load_decisions(session, experiment))


def record_conditions(
    deed: Deed,
    experiment: ExperimentRow,
    conditions: Iterable[Condition],
    *,
    phase: str | None,
    run: str | None = None,
    criteria: Sequence[CriterionResult] = (),
    actor: str = SERVICE_ACTOR,
    reason: str | None = None,
) -> RecordedDecision:
    """Record that conditions are met, missed or waived, as `conditions` now say."""
    changed = {condition.id: condition for condition in conditions}
    known = {
        row.condition.id: row.condition for row in load_conditions(deed.session, experiment.id)
    }
    verdict = total_verdict(deed.session, experiment, {**known, **changed}.values())
    entry = Entry(
        kind=DecisionKind.CONDITION,
        verdict=verdict,
        criteria=list(criteria),
        conditions=list(changed.values()),
        actor=actor,
        reason=reason,
    )
    return record_decision(deed, experiment, entry, phase=phase, run=run)


def total_verdict(
    session: Session, experiment: ExperimentRow, conditions: Iterable[Condition] | None = None
) -> Verdict | None:
    """Return the verdict across an experiment's phases and conditions (default: as recorded)."""
    if conditions is None:
        conditions = [row.condition for row in load_conditions(session, experiment.id)]
    phases = {phase.name: phase.verdict for phase in phases_of(session, experiment.id)}
    return experiment_verdict(phases, conditions)


def save_missing(folder: Path, session: Session) -> int:
    """Write every decision's file that is missing; return how many they were."""
    present = {path.stem for path in folder.glob("dec_*.json")} if folder.is_dir() else set()
    missing = load_ids(session) - present
    for decision in sorted(missing):
        recorded = parse_decision(load_documents(session, [decision])[decision])
        # by way of its canonical form: the same bytes for every writer and time
        save_json(folder / f"{decision}.json", json.loads(canonical_bytes(recorded.document)))
    return len(missing)
