"""Steps of an experiment: phases begin, attempts are queued, everything ends.

Each function runs in a transaction that holds the experiment's lock. What is next is decided by
`gonogo.judge.follow_up.decide` after a run, and by `verbs` and `overrides` for a person.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from gonogo.contract.decision import Verdict
from gonogo.contract.errors import Conflict
from gonogo.contract.lifecycle import (
    ExperimentEvent,
    PhaseEvent,
    PhaseState,
    RunEvent,
    RunState,
)
from gonogo.contract.order import CarriedRemedy, ResumePoint, RunReason
from gonogo.contract.outcome import Actor, Outcome, OutcomeCode
from gonogo.contract.plan import Plan, hardware_profiles
from gonogo.contract.wire import Kind, new_id
from gonogo.contract.workload import RecordedPatch
from gonogo.judge.follow_up.decide import laid_over, left_by
from gonogo.planning.resolve import ResolvedPlan
from gonogo.watch.registry import cause_of, shown_by_lines
from service.db.columns import Awaited, ServiceEnd
from service.db.schema import ExperimentRow, PhaseRow, ProgressRow, RunRow
from service.db.store import Topic, ring
from service.experiments.lifecycle import Deed, move_experiment, move_phase, move_run, record_event
from service.experiments.state import is_owed
from service.queries.experiments import phases_of, runs_of
from service.queries.runs import load_attempts, load_findings


def resolved_of(experiment: ExperimentRow) -> ResolvedPlan:
    """Return the plan that an experiment froze; experiments of one plan share it."""
    return _resolved_text(json.dumps(experiment.resolved))


@lru_cache(maxsize=32)
def _resolved_text(text: str) -> ResolvedPlan:
    return ResolvedPlan.model_validate_json(text)


def active_phase(deed: Deed, experiment: ExperimentRow) -> PhaseRow | None:
    """Return the phase that is active, if any."""
    phases = phases_of(deed.session, experiment.id)
    return next((phase for phase in phases if phase.state == PhaseState.ACTIVE), None)


def current_run(deed: Deed, experiment: ExperimentRow) -> RunRow | None:
    """Return the run that has not ended, if any."""
    runs = runs_of(deed.session, experiment.id)
    return next((run for run in reversed(runs) if run.state != RunState.ENDED), None)


def owed_run(deed: Deed, experiment: ExperimentRow) -> RunRow | None:
    """Return the ended run that cannot be judged because the rest of its files does not come."""
    return next(filter(is_owed, reversed(runs_of(deed.session, experiment.id))), None)


def give_up_rest(deed: Deed, experiment: ExperimentRow, run: RunRow, why: str) -> None:
    """Let an ended run be judged by what is here."""
    if run.state != RunState.ENDED or run.judged or run.given_up:
        return
    run.given_up = True
    ring(deed.session, Topic.ENDED)
    record_event(deed, experiment, "run.given_up", run=run, text=why)


def start_phase(
    deed: Deed, experiment: ExperimentRow, phase: PhaseRow, point: ResumePoint | None = None
) -> RunRow:
    """Activate a phase and queue its first run, under the remedies that helped before."""
    carried = _carried_to(deed, experiment, phase)
    move_phase(deed, experiment, phase, PhaseEvent.ACTIVATE)
    if carried:
        text = "; ".join(row.told() for row in carried)
        record_event(deed, experiment, "phase.carried", phase=phase.name, text=text)
    reason = RunReason.FIRST if experiment.campaign is None else RunReason.CAMPAIGN
    if point is not None and point.step:
        reason = RunReason.RESUME
    return queue_run(deed, experiment, phase.name, reason, resume_from=point, carried=carried)


def _carried_to(deed: Deed, experiment: ExperimentRow, phase: PhaseRow) -> list[CarriedRemedy]:
    """Return the remedies that the phase before was run under, and the one that helped in it."""
    rows = phases_of(deed.session, experiment.id)
    before = next((row for row in rows if row.position == phase.position - 1), None)
    runs = [] if before is None else runs_of(deed.session, experiment.id, before.name)
    if before is None or not runs:
        return []  # the first phase of all, or one after what was taken over
    plan = resolved_of(experiment).parsed()
    left = left_by(plan, before.name, load_attempts(deed.session, experiment.id, before.name))
    return [*(runs[-1].carried or []), *([left] if left is not None else [])]


def patch_of(
    change: Mapping[str, Any] | None, carried: Sequence[CarriedRemedy] | None
) -> RecordedPatch | None:
    """Return the whole patch of a run; None if nothing is changed."""
    found: dict[str, Any] = {}
    for row in carried or ():
        found = laid_over(found, row.patch)
    found = laid_over(found, change or {})
    return RecordedPatch.model_validate(found) if found else None


def gpus_of(plan: Plan, change: RecordedPatch | None = None, phase: str | None = None) -> int:
    """Return how many GPUs a run of a plan takes: one a rank; 0 on a profile without devices."""
    if not hardware_profiles()[plan.profile].has_devices:
        return 0
    changed = change.workload.world_size if change is not None else None
    own = plan.workload.world_size
    asked = [row.workload.world_size or own for row in plan.phases if phase in (None, row.name)]
    return changed or max(asked, default=own)


def queue_run(
    deed: Deed,
    experiment: ExperimentRow,
    phase: str,
    reason: RunReason,
    *,
    resume_from: ResumePoint | None = None,
    change: Mapping[str, Any] | None = None,
    carried: Sequence[CarriedRemedy] = (),
) -> RunRow:
    """Queue the next attempt of a phase.

    The first attempt gets the `carried` remedies of earlier phases; later ones keep them.
    """
    before = runs_of(deed.session, experiment.id, phase)
    if any(run.state != RunState.ENDED for run in before):
        raise Conflict(f"phase {phase} has a run that has not ended", state=experiment.state)
    kept = list(before[-1].carried or []) if before else list(carried)
    plan = resolved_of(experiment).parsed()
    run = RunRow(
        id=new_id(Kind.RUN),
        experiment=experiment.id,
        phase=phase,
        attempt=max((row.attempt for row in before), default=0) + 1,
        reason=reason,
        state=RunState.QUEUED,
        resume_from=resume_from,
        change=dict(change) if change else None,
        carried=kept or None,
        profile=plan.profile,
        gpus=gpus_of(plan, patch_of(change, kept), phase),
        foreign=not plan.ours,
        sizes={},
        created_at=deed.now,
    )
    deed.session.add(run)
    deed.session.flush()  # rows that refer to it come after
    deed.session.add(ProgressRow(run=run.id))
    ring(deed.session, Topic.QUEUED)
    data: dict[str, Any] = {
        "state": RunState.QUEUED.value,
        "attempt": run.attempt,
        "reason": reason.value,
    }
    point = resume_from.wire() if resume_from else None
    record_event(deed, experiment, "run.state", run=run, **data, resume_from=point)
    deed.session.flush()
    return run


def await_person(deed: Deed, experiment: ExperimentRow, awaited: Awaited) -> None:
    """Let an experiment wait for a person."""
    experiment.awaiting = awaited
    move_experiment(deed, experiment, ExperimentEvent.AWAIT, waiting_for=awaited.text)


def continue_experiment(deed: Deed, experiment: ExperimentRow) -> None:
    """Let an experiment that waited for a person continue."""
    experiment.awaiting = experiment.stop = experiment.verdict = None
    move_experiment(deed, experiment, ExperimentEvent.CONTINUE)


def finish(
    deed: Deed, experiment: ExperimentRow, verdict: Verdict | None, outcome: Outcome | None
) -> None:
    """Finish an experiment; phases that have not ended are skipped."""
    for phase in phases_of(deed.session, experiment.id):
        if phase.state in (PhaseState.PENDING, PhaseState.ACTIVE):
            move_phase(deed, experiment, phase, PhaseEvent.SKIP)
    experiment.awaiting = None
    experiment.verdict = verdict
    experiment.outcome = outcome
    move_experiment(
        deed,
        experiment,
        ExperimentEvent.FINISH,
        verdict=experiment.verdict,
        outcome=outcome.code if outcome is not None else None,
    )


def end_without_worker(
    deed: Deed, experiment: ExperimentRow, run: RunRow, code: OutcomeCode, actor: Actor, text: str
) -> Outcome:
    """End a run for which no worker will report the end, and return why it ended.

    A failure that the run's own lines show takes precedence over the given reason.
    """
    outcome = Outcome(code=code, actor=actor, text=text)
    failed = _failed_by(deed, run)
    if failed is not None:
        outcome = failed.model_copy(update={"text": f"{failed.text}; then {text}"})
    run.outcome = outcome
    run.exit = ServiceEnd(
        ended_at=deed.now,
        ended_by=outcome.actor,
        reason=outcome.code,
        text=outcome.text,
        run=run.id,
        attempt=run.attempt,
    ).wire()
    move_run(
        deed,
        experiment,
        run,
        RunEvent.END,
        token=run.token,
        outcome=outcome.code.value,
        text=outcome.text,
    )
    return outcome


_FOUND_CHARS = 400


def _failed_by(deed: Deed, run: RunRow) -> Outcome | None:
    """Return the failure that a run's own lines show, if its watcher halted it for one."""
    failed = shown_by_lines(load_findings(deed.session, run.id))
    if failed is None:
        return None
    text = failed.text[:_FOUND_CHARS]
    return Outcome(code=cause_of(failed), actor=Actor.WATCHDOG, text=text)
