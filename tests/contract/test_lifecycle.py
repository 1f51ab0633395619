"""Every (state, event) pair: allowed as the table says, refused with what would be allowed."""

from __future__ import annotations

import itertools

import pytest

from gonogo.contract.errors import Conflict
from gonogo.contract.lifecycle import (
    EXPERIMENT_TRANSITIONS,
    PHASE_TRANSITIONS,
    RUN_TRANSITIONS,
    ExperimentEvent,
    ExperimentState,
    PhaseEvent,
    PhaseState,
    RunEvent,
    RunState,
    advance_experiment,
    advance_phase,
    advance_run,
)

MACHINES = {
    "run": (RunState, RunEvent, RUN_TRANSITIONS, advance_run),
    "phase": (PhaseState, PhaseEvent, PHASE_TRANSITIONS, advance_phase),
    "experiment": (
        ExperimentState,
        ExperimentEvent,
        EXPERIMENT_TRANSITIONS,
        advance_experiment,
    ),
}
PAIRS = [
    (name, state, event)
    for name, (states, events, _, _) in MACHINES.items()
    for state, event in itertools.product(states, events)
]
FIRST = {"run": "queued", "phase": "pending", "experiment": "queued"}
LAST = {
    "run": {"ended"},
    "phase": {"passed", "inherited", "failed", "skipped"},
    "experiment": {"finished"},
}


@pytest.mark.parametrize(("name", "state", "event"), PAIRS)
def test_every_pair_moves_as_the_table_says_or_is_refused(
    name: str, state: str, event: str
) -> None:
    _, _, table, advance = MACHINES[name]
    if (state, event) in table:
        assert advance(state, event) == table[state, event]
        return
    with pytest.raises(Conflict) as refused:
        advance(state, event)
    assert refused.value.state == state
    assert set(refused.value.allowed) == {str(key[1]) for key in table if key[0] == state}


@pytest.mark.parametrize("name", MACHINES)
def test_terminal_states_are_immutable_and_every_other_state_leads_to_one(name: str) -> None:
    states, _, table, _ = MACHINES[name]
    leaving = {state for state, _ in table}
    assert set(states) - leaving == LAST[name]
    reached = {FIRST[name]}
    for _ in states:
        reached |= {after for (before, _), after in table.items() if before in reached}
    assert reached == set(states)


@pytest.mark.parametrize("state", [state for state in RunState if state != "ended"])
def test_a_run_can_end_from_every_state(state: RunState) -> None:
    assert advance_run(state, RunEvent.END) == "ended"
