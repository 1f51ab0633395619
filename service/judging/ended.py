"""What follows when a run has ended? Assess, decide, record, act.

`prepare` writes what the database holds of the run into a folder, a judge's process of its own
turns that into facts, `assess` says what they come to, `find_beginning` looks for the checkpoint
that a rerun would go on from: all of it outside any transaction that
writes, since a long run takes a while. `conclude` then records and acts under the experiment's
lock; it refuses when another decision came between, and the caller prepares again. The words
`judge` and `decide` are `gonogo.judge`'s: nothing here has an opinion.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.decision import Verdict
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Severity
from gonogo.contract.lifecycle import ExperimentState, RunState
from gonogo.contract.order import Order, ResumePoint, RunReason
from gonogo.contract.outcome import Outcome, OutcomeClass, OutcomeCode, code_of
from gonogo.contract.rules import OpenCondition, Rules
from gonogo.judge.course.action import Action, Attempt, build_attempt
from gonogo.judge.course.decide import decide
from gonogo.judge.gate.added import with_history
from gonogo.judge.gate.built_in import DRIFT
from gonogo.judge.gate.conditions import open_for
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import UNJUDGED, judge, settle
from gonogo.ledger.recorded import RecordedDecision
from gonogo.ledger.seal import judged
from service.db.schema import (
    AssessmentRow,
    ExperimentRow,
    RunRow,
)
from service.evidence.promised import has_records, promised_files, stored_bytes
from service.experiments.causes import load_cause
from service.experiments.consequences import act
from service.experiments.course import active_phase, resolved_of
from service.experiments.decisions import load_conditions, record_conditions, record_decision
from service.experiments.lifecycle import Deed, lock_run, record_event
from service.experiments.resume_points import (
    checkpoints_before,
    load_resume_points,
    load_weights,
)
from service.experiments.speeds import note_speed
from service.experiments.taints import is_of_unknown_code
from service.judging.materialise import save_run
from service.queries.experiments import load_experiment, runs_of
from service.queries.findings import count_findings
from service.queries.runs import load_attempts, load_run, load_unjudged


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An ended run whose directory lies ready for the judge."""

    run: str
    folder: Path
    decision_seq: int
    """The experiment's decisions that were known."""
    rules: Rules
    reason: RunReason
    ended_as: OutcomeCode
    launched: bool
    started_at: float | None
    durable_step: int
    change: dict[str, Any] | None
    resume: dict[str, ResumePoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What an ended run came to by itself."""

    run: str
    decision_seq: int
    """The experiment's decisions that were known; the conclusion holds for these only."""
    ended_as: OutcomeCode
    """Nor does it hold for another end: a run may be recalled meanwhile."""
    rules: Rules
    facts: Facts
    attempt: Attempt
    resume: dict[str, ResumePoint]


def find_unjudged(session: Session, failing: Collection[str] = ()) -> list[str]:
    """Return the ended runs of which everything promised is here, oldest end first.

    And those of which the rest is waited for no more: what is missing passes nothing. Of a phase
    one after the other: what a run had failed that was taken over counts for those after it.

    Args:
        session: for reading.
        failing: runs whose judgement fails again and again: they hold no other up.
    """
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
    have = stored_bytes(session, run.id)
    if any(have.get(name, 0) < size for name, size in promised_files(run).items()):
        return False
    if not has_records(session, run):
        return False
    return count_findings(session, run.id) >= run.findings_expected


def prepare(session: Session, run_id: str, folder: Path) -> Case:
    """Write an ended run's directory from the database alone, and say what it is judged by.

    Args:
        session: a reading transaction.
        run_id: an ended run.
        folder: where its directory is written.
    """
    run = load_run(session, run_id)
    experiment = load_experiment(session, run.experiment)
    order = Order.model_validate(run.order) if run.order else None
    conditions = open_for(load_conditions(session, experiment.id), run.phase)
    outcome = run.outcome
    if outcome is None:
        raise ValueError(f"run {run.id} has not ended")
    restarts = outcome.klass in (OutcomeClass.INFRA, OutcomeClass.OPERATOR)
    passed = outcome.klass is OutcomeClass.SUCCESS
    resume = {}
    if restarts or passed:  # of one taken over another has begun by now: what that left is its own
        resume = load_resume_points(
            session, experiment, run.phase, made_by=lambda row: row.attempt <= run.attempt
        )
    point = resume.get(run.phase) if restarts else None
    save_run(session, run, folder)
    return Case(
        run=run.id,
        folder=folder,
        decision_seq=experiment.decision_seq,
        rules=build_rules(order, conditions),
        reason=run.reason,
        ended_as=outcome.code,
        launched=run.started_at is not None,
        started_at=run.started_at,
        durable_step=point.step if point else 0,
        change=run.change,
        resume=resume,
    )


def assess(case: Case, facts: Facts) -> Assessment:
    """Judge an ended run by itself, from the facts of its directory."""
    judgement = judge(facts, case.rules)
    attempt = build_attempt(
        case.run,
        case.reason,
        facts,
        judgement,
        launched=case.launched,
        started_at=case.started_at,
        durable_step=case.durable_step,
        change=case.change,
    )
    return Assessment(
        run=case.run,
        decision_seq=case.decision_seq,
        ended_as=case.ended_as,
        rules=case.rules,
        facts=facts,
        attempt=attempt,
        # What is found to have failed goes on from nowhere, as what ended so at once.
        resume=case.resume if attempt.outcome.code is case.ended_as else {},
    )


def find_beginning(session: Session, assessment: Assessment, now: float) -> Assessment:
    """Return an assessment that knows the checkpoint a rerun would begin with, if one is next.

    Checkpoints are read whole to verify them, which takes long, so this is done before anything
    is concluded: what is next does not change meanwhile, or the conclusion is refused.

    Args:
        session: a reading transaction.
        assessment: of the run that has ended.
        now: Unix seconds.
    """
    run = load_run(session, assessment.run)
    if not assessment.attempt.verdict or run.judged:
        return assessment
    experiment = load_experiment(session, run.experiment)
    plan = resolved_of(experiment).parsed()
    attempts = [*load_attempts(session, run.experiment, run.phase), assessment.attempt]
    conditions, carried = load_conditions(session, experiment.id), run.carried or []
    action = decide(plan, run.phase, attempts, now=now, conditions=conditions, carried=carried)
    if action.resume_of is None:
        return assessment
    before = checkpoints_before(session, action.resume_of, action.before)
    point = next(before, None) if action.resume else None
    if point is None:
        point = load_weights(session, experiment, plan.phase(run.phase).init_from)
    others = {name: row for name, row in assessment.resume.items() if name != run.phase}
    found = others if point is None else {**others, run.phase: point}
    return replace(assessment, resume=found)


def conclude(
    deed: Deed, assessment: Assessment, failing: Collection[str] = ()
) -> list[RecordedDecision] | None:
    """Record what the assessment leads to and act on it; return the decisions made.

    None: something else was decided in between, or the run, or one of its phase before it, was
    recalled; assess again.

    Args:
        deed: the transaction.
        assessment: of the run that has ended.
        failing: as in `find_unjudged`.
    """
    experiment, run = lock_run(deed, assessment.run)
    if run.judged:
        return []
    if experiment.decision_seq != assessment.decision_seq:
        return None
    if run.outcome is None or run.outcome.code is not assessment.ended_as:
        return None
    if _comes_after(deed.session, run, failing):
        return None
    run.judged, run.lost = True, False
    run.verdict = assessment.attempt.verdict
    run.outcome = _outcome_found(run.outcome, assessment)
    _store(deed.session, assessment)
    note_speed(deed.session, run, assessment.facts)
    if experiment.state == ExperimentState.FINISHED:
        return []
    later = runs_of(deed.session, experiment.id, run.phase)[-1]
    if later.attempt > run.attempt:
        return []  # it was recalled: what it came to counts once the attempt after it has ended
    phase = active_phase(deed, experiment)
    if phase is None or phase.name != run.phase:
        return []  # it was recalled, and a person let its phase pass: what has passed since stands
    attempts = _load_known(deed.session, run)
    plan = resolved_of(experiment).parsed()
    made: list[RecordedDecision] = []
    carried = run.carried or []
    conditions = load_conditions(deed.session, experiment.id)

    def follows(conditions: Sequence[OpenCondition]) -> Action:
        return decide(
            plan,
            run.phase,
            attempts,
            now=deed.now,
            conditions=conditions,
            carried=carried,
        )

    action = follows(conditions)
    if action.record:
        conditions = _conditions_after(deed, experiment, run, action, assessment)
        reason = follows(conditions).text
        made = _record(deed, experiment, run, replace(action, text=reason), assessment)
        action = follows(load_conditions(deed.session, experiment.id))
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


def _comes_after(session: Session, run: RunRow, failing: Collection[str]) -> bool:
    """Say whether a run of the phase before this one is judged first, as `find_unjudged` says."""
    return run.id not in failing and any(
        row.state == RunState.ENDED
        and not row.judged
        and row.attempt < run.attempt
        and row.id not in failing
        and (row.given_up or is_complete(session, row))
        for row in runs_of(session, run.experiment, run.phase)
    )


def _load_known(session: Session, run: RunRow) -> list[Attempt]:
    """Return what the ended runs of a phase came to; the last is the one that is judged.

    What one of those before has trained, of which nobody knows of what code it was, may be another
    code's: who goes on from its checkpoint goes on with that. Nor does anybody know what one had
    failed that was taken over and cannot be judged, or not again since more was told of it.
    """
    known = load_attempts(session, run.experiment, run.phase, taken_over=True)
    told = {row.run: row for row in known}
    found = []
    for row in runs_of(session, run.experiment, run.phase):
        attempt = told.get(row.id)
        if row.id != run.id and row.outcome is not None and not row.judged:
            attempt = attempt or _unjudged(row, row.outcome)
            attempt = replace(attempt, failed=(*attempt.failed, UNJUDGED))
        if attempt is None:
            continue
        if row.id != run.id and is_of_unknown_code(session, row):
            attempt = replace(attempt, failed=(*attempt.failed, DRIFT))
        found.append(attempt)
    return found


def _unjudged(run: RunRow, outcome: Outcome) -> Attempt:
    return Attempt(
        run=run.id,
        reason=run.reason,
        outcome=outcome,
        verdict=Verdict.INCONCLUSIVE,
        change=run.change,
    )


def _outcome_found(told: Outcome, assessment: Assessment) -> Outcome:
    """Return why a run ended: not by an accident that came after its lines had shown it to fail."""
    found = assessment.attempt.outcome
    halts = (row for row in assessment.facts.findings if row.severity is Severity.HALT)
    halt = next((row for row in halts if code_of(row.detector) is found.code), None)
    if found.code is told.code or halt is None:
        return told
    at = "" if halt.step is None else f" at step {halt.step}"
    text = f"{halt.detector} had found that{at}; then {told.code}"
    return found.model_copy(update={"text": f"{text}: {told.text}" if told.text else text})


def _conditions_after(
    deed: Deed, experiment: ExperimentRow, run: RunRow, action: Action, assessment: Assessment
) -> list[OpenCondition]:
    """Return the conditions as they are once the decision stands, so that its reason is true.

    That is without those of the phase's decision before it, with its own, and as its run met them.
    """
    about = load_run(deed.session, action.about or run.id)
    rules, facts = load_assessed(deed.session, about.id)
    judgement = judge(with_history(facts, action.history), rules)
    kept = [
        row
        for row in load_conditions(deed.session, experiment.id)
        if not row.condition.id.startswith(f"{run.phase}:")
    ]
    waiting = open_for(kept, run.phase)
    found = settle(waiting, assessment.facts, assessment.rules, judgement.verdict)
    met = {condition.id: condition for condition, _ in found}
    return [
        *(
            row.model_copy(update={"condition": met.get(row.condition.id, row.condition)})
            for row in kept
        ),
        *(OpenCondition(condition=condition, criterion=None) for condition in judgement.conditions),
    ]


def _record(
    deed: Deed, experiment: ExperimentRow, run: RunRow, action: Action, assessment: Assessment
) -> list[RecordedDecision]:
    """Record the decision about a phase, and the one about conditions that its run met."""
    rules, facts = load_assessed(deed.session, action.about or run.id)
    facts = with_history(facts, action.history)
    judgement = judge(facts, rules)
    about = load_run(deed.session, action.about or run.id)
    cause = load_cause(deed.session, about, judgement, facts)
    decision = record_decision(
        deed,
        experiment,
        judged(judgement, rules, facts, reason=action.text, cause=cause),
        phase=run.phase,
        run=action.about or run.id,
        supersede=True,
    )
    if action.about == run.id:
        run.verdict = decision.verdict
    phase = active_phase(deed, experiment)
    if phase is not None and action.verdict is not None:
        phase.verdict = action.verdict  # what is said of conditions is said with it
    made = [decision]
    known = load_conditions(deed.session, experiment.id)
    waiting = open_for(known, run.phase)
    met = settle(waiting, assessment.facts, assessment.rules, judgement.verdict)
    if met:
        conditions = [condition for condition, _ in met]
        made.append(
            record_conditions(
                deed,
                experiment,
                conditions,
                phase=run.phase,
                run=run.id,
                criteria=[result for _, result in met],
                reason="met: " + ", ".join(condition.id for condition in conditions),
            )
        )
    return made


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
