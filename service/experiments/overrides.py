"""A person's own verdict: it acts while a decision is awaited; afterwards it re-labels.

An awaited GO starts the next phase. On a finished experiment nothing starts: the decision lists the
phases that never ran. Either way it is shown as made by hand.
"""

from gonogo.contract.api import Override
from gonogo.contract.decision import ConditionState, DecisionKind, Verdict
from gonogo.contract.errors import Conflict, NotFound
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.order import ResumePoint
from gonogo.judge.follow_up.action import Action, ActionKind
from gonogo.judge.follow_up.decide import decide_override
from gonogo.judge.gate.conditions import in_state
from gonogo.ledger.recorded import RecordedDecision
from gonogo.ledger.seal import Entry
from service.db.schema import ExperimentRow, PhaseRow
from service.experiments.advance import resolved_of
from service.experiments.awaited import open_approval
from service.experiments.consequences import act, waive_expired
from service.experiments.decisions import (
    load_conditions,
    record_conditions,
    record_decision,
    total_verdict,
)
from service.experiments.lifecycle import Deed
from service.experiments.verbs import last_outcome, require
from service.queries.experiments import phases_of, runs_of

_GOES_ON = (Verdict.GO, Verdict.CONDITIONAL_GO)


def override(
    deed: Deed, experiment: ExperimentRow, said: Override, points: dict[str, ResumePoint]
) -> RecordedDecision:
    """Record a person's verdict (or his waiving of a condition), and do what it means.

    Raises:
        Conflict: the experiment is not awaiting one and not finished, the condition is settled or
            an approval, or a GO would end the experiment by a condition that it misses.
        NotFound: no such condition.
    """
    if said.condition is not None:
        return _waive(deed, experiment, said)
    require(deed, experiment, "override")
    phase = _phase_of(deed, experiment)
    runs = runs_of(deed.session, experiment.id, phase.name)
    awaiting = experiment.state == ExperimentState.AWAITING_DECISION
    action = decide_override(
        resolved_of(experiment).parsed(),
        phase.name,
        said.verdict,
        awaiting=awaiting,
        conditions=load_conditions(deed.session, experiment.id),
    )
    if said.verdict in _GOES_ON:
        _refuse_to_end(experiment, action)
    decision = record_decision(
        deed,
        experiment,
        Entry(
            kind=DecisionKind.HUMAN,
            verdict=said.verdict,
            actor=deed.actor,
            reason=said.reason,
            never_ran=[] if awaiting else _never_ran(deed, experiment),
        ),
        phase=phase.name,
        run=runs[-1].id if runs else None,
        supersede=True,
    )
    if awaiting and said.verdict in _GOES_ON:
        phase.verdict = said.verdict  # what is said of conditions is said with it
        waive_expired(deed, experiment, phase.name, reason=said.reason)
    if awaiting:
        experiment.stop = None
        act(deed, experiment, phase.name, action, points, last_outcome(deed, experiment))
    else:
        phase.verdict = experiment.verdict = said.verdict
    return decision


def _refuse_to_end(experiment: ExperimentRow, action: Action) -> None:
    """Refuse a GO that would end the experiment: what is due and not met is waived first, or not.

    Raises:
        Conflict: continuing would miss conditions that are NO_GO when missed.
    """
    if action.kind is ActionKind.FINISH and action.missed:
        names = " and ".join(row.id for row in action.missed)
        raise Conflict(
            f"going on would miss {names} and end as NO_GO; waive it first:"
            f" gonogo override {experiment.id} CONDITIONAL_GO --condition {action.missed[0].id}"
            " --reason WHY",
            state=experiment.state,
            allowed=("override", "cancel"),
        )


def _never_ran(deed: Deed, experiment: ExperimentRow) -> list[str]:
    """Return the phases of which no worker ever took a run."""
    runs = runs_of(deed.session, experiment.id)
    ran = {run.phase for run in runs if run.claimed_at is not None}
    return [row.name for row in phases_of(deed.session, experiment.id) if row.name not in ran]


def _phase_of(deed: Deed, experiment: ExperimentRow) -> PhaseRow:
    """Return the phase that a verdict is about: the one awaited, else the last that ran."""
    phases = phases_of(deed.session, experiment.id)
    awaited = experiment.awaiting.phase if experiment.awaiting is not None else None
    for phase in phases:
        if phase.name == awaited:
            return phase
    ran = {run.phase for run in runs_of(deed.session, experiment.id)}
    return [phase for phase in phases if phase.name in ran][-1]


def _waive(deed: Deed, experiment: ExperimentRow, said: Override) -> RecordedDecision:
    rows = {row.condition.id: row.condition for row in load_conditions(deed.session, experiment.id)}
    condition = rows.get(said.condition or "")
    asked = open_approval(experiment)
    if asked is not None and asked.id == said.condition:
        raise Conflict(
            f"{asked.id} is an approval, given by: gonogo promote {experiment.id} --reason WHY",
            state=experiment.state,
            allowed=("promote", "override", "cancel"),
        )
    if condition is None:
        raise NotFound(f"there is no condition {said.condition}")
    if condition.state not in (ConditionState.OPEN, ConditionState.MISSED):
        raise Conflict(f"the condition is {condition.state}", state=condition.state)
    decision = record_conditions(
        deed,
        experiment,
        [in_state(condition, ConditionState.WAIVED)],
        phase=condition.id.partition(":")[0],
        actor=deed.actor,
        reason=said.reason,
    )
    if experiment.state == ExperimentState.FINISHED and experiment.verdict is not None:
        experiment.verdict = total_verdict(deed.session, experiment)  # a cancelled one has none
    return decision
