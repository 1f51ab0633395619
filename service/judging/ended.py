"""What follows when a run has ended: assess, decide, record, act.

`prepare` writes the bytes that were shipped of the run into a folder, a judge's process turns them
into facts, and `assess` judges those, all outside of writing transactions. `conclude` records and
acts under the experiment's lock. If another decision came between, the caller prepares again.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.canonical import canonical_bytes, wire_line
from gonogo.contract.decision import Verdict
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Severity
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.order import OpenCondition, Order, ResumePoint, Rules
from gonogo.contract.outcome import Outcome, OutcomeClass, code_of
from gonogo.contract.records import ExitRecord, ModelRecord, Preflight
from gonogo.judge.follow_up.decide import Action, Attempt, build_attempt, decide
from gonogo.judge.gate.added_criteria import with_history
from gonogo.judge.gate.conditions import open_for
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import UNJUDGED, judge, settle
from gonogo.ledger.seal import judged
from gonogo.rundir import RunDir, save_json
from service.db.columns import is_by_service
from service.db.schema import AssessmentRow, ExperimentRow, PieceRow, RunRow
from service.evidence.files import (
    load_bytes,
    load_digests,
    load_records,
    promised_files,
    stored_bytes,
)
from service.experiments.advance import active_phase, resolved_of
from service.experiments.checkpoints import checkpoints_before, load_resume_points, load_weights
from service.experiments.decisions import act, load_conditions, record_conditions, record_decision
from service.experiments.lifecycle import Deed, lock_run, record_event
from service.experiments.state import load_cause
from service.queries.experiments import load_experiment, runs_of
from service.queries.runs import (
    count_findings,
    load_attempts,
    load_findings,
    load_run,
    load_unjudged,
)

_log = logging.getLogger(__name__)


def save_run(session: Session, run: RunRow, folder: Path) -> None:
    """Write the directory of a run as far as the database holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    promised = promised_files(run)
    names = {
        *promised,
        *(name for name in stored_bytes(session, run.id) if name.endswith(".jsonl")),
    }
    if count_findings(session, run.id):
        names.add("findings.jsonl")
    for name in sorted(names):
        with (folder / name).open("wb") as stream:
            stream.writelines(_bytes_of(session, run, name, promised.get(name)))
    records = load_records(session, run.id)
    for path, content in records.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    _fill_in(run, records, RunDir(folder))


def _bytes_of(session: Session, run: RunRow, name: str, most: int | None) -> Iterable[bytes]:
    query = select(PieceRow.start).where(PieceRow.run == run.id, PieceRow.file == name)
    first = session.scalars(query.order_by(PieceRow.start).limit(1)).first()
    if first == 0:
        return load_bytes(session, run.id, name, most)
    if name != "findings.jsonl":
        return ()
    return (wire_line(finding.wire()) for finding in load_findings(session, run.id))


def _fill_in(run: RunRow, records: dict[str, bytes], run_dir: RunDir) -> None:
    """Write what was not shipped, or is not the order that was given out, from the run's row."""
    if run.order is not None:
        given = Order.model_validate(run.order)
        shipped = _parsed(Order, records.get("order.json"))
        if shipped is None or shipped.document() != given.document():
            _log.error("%s: order.json is not what was ordered", run.id, extra={"action": "order"})
            save_json(run_dir.order, given.document())
    unread = _parsed(ExitRecord, records.get("exit.json")) is None
    if run.exit is not None and (is_by_service(run.exit) or unread):
        save_json(run_dir.exit, ExitRecord.model_validate(run.exit).wire())
    if run.preflight is not None and "preflight/preflight.json" not in records:
        save_json(run_dir.preflight, Preflight.model_validate(run.preflight).wire())
    if run.model is not None and "model.json" not in records:
        save_json(run_dir.model, ModelRecord.model_validate(run.model).wire())


_Model = TypeVar("_Model", bound=BaseModel)


def _parsed(kind: type[_Model], content: bytes | None) -> _Model | None:
    try:
        return None if content is None else kind.model_validate_json(content)
    except ValidationError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An ended run whose directory lies ready for the judge."""

    run: RunRow
    decision_seq: int
    rules: Rules
    durable_step: int
    resume: dict[str, ResumePoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What an ended run came to by itself; valid while the decisions stay as they were."""

    run: str
    decision_seq: int
    rules: Rules
    facts: Facts
    attempt: Attempt
    resume: dict[str, ResumePoint]


