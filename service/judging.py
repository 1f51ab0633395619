"""What follows when a run has ended? Assess, decide, record, act.

`assess` reads what the database holds of the run and judges it, outside any transaction that
writes, since a long run takes a while. `conclude` then records and acts under the experiment's
lock; it refuses when another decision came between, and the caller assesses again. The words
`judge` and `decide` are `gonogo.judge`'s: nothing here has an opinion.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.decision import Decision, Verdict
from gonogo.contract.finding import Finding
from gonogo.contract.lifecycle import ExperimentState, RunState
from gonogo.contract.order import Order, ResumePoint, RunReason
from gonogo.contract.outcome import Detector, Outcome, OutcomeClass
from gonogo.contract.records import ExitRecord, ModelRecord, Preflight
from gonogo.judge.conditions import open_for, settle
from gonogo.judge.decide import Action, Attempt, build_attempt, decide
from gonogo.judge.facts import build_facts
from gonogo.judge.history import with_history
from gonogo.judge.record import build_run_record
from gonogo.judge.rules import build_rules
from gonogo.judge.seal import build_decision
from gonogo.judge.verdict import judge
from service.actions import act
from service.db.schema import (
    AssessmentRow,
    ExperimentRow,
    FindingRow,
    HeartbeatRow,
    RunRow,
)
from service.decisions import load_conditions, record_conditions, record_decision
from service.lifecycle import Deed, load_experiment, load_run, lock_run, record_event
from service.progress import load_resume_points, resolved_of
from service.telemetry import stored_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What an ended run came to by itself."""

    run: str
    decision_seq: int
    """The experiment's decisions that were known; the conclusion holds for these only."""
    rules: dict[str, Any]
    facts: dict[str, Any]
    attempt: Attempt
    resume: dict[str, ResumePoint]


def find_unjudged(session: Session) -> list[str]:
    """Return the ended runs whose every promised byte and finding is here, oldest end first."""
    query = select(RunRow).where(RunRow.state == RunState.ENDED.value, RunRow.judged.is_(False))
    rows = session.scalars(query.order_by(RunRow.ended_at)).all()
    return [row.id for row in rows if is_complete(session, row)]


def is_complete(session: Session, run: RunRow) -> bool:
    """Say whether everything that the end promised has arrived."""
    have = stored_bytes(session, run.id)
    if any(have.get(rank, 0) < size for rank, size in run.sizes.items()):
        return False
    query = select(func.count()).select_from(FindingRow).where(FindingRow.run == run.id)
    return session.scalars(query).one() >= run.findings_expected


def assess(session: Session, run_id: str) -> Assessment:
    """Judge an ended run by itself, from the database alone."""
    run = load_run(session, run_id)
    experiment = load_experiment(session, run.experiment)
    order = Order.model_validate(run.order) if run.order else None
    conditions = open_for(load_conditions(session, experiment.id), run.phase)
    rules = build_rules(order, conditions)
    record = build_run_record(
        order,
        load_lines(session, run),
        ExitRecord.model_validate(run.exit) if run.exit else None,
        None,
        Preflight.model_validate(run.preflight) if run.preflight else None,
        ModelRecord.model_validate(run.model) if run.model else None,
        load_findings(session, run_id),
    )
    facts = build_facts(record, rules)
    outcome = Outcome.model_validate(run.outcome)
    restarts = outcome.klass in (OutcomeClass.INFRA, OutcomeClass.OPERATOR)
    passed = outcome.klass is OutcomeClass.SUCCESS
    resume = load_resume_points(session, experiment, run.phase) if restarts or passed else {}
    point = resume.get(run.phase) if restarts else None
    attempt = build_attempt(
        run.id,
        RunReason(run.reason),
        facts,
        judge(facts, rules),
        launched=run.started_at is not None,
        started_at=run.started_at,
        durable_step=point.step if point else 0,
        change=run.change,
    )
    return Assessment(
        run=run.id,
        decision_seq=experiment.decision_seq,
        rules=rules,
        facts=facts,
        attempt=attempt,
        resume=resume,
    )


def load_lines(session: Session, run: RunRow) -> dict[int, list[str]]:
    """Return rank → its stored lines; a rank whose file was empty has none."""
    lines: dict[int, list[str]] = {int(rank): [] for rank in run.sizes}
    query = select(HeartbeatRow.rank, HeartbeatRow.line).where(HeartbeatRow.run == run.id)
    for rank, line in session.execute(query.order_by(HeartbeatRow.n)):
        lines.setdefault(rank, []).append(line)
    return lines


