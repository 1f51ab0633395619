"""The checkpoint from which a run begins: one of its own phase, or the weights of another phase.

Checkpoints are read whole to verify them, which takes long: call this outside of transactions that
write.
"""

from collections.abc import Callable, Iterator

from gonogo.contract.lifecycle import PhaseState, RunState
from gonogo.contract.order import ResumePoint
from service.db.schema import ExperimentRow, RunRow
from service.db.store import Session
from service.experiments.advance import resolved_of
from service.experiments.awaited import ANSWERS, has_not_passed
from service.experiments.checkpoints import (
    durable_checkpoints,
    found_missing,
    holder_of,
    host_of_origin,
    is_durable,
    is_followed,
)
from service.queries.experiments import load_experiment, phases_of, runs_of
from service.queries.runs import load_run


def load_resume_points(
    session: Session,
    experiment: ExperimentRow,
    phase: str | None,
    *,
    unpassed: bool = False,
    made_by: Callable[[RunRow], bool] | None = None,
) -> dict[str, ResumePoint]:
    """Return phase → checkpoint from which its next run begins.

    These are the phase itself, and the phase after it if its plan takes the weights of another.

    Args:
        session: for reading.
        experiment: whose checkpoints they are.
        phase: which is over, or continues; None: none.
        unpassed: whether the phase may resume from a run that reached its last step without a GO,
            as it may where it has become longer.
        made_by: says whether the checkpoints of a run fit; None: all do.
    """
    found: dict[str, ResumePoint] = {}
    if phase is None:
        return found
    plan = resolved_of(experiment).parsed()
    for wanted in (plan.phase(phase), plan.next_phase(phase)):
        if wanted is None:
            continue
        point = None
        if wanted.name == phase:
            # A run that begins at its last step would have no step to show.
            before = None if unpassed else wanted.steps
            point = _lineage_checkpoint(session, experiment, phase, before=before, made_by=made_by)
        if point is not None and not unpassed:
            holder = holder_of(point, runs_of(session, experiment.id, phase))
            point = None if holder is not None and has_not_passed(holder) else point
        if point is None:
            point = load_weights(session, experiment, wanted.init_from)
        if point is not None:
            found[wanted.name] = point
    return found


def load_weights(
    session: Session, experiment: ExperimentRow, init_from: str | None
) -> ResumePoint | None:
    """Return the last weights of the phase `init_from`, as a checkpoint of step 0.

    None if the last weights are not durable: earlier ones are not those that the gate saw.
    """
    if init_from is None:
        return None
    source = _lineage_checkpoint(session, experiment, init_from, over=True)
    return source and source.model_copy(update={"step": 0})


def _lineage_checkpoint(
    session: Session,
    experiment: ExperimentRow,
    phase: str,
    *,
    over: bool = False,
    before: int | None = None,
    made_by: Callable[[RunRow], bool] | None = None,
) -> ResumePoint | None:
    """Return the newest durable checkpoint of a phase's last run, or of a run that it continued.

    Only runs under the patch of the last run count. Checkpoints of an inherited phase are looked up
    in the experiment that they were taken over from.

    Args:
        session: for reading.
        experiment: whose phase it is.
        phase: its name.
        over: whether the phase is over; then an earlier checkpoint does not stand in for the last.
        before: only earlier steps; None: any.
        made_by: says whether the checkpoints of a run fit; None: all do.
    """
    runs = runs_of(session, experiment.id, phase)
    if not runs and experiment.origin is not None:
        inherited = [
            row.name
            for row in phases_of(session, experiment.id)
            if row.state == PhaseState.INHERITED
        ]
        source = session.get(ExperimentRow, experiment.origin.experiment)
        if phase not in inherited or source is None:
            return None
        return _lineage_checkpoint(
            session, source, phase, over=over, before=before, made_by=made_by
        )
    attempts = runs_of(session, experiment.id)
    taken_over = host_of_origin(experiment)
    missing = found_missing(attempts, taken_over)
    counted = [run for run in reversed(runs) if made_by is None or made_by(run)]
    for run in counted:
        if run.change != counted[0].change:
            continue
        points = durable_checkpoints(session, run, before)
        found = next((row for row in points if row.path not in missing), None)
        if over and is_followed(session, run, found):
            return None
        if found is not None:
            return found
        began = run.resume_from
        early = began is not None and (before is None or began.step < before)
        if began is not None and early and began.step and is_durable(began, attempts, taken_over):
            return began
        held = run.dir is not None or run.state not in (RunState.QUEUED, RunState.ENDED)
        anew = began is None or not began.step
        if anew and (held or run.reason in ANSWERS):
            return None  # it started from the beginning on purpose
    return None


def checkpoints_before(session: Session, run: str, step: int | None) -> Iterator[ResumePoint]:
    """Yield the checkpoints with which a rerun of a run may begin, the newest first.

    These are its own durable ones, then the one that it began with.

    Args:
        session: for reading.
        run: id of the run.
        step: only earlier steps; None: any.
    """
    row = load_run(session, run)
    began = row.resume_from
    yield from durable_checkpoints(session, row, step)
    if began is None or not (step is None or began.step < step):
        return
    attempts = runs_of(session, row.experiment)
    taken_over = host_of_origin(load_experiment(session, row.experiment))
    if not began.step or is_durable(began, attempts, taken_over):
        yield began
