"""What does a person's own verdict do? It acts while one is awaited; afterwards it re-labels."""

from gonogo.contract.api import Override
from gonogo.contract.decision import ConditionState, Decision
from gonogo.contract.errors import Conflict, NotFound
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.order import ResumePoint
from gonogo.judge.conditions import waived
from gonogo.judge.decide import decide_override
from gonogo.judge.seal import build_human_decision
from service.actions import act
from service.db.schema import ExperimentRow, PhaseRow
from service.decisions import (
    load_conditions,
    record_conditions,
    record_decision,
    total_verdict,
)
from service.lifecycle import Deed, phases_of, runs_of
from service.progress import resolved_of
from service.verbs import last_outcome, require


def override(
    deed: Deed, experiment: ExperimentRow, said: Override, points: dict[str, ResumePoint]
) -> Decision:
    """Record a person's verdict (or his waiving of a condition), and do what it means.

    Raises:
        Conflict: the experiment is not awaiting one and not finished, or the condition is settled.
        NotFound: no such condition.
    """
    if said.condition is not None:
        return _waive(deed, experiment, said)
    require(deed, experiment, "override")
    phase = _phase_of(deed, experiment)
    runs = runs_of(deed.session, experiment.id, phase.name)
    decision = record_decision(
        deed,
        experiment,
        build_human_decision,
        phase=phase.name,
        run=runs[-1].id if runs else None,
        supersede=True,
        verdict=said.verdict,
        actor=deed.actor,
        reason=said.reason,
    )
    awaiting = experiment.state == ExperimentState.AWAITING_DECISION
    action = decide_override(
        resolved_of(experiment).parsed(),
        phase.name,
        said.verdict,
        awaiting=awaiting,
        conditions=load_conditions(deed.session, experiment.id),
    )
    if awaiting:
        experiment.stop = None
        act(deed, experiment, phase.name, action, points, last_outcome(deed, experiment))
    else:
        phase.verdict = said.verdict.value
        experiment.verdict = said.verdict.value
    return decision


def _phase_of(deed: Deed, experiment: ExperimentRow) -> PhaseRow:
    """Return the phase that a verdict is about: the one awaited, else the last that ran."""
    phases = phases_of(deed.session, experiment.id)
    awaited = (experiment.awaiting or {}).get("phase")
    for phase in phases:
        if phase.name == awaited:
            return phase
    ran = {run.phase for run in runs_of(deed.session, experiment.id)}
    return [phase for phase in phases if phase.name in ran][-1]


def _waive(deed: Deed, experiment: ExperimentRow, said: Override) -> Decision:
    rows = {row.condition.id: row.condition for row in load_conditions(deed.session, experiment.id)}
    condition = rows.get(said.condition or "")
    if condition is None:
        raise NotFound(f"there is no condition {said.condition}")
    if condition.state not in (ConditionState.OPEN, ConditionState.MISSED):
        raise Conflict(f"the condition is {condition.state}", state=condition.state)
    decision = record_conditions(
        deed,
        experiment,
        [waived(condition)],
        phase=condition.id.partition(":")[0],
        actor=deed.actor,
        reason=said.reason,
    )
    if experiment.state == ExperimentState.FINISHED:
        verdict = total_verdict(deed.session, experiment)
        experiment.verdict = verdict.value if verdict else None
    return decision
