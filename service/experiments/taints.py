"""Taints: what counts against a run because of the checkpoint from which it resumes.

They stand in the order of each run and travel with its checkpoints. The database adds only the
results of the experiment that left the checkpoint.
"""

from collections.abc import Iterator, Sequence

from sqlalchemy.orm import Session

from gonogo.contract.decision import PASSING, Verdict
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.order import ResumePoint, Taint, TaintKind, carried_on
from gonogo.contract.outcome import SHOWN_BY_LINES, OutcomeCode
from gonogo.judge.gate.built_in import IN_WEIGHTS
from gonogo.watch.registry import cause_of, shown_by_lines
from service.db.schema import AssessmentRow, ExperimentRow, RunRow
from service.experiments.advance import resolved_of
from service.experiments.checkpoints import holder_of
from service.experiments.state import has_not_passed, load_decided, went_to_its_end
from service.queries.experiments import runs_of
from service.queries.runs import load_findings


def taints_of(session: Session, experiment: ExperimentRow, run: RunRow) -> list[Taint]:
    """Return the taints of a run that is about to be ordered."""
    point = run.resume_from
    if point is None or not point.step:
        return []
    holder = holder_of(point, runs_of(session, experiment.id, run.phase))
    own = [_taint(session, holder)] if holder is not None and has_not_passed(holder) else []
    return carried_on(own, _carried(session, experiment, run.phase, point, holder))


def taints_left(
    session: Session, experiment: ExperimentRow, phase: str, point: ResumePoint
) -> list[Taint]:
    """Return the taints of another experiment's run that resumes from a checkpoint of this one."""
    runs = runs_of(session, experiment.id, phase)
    holder = holder_of(point, runs)
    own = list(_own(session, experiment, runs, point, holder))
    return carried_on(own, _carried(session, experiment, phase, point, holder))


def _carried(
    session: Session,
    experiment: ExperimentRow,
    phase: str,
    point: ResumePoint,
    holder: RunRow | None,
) -> list[Taint]:
    if holder is not None:
        return [Taint.model_validate(row) for row in (holder.order or {}).get("taints", [])]
    origin = experiment.origin
    source = None if origin is None else session.get(ExperimentRow, origin.experiment)
    return [] if source is None else taints_left(session, source, phase, point)


def _taint(session: Session, run: RunRow, kind: TaintKind = TaintKind.UNPASSED) -> Taint:
    source = session.get_one(ExperimentRow, run.experiment)
    steps = resolved_of(source).parsed().phase(run.phase).steps
    by_hand = called(session, source, run.phase)
    verdict = run.verdict if by_hand in (None, Verdict.GO) else by_hand
    code = None if run.outcome is None else had_failed(session, run) or run.outcome.code
    ended = kind is TaintKind.FAILED and not went_to_its_end(run)
    found = code if ended else verdict
    return Taint(
        kind=kind,
        experiment=run.experiment,
        run=run.id,
        step=steps,
        found=None if found is None else found.value,
    )


def _own(
    session: Session,
    experiment: ExperimentRow,
    runs: Sequence[RunRow],
    point: ResumePoint,
    holder: RunRow | None,
) -> Iterator[Taint]:
    if holder is not None and has_not_passed(holder):
        yield _taint(session, holder)
    failed = [run for run in reversed(runs) if _has_failed(session, run)]
    yield from (_taint(session, run, TaintKind.FAILED) for run in failed)
    behind: ResumePoint | None = point
    while behind is not None and (run := holder_of(behind, runs)) is not None:
        if _failed_of(session, run) & IN_WEIGHTS:
            yield _taint(session, run, TaintKind.DRIFTED)
        behind = run.resume_from
    if holder is not None and not failed:
        whole = (Verdict.NO_GO, Verdict.INCONCLUSIVE, Verdict.CONDITIONAL_GO)
        words = whole if went_to_its_end(holder) else (Verdict.NO_GO,)
        if called(session, experiment, holder.phase) in words:
            yield _taint(session, holder)


def _has_failed(session: Session, run: RunRow) -> bool:
    """Say whether a run failed by its lines, or measured what does not pass its gate."""
    measured = has_not_passed(run) and _failed_of(session, run) - IN_WEIGHTS
    return bool(measured) or had_failed(session, run) is not None


def called(session: Session, experiment: ExperimentRow, phase: str) -> Verdict | None:
    """Return a person's verdict about a phase of a finished experiment, if there is one."""
    if experiment.state != ExperimentState.FINISHED:
        return None
    said = load_decided(session, [experiment.id])[experiment.id].overrides
    words = [row.verdict for row in said if row.phase == phase and row.condition is None]
    return words[-1] if words else None


def had_failed(session: Session, run: RunRow) -> OutcomeCode | None:
    """Return how a run failed, by its lines or in its gate, before something else ended it."""
    if run.outcome is None:
        return None
    if run.verdict not in PASSING:
        if run.outcome.code in SHOWN_BY_LINES:
            return run.outcome.code
        halt = shown_by_lines(load_findings(session, run.id))
        if halt is not None:
            return cause_of(halt)
    if went_to_its_end(run):
        return None  # it has a verdict
    failed = not run.judged or _failed_of(session, run) - IN_WEIGHTS
    return run.outcome.code if failed else None


def _failed_of(session: Session, run: RunRow) -> set[str]:
    assessed = session.get(AssessmentRow, run.id)
    return set() if assessed is None else set(assessed.attempt.failed)