def find_unjudged(session: Session, failing: Collection[str] = ()) -> list[str]:
    """Return the ended runs that can be judged, oldest first, one attempt of a phase at a time."""
    ready = [row for row in load_unjudged(session) if row.given_up or is_complete(session, row)]
    first: dict[tuple[str, str], int] = {}
    for row in ready:
        if row.id not in failing:
            phase = row.experiment, row.phase
            first[phase] = min(row.attempt, first.get(phase, row.attempt))
    return [
        row.id
        for row in ready
        if row.id in failing or row.attempt == first[row.experiment, row.phase]
    ]


def is_complete(session: Session, run: RunRow) -> bool:
    """Say whether every byte, record and finding that the end promised has arrived."""
    have, records = stored_bytes(session, run.id), load_digests(session, run.id)
    promised = {} if run.promised is None else run.promised.records
    return (
        all(have.get(name, 0) >= size for name, size in promised_files(run).items())
        and all(records.get(path) == sha256 for path, sha256 in promised.items())
        and count_findings(session, run.id) >= run.findings_expected
    )


def prepare(session: Session, run_id: str, folder: Path) -> Case:
    """Write an ended run's directory from the database, and return what it is judged by."""
    run = load_run(session, run_id)
    experiment = load_experiment(session, run.experiment)
    order = Order.model_validate(run.order) if run.order else None
    conditions = open_for(load_conditions(session, experiment.id), run.phase)
    outcome = run.outcome
    if outcome is None:
        raise ValueError(f"run {run.id} has not ended")
    restarts = outcome.klass in (OutcomeClass.INFRA, OutcomeClass.OPERATOR)
    resume = {}
    if restarts or outcome.klass is OutcomeClass.SUCCESS:
        resume = load_resume_points(
            session, experiment, run.phase, made_by=lambda row: row.attempt <= run.attempt
        )
    point = resume.get(run.phase) if restarts else None
    save_run(session, run, folder)
    return Case(
        run=run,
        decision_seq=experiment.decision_seq,
        rules=build_rules(order, conditions),
        durable_step=point.step if point else 0,
        resume=resume,
    )


def assess(session: Session, case: Case, facts: Facts, now: float) -> Assessment:
    """Judge an ended run by itself, from the facts of its directory."""
    run = case.run
    attempt = build_attempt(
        run.id,
        run.reason,
        facts,
        judge(facts, case.rules),
        launched=run.started_at is not None,
        started_at=run.started_at,
        durable_step=case.durable_step,
        change=run.change,
    )
    # A run that turns out to have failed is not resumed.
    told = run.outcome is not None and attempt.outcome.code is run.outcome.code
    resume = case.resume if told else {}
    return Assessment(
        run=run.id,
        decision_seq=case.decision_seq,
        rules=case.rules,
        facts=facts,
        attempt=attempt,
        resume=_with_rerun(session, run, attempt, resume, now) if attempt.verdict else resume,
    )


def _with_rerun(
    session: Session, run: RunRow, attempt: Attempt, resume: dict[str, ResumePoint], now: float
) -> dict[str, ResumePoint]:
    experiment = load_experiment(session, run.experiment)
    plan = resolved_of(experiment).parsed()
    attempts = [*load_attempts(session, run.experiment, run.phase), attempt]
    conditions, carried = load_conditions(session, experiment.id), run.carried or []
    action = decide(plan, run.phase, attempts, now=now, conditions=conditions, carried=carried)
    if action.resume_of is None:
        return resume
    before = checkpoints_before(session, action.resume_of, action.before)
    point = next(before, None) if action.resume else None
    if point is None:
        point = load_weights(session, experiment, plan.phase(run.phase).init_from)
    others = {name: row for name, row in resume.items() if name != run.phase}
    return others if point is None else {**others, run.phase: point}