def load_findings(session: Session, run: str) -> list[Finding]:
    """Return the findings of a run in their order."""
    query = select(FindingRow.document).where(FindingRow.run == run).order_by(FindingRow.n)
    return [Finding.model_validate_json(document) for document in session.scalars(query)]


def conclude(deed: Deed, assessment: Assessment) -> list[Decision] | None:
    """Record what the assessment leads to and act on it; return the decisions made.

    None: something else was decided in between; assess again.
    """
    experiment, run = lock_run(deed, assessment.run)
    if run.judged:
        return []
    if experiment.decision_seq != assessment.decision_seq:
        return None
    run.judged = True
    run.verdict = assessment.attempt.verdict.value if assessment.attempt.verdict else None
    _store(deed.session, assessment)
    if experiment.state == ExperimentState.FINISHED:
        return []
    attempts = load_attempts(deed.session, experiment.id, run.phase)
    plan = resolved_of(experiment).parsed()
    made: list[Decision] = []
    action = decide(plan, run.phase, attempts, now=deed.now)
    if action.record:
        made = _record(deed, experiment, run, action, assessment)
        conditions = load_conditions(deed.session, experiment.id)
        action = decide(plan, run.phase, attempts, now=deed.now, conditions=conditions)
    record_event(
        deed,
        experiment,
        "run.judged",
        run=run.id,
        phase=run.phase,
        verdict=run.verdict,
        next=action.kind.value,
        text=action.text,
    )
    return made + act(deed, experiment, run.phase, action, assessment.resume, run.outcome)


def _record(
    deed: Deed, experiment: ExperimentRow, run: RunRow, action: Action, assessment: Assessment
) -> list[Decision]:
    """Record the decision about a phase, and the one about conditions that its run met."""
    rules, facts = load_assessed(deed.session, action.about or run.id)
    facts = with_history(facts, action.history)
    decision = record_decision(
        deed,
        experiment,
        build_decision,
        phase=run.phase,
        run=action.about or run.id,
        supersede=True,
        judgement=judge(facts, rules),
        rules=rules,
        facts=facts,
        reason=action.text,
    )
    if action.about == run.id:
        run.verdict = decision.verdict.value if decision.verdict else None
    made = [decision]
    if assessment.attempt.outcome.klass is OutcomeClass.SUCCESS:
        waiting = open_for(load_conditions(deed.session, experiment.id), run.phase)
        settled = settle(waiting, assessment.facts, assessment.rules)
        if settled:
            conditions = [condition for condition, _ in settled]
            made.append(
                record_conditions(
                    deed,
                    experiment,
                    conditions,
                    phase=run.phase,
                    run=run.id,
                    criteria=[result for _, result in settled],
                    reason="met: " + ", ".join(condition.id for condition in conditions),
                )
            )
    return made


def load_assessed(session: Session, run: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rules and facts of an assessed run."""
    row = session.get_one(AssessmentRow, run)
    return json.loads(row.rules), json.loads(row.facts)


def _store(session: Session, assessment: Assessment) -> None:
    attempt = asdict(assessment.attempt)
    attempt["outcome"] = assessment.attempt.outcome.model_dump(mode="json")
    session.merge(
        AssessmentRow(
            run=assessment.run,
            attempt=attempt,
            rules=canonical_bytes(assessment.rules).decode(),
            facts=canonical_bytes(assessment.facts).decode(),
        )
    )
    session.flush()


def load_attempts(session: Session, experiment: str, phase: str) -> list[Attempt]:
    """Return the assessed runs of a phase in the order of their start."""
    query = (
        select(AssessmentRow.attempt)
        .join(RunRow, RunRow.id == AssessmentRow.run)
        .where(RunRow.experiment == experiment, RunRow.phase == phase)
        .order_by(RunRow.attempt)
    )
    return [_attempt(document) for document in session.scalars(query)]


def _attempt(document: dict[str, Any]) -> Attempt:
    return Attempt(
        **{
            **document,
            "reason": RunReason(document["reason"]),
            "outcome": Outcome.model_validate(document["outcome"]),
            "verdict": Verdict(document["verdict"]) if document["verdict"] else None,
            "detector": Detector(document["detector"]) if document["detector"] else None,
        }
    )
