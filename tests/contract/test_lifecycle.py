"""Every pair of state and event is allowed by the table, or refused with what is allowed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gonogo.contract import lifecycle
from gonogo.contract.errors import Conflict
from gonogo.contract.lifecycle import RUN_TRANSITIONS, RunEvent, RunState, advance

MACHINES: dict[str, tuple[Any, Any, dict[Any, Any]]] = {
    name: (
        getattr(lifecycle, f"{name}State"),
        getattr(lifecycle, f"{name}Event"),
        getattr(lifecycle, f"{name.upper()}_TRANSITIONS"),
    )
    for name in ("Run", "Phase", "Experiment")
}
LAST = {
    "Run": {"ended"},
    "Phase": {"passed", "inherited", "failed", "skipped"},
    "Experiment": {"finished"},
}


@pytest.mark.parametrize("name", MACHINES)
def test_every_pair_moves_by_the_table_or_is_refused(name: str) -> None:
    states, events, table = MACHINES[name]
    for state, event in itertools.product(states, events):
        if (state, event) in table:
            assert advance(table, state, event) == table[state, event]
            continue
        with pytest.raises(Conflict) as refused:
            advance(table, state, event)
        assert refused.value.state == state
        assert set(refused.value.allowed) == {str(key[1]) for key in table if key[0] == state}


@pytest.mark.parametrize("name", MACHINES)
def test_terminal_states_are_final_and_every_state_is_reached(name: str) -> None:
    states, _, table = MACHINES[name]
    assert set(states) - {state for state, _ in table} == LAST[name]
    reached = {next(iter(states))}
    for _ in states:
        reached |= {after for (before, _), after in table.items() if before in reached}
    assert reached == set(states)


def test_a_run_can_end_from_every_state() -> None:
    for state in set(RunState) - {RunState.ENDED}:
        assert advance(RUN_TRANSITIONS, state, RunEvent.END) == "ended"
