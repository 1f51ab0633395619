"""From which checkpoint may a run begin? Durable ones of its phase, or another phase's weights.

What was taken over from another experiment (`origins`) is looked for there. Checkpoints are read
whole to verify them, which takes long: ask outside a transaction that writes.
"""

from collections.abc import Callable, Iterator

from gonogo.contract.lifecycle import PhaseState, RunState
from gonogo.contract.order import ResumePoint
from service.db.schema import ExperimentRow, RunRow
from service.db.store import Session
from service.experiments.checkpoints import (
    durable_checkpoints,
    found_missing,
    holder_of,
    host_of_origin,
    is_durable,
    is_followed,
)
from service.experiments.course import resolved_of
from service.experiments.standing import ANSWERS, has_not_passed
from service.queries.experiments import load_experiment, phases_of, runs_of
from service.queries.runs import load_run


def load_resume_points(
    session: Session,
    experiment: ExperimentRow,
    phase: str | None,
    *,
    unpassed: bool = False,
    before: int | None = None,
    made_by: Callable[[RunRow], bool] | None = None,
) -> dict[str, ResumePoint]:
    """Return durable checkpoints by the phase that may start from them.

    That is the phase itself (going on where its attempts stopped) and the one after it (where its
    plan initialises it from another). Checkpoints are read whole to verify them, which takes long:
    do it outside a transaction that writes.

    Args:
        session: for reading.
        experiment: whose they are.
        phase: which is over, or is gone on with; None: none.
        unpassed: whether the phase may go on from a run of it that went to its end and is not GO,
            as it does where it has become longer.
        before: only checkpoints of the phase of an earlier step than that; None: than its last, or
            any where it may be `unpassed`.
        made_by: says of a run of the phase whether its checkpoints fit; None: all do.
    """
    found: dict[str, ResumePoint] = {}
    plan = resolved_of(experiment).parsed()
    if phase is None:
        return found
    for wanted in (plan.phase(phase), plan.next_phase(phase)):
        if wanted is None:
            continue
        point = None
        if wanted.name == phase:
            # What begins at its last step would have none to show; a run may be lost behind that.
            until = wanted.steps if before is None and not unpassed else before
            point = _lineage_checkpoint(session, experiment, phase, before=until, made_by=made_by)
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
    """Return the weights that a phase begins with, those that the phase `init_from` left, if any.

    Every run of it that goes on from no checkpoint does. Step 0: weights alone; the phase's own
    steps, optimizer and data begin anew. Where the last ones are not durable there are none:
    those before them are of a training that the gate of that phase did not see.
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
    """Return the newest durable checkpoint of a phase's last run, or of those it went on from.

    Only runs under the patch of the last one count, and of these only those that `made_by` allows.
    Where the phase is `over`, no checkpoint stands for a later one that was saved and is not
    durable. What was taken over from another experiment (`origins`) is looked for there.
    """
    runs = runs_of(session, experiment.id, phase)
    if not runs and experiment.origin is not None:
        if phase not in _inherited(session, experiment):
            return None  # it has not begun here: what it was there, the phases before made there
        source = session.get(ExperimentRow, experiment.origin.experiment)
        return (
            None
            if source is None
            else _lineage_checkpoint(
                session, source, phase, over=over, before=before, made_by=made_by
            )
        )
    attempts = runs_of(session, experiment.id)
    taken_over = host_of_origin(experiment)
    missing = found_missing(attempts, taken_over)
    counted = [run for run in reversed(runs) if made_by is None or made_by(run)]
    for run in counted:
        if run.change != counted[0].change:  # what a patch has made goes on under it alone
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
            return began  # a rerun may have begun before the newest of the run before it
        held = run.dir is not None or run.state not in (RunState.QUEUED, RunState.ENDED)
        anew = began is None or not began.step
        if anew and (held or run.reason in ANSWERS):
            return None  # it begins anew on purpose, and so does the next attempt of it
    return None


def _inherited(session: Session, experiment: ExperimentRow) -> frozenset[str]:
    """Return the phases that an experiment has taken over."""
    phases = phases_of(session, experiment.id)
    return frozenset(row.name for row in phases if row.state == PhaseState.INHERITED)


def checkpoints_before(session: Session, run: str, step: int | None) -> Iterator[ResumePoint]:
    """Yield what a rerun of a run may begin with, the newest first; read only when asked for.

    Its own durable checkpoints, then what it began with itself, weights alone included.

    Args:
        session: a reading transaction.
        run: id of the run.
        step: only checkpoints of an earlier step; None: any.
    """
    row = load_run(session, run)
    began = row.resume_from
    yield from durable_checkpoints(session, row, step)
    early = began is not None and (step is None or began.step < step)
    if began is None or not early:
        return
    attempts = runs_of(session, row.experiment)
    taken_over = host_of_origin(load_experiment(session, row.experiment))
    if not began.step or is_durable(began, attempts, taken_over):
        yield began
