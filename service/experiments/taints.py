"""What counts against a run because of the checkpoint that it resumes from.

Taints are written into the order of each run, and travel with its checkpoints. A run that resumes
from a checkpoint copies the taints of the run that wrote it. The database adds only the results of
the experiment that left the checkpoint. `decide` compares the runs of one phase in one experiment.
"""

from collections.abc import Iterator, Sequence

from sqlalchemy.orm import Session

from gonogo.contract.decision import PASSING, Verdict
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.order import ResumePoint
from gonogo.contract.outcome import SHOWN_BY_LINES, OutcomeCode
from gonogo.contract.taint import Taint, TaintKind, carried_on
from gonogo.judge.gate.built_in import DRIFT, IN_WEIGHTS
from gonogo.watch.registry import cause_of, shown_by_lines
from service.db.schema import AssessmentRow, ExperimentRow, RunRow
from service.experiments.checkpoints import holder_of
from service.experiments.course import resolved_of
from service.experiments.overview import load_decided
from service.experiments.standing import has_not_passed, went_to_its_end
from service.queries.experiments import runs_of
from service.queries.findings import load_findings
from service.queries.runs import load_progress


def taints_of(session: Session, experiment: ExperimentRow, run: RunRow) -> list[Taint]:
    """Return the taints of a run that is about to be ordered."""
    point = run.resume_from
    if point is None or not point.step:
        return []
    runs = runs_of(session, experiment.id, run.phase)
    holder = holder_of(point, runs)
    own = [_taint(session, holder)] if holder is not None and has_not_passed(holder) else []
    return carried_on(own, _carried(session, experiment, run.phase, point, holder))


def taints_left(
    session: Session, experiment: ExperimentRow, phase: str, point: ResumePoint
) -> list[Taint]:
    """Return the taints of a run of another experiment that resumes from a checkpoint of this one.

    Args:
        session: for reading.
        experiment: which left the checkpoint, or resumed from it itself.
        phase: of the checkpoint.
        point: the checkpoint.
    """
    runs = runs_of(session, experiment.id, phase)
    holder = holder_of(point, runs)
    behind = list(_behind(point, runs))
    own = list(_own(session, experiment, runs, holder, behind))
    return carried_on(own, _carried(session, experiment, phase, point, holder))


def _carried(
    session: Session,
    experiment: ExperimentRow,
    phase: str,
    point: ResumePoint,
    holder: RunRow | None,
) -> list[Taint]:
    """Return the taints of the run that wrote a checkpoint, wherever it did."""
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
    holder: RunRow | None,
    behind: Sequence[RunRow],
) -> Iterator[Taint]:
    """Yield the taints of the runs of a phase, the newest first.

    A finished phase that a person did not call GO has not passed either.
    """
    if holder is not None and has_not_passed(holder):
        yield _taint(session, holder)
    failed = [run for run in reversed(runs) if _has_failed(session, run)]
    yield from (_taint(session, run, TaintKind.FAILED) for run in failed)
    for run in behind:
        if _failed_of(session, run) & IN_WEIGHTS:
            yield _taint(session, run, TaintKind.DRIFTED)
    if holder is not None and not failed:
        whole = (Verdict.NO_GO, Verdict.INCONCLUSIVE, Verdict.CONDITIONAL_GO)
        words = whole if went_to_its_end(holder) else (Verdict.NO_GO,)
        if called(session, experiment, holder.phase) in words:
            yield _taint(session, holder)


def _has_failed(session: Session, run: RunRow) -> bool:
    """Say whether a run had failed by its lines, or measured what does not pass its gate."""
    measured = has_not_passed(run) and _failed_of(session, run) - IN_WEIGHTS
    return bool(measured) or had_failed(session, run) is not None


def called(session: Session, experiment: ExperimentRow, phase: str) -> Verdict | None:
    """Return a person's verdict about a phase of a finished experiment, if there is one."""
    if experiment.state != ExperimentState.FINISHED:
        return None
    said = load_decided(session, [experiment.id])[experiment.id].overrides
    words = [row.verdict for row in said if row.phase == phase and row.condition is None]
    return words[-1] if words else None


def _behind(point: ResumePoint, runs: Sequence[RunRow]) -> Iterator[RunRow]:
    """Yield the run that wrote a checkpoint, then the run that it had resumed from, and so on."""
    behind: ResumePoint | None = point
    while behind is not None and (holder := holder_of(behind, runs)) is not None:
        yield holder
        behind = holder.resume_from


def _failed_by_lines(session: Session, run: RunRow) -> OutcomeCode | None:
    """Return the failure that a run's own lines show; None if there is none, or it passed.

    The run may have lost its host, or an operator may have halted it, before its watcher did.
    """
    if run.outcome is None or run.verdict in PASSING:
        return None
    if run.outcome.code in SHOWN_BY_LINES:
        return run.outcome.code
    halt = shown_by_lines(load_findings(session, run.id))
    return None if halt is None else cause_of(halt)


def had_failed(session: Session, run: RunRow) -> OutcomeCode | None:
    """Return how a run had failed, by its lines or in its gate, before something else ended it.

    A failed gate has no code: the code is how the run ended. A run that could not be judged counts
    as failed.
    """
    shown = _failed_by_lines(session, run)
    if shown is not None or run.outcome is None or went_to_its_end(run):
        return shown  # a run that reached its end has a verdict
    failed = not run.judged or _failed_of(session, run) - IN_WEIGHTS
    return run.outcome.code if failed else None


def _failed_of(session: Session, run: RunRow) -> set[str]:
    assessed = session.get(AssessmentRow, run.id)
    other = {DRIFT} if is_of_unknown_code(session, run) else set()
    return other if assessed is None else {*assessed.attempt.failed, *other}


def is_of_unknown_code(session: Session, run: RunRow) -> bool:
    """Say whether nothing shows that a run had the frozen code, torch and devices.

    Nothing was frozen when it was ordered, another run froze them since, and its host was cut off
    before its first line came.
    """
    frozen = session.get_one(ExperimentRow, run.experiment).frozen
    ordered = {} if run.order is None else run.order.get("identity") or {}
    told = (run.model or {}, load_progress(session, run.id).identity or {})
    return any(
        ordered.get(name) is None and value not in [row.get(name) for row in told]
        for name, value in frozen.items()
    )