def conclude(deed: Deed, assessment: Assessment) -> bool:
    """Record what the assessment leads to and act on it; False: it is outdated, assess again."""
    experiment, run = lock_run(deed, assessment.run)
    if run.judged:
        return True
    if experiment.decision_seq != assessment.decision_seq or run.outcome is None:
        return False
    run.judged, run.lost = True, False
    run.verdict = assessment.attempt.verdict
    run.outcome = _outcome_found(run.outcome, assessment)
    _store(deed.session, assessment)
    phase = active_phase(deed, experiment)
    over = experiment.state == ExperimentState.FINISHED
    later = runs_of(deed.session, experiment.id, run.phase)[-1].attempt > run.attempt
    if over or later or phase is None or phase.name != run.phase:
        return True  # what happened since stands
    follows = partial(
        decide,
        resolved_of(experiment).parsed(),
        run.phase,
        _load_known(deed.session, run),
        now=deed.now,
        carried=run.carried or [],
    )
    action = follows(conditions=load_conditions(deed.session, experiment.id))
    if action.record:
        _record(deed, experiment, run, action, assessment, follows)
        action = follows(conditions=load_conditions(deed.session, experiment.id))
    record_event(
        deed,
        experiment,
        "run.judged",
        run=run,
        verdict=run.verdict,
        next=action.kind.value,
        text=action.text,
    )
    act(deed, experiment, run.phase, action, assessment.resume, run.outcome)
    return True


def _load_known(session: Session, run: RunRow) -> list[Attempt]:
    """Return what the ended runs of a phase came to; the last is the one that is judged."""
    known = load_attempts(session, run.experiment, run.phase, taken_over=True)
    told = {row.run: row for row in known}
    found = []
    for row in runs_of(session, run.experiment, run.phase):
        attempt = told.get(row.id)
        if row.id != run.id and row.outcome is not None and not row.judged:
            attempt = attempt or Attempt(
                run=row.id,
                reason=row.reason,
                outcome=row.outcome,
                verdict=Verdict.INCONCLUSIVE,
                change=row.change,
            )
            attempt = replace(attempt, failed=(*attempt.failed, UNJUDGED))
        if attempt is not None:
            found.append(attempt)
    return found


def _outcome_found(told: Outcome, assessment: Assessment) -> Outcome:
    """Return why a run ended: the failure that its lines show, not a later accident."""
    found = assessment.attempt.outcome
    halts = (row for row in assessment.facts.findings if row.severity is Severity.HALT)
    halt = next((row for row in halts if code_of(row.detector) is found.code), None)
    if found.code is told.code or halt is None:
        return told
    at = "" if halt.step is None else f" at step {halt.step}"
    text = f"{halt.detector} had found that{at}; then {told.code}"
    return found.model_copy(update={"text": f"{text}: {told.text}" if told.text else text})


def _record(
    deed: Deed,
    experiment: ExperimentRow,
    run: RunRow,
    action: Action,
    assessment: Assessment,
    follows: Callable[..., Action],
) -> None:
    """Record the decision about a phase, and the one about conditions that its run met."""
    about = load_run(deed.session, action.about or run.id)
    rules, facts = load_assessed(deed.session, about.id)
    facts = with_history(facts, action.history)
    judgement = judge(facts, rules)
    others = [
        row
        for row in load_conditions(deed.session, experiment.id)
        if not row.condition.id.startswith(f"{run.phase}:")
    ]
    waiting = open_for(others, run.phase)
    met = settle(waiting, assessment.facts, assessment.rules, judgement.verdict)
    changed = {condition.id: condition for condition, _ in met}
    after = [
        row.model_copy(update={"condition": changed.get(row.condition.id, row.condition)})
        for row in others
    ]
    after += [OpenCondition(condition=row, criterion=None) for row in judgement.conditions]
    cause = load_cause(deed.session, about, judgement, facts)
    decision = record_decision(
        deed,
        experiment,
        judged(judgement, rules, facts, reason=follows(conditions=after).text, cause=cause),
        phase=run.phase,
        run=about.id,
        supersede=True,
    )
    if action.about == run.id:
        run.verdict = decision.verdict
    phase = active_phase(deed, experiment)
    if phase is not None and action.verdict is not None:
        phase.verdict = action.verdict  # the decision about conditions needs it
    if met:
        record_conditions(
            deed,
            experiment,
            changed.values(),
            phase=run.phase,
            run=run.id,
            criteria=[result for _, result in met],
            reason="met: " + ", ".join(changed),
        )


def load_assessed(session: Session, run: str) -> tuple[Rules, Facts]:
    """Return the rules and facts of an assessed run."""
    row = session.get_one(AssessmentRow, run)
    return Rules.model_validate_json(row.rules), Facts.model_validate_json(row.facts)


def _store(session: Session, assessment: Assessment) -> None:
    session.merge(
        AssessmentRow(
            run=assessment.run,
            attempt=assessment.attempt,
            rules=canonical_bytes(assessment.rules.wire()).decode(),
            facts=canonical_bytes(assessment.facts.wire()).decode(),
        )
    )
    session.flush()
