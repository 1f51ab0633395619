"""Where in a plan does `gonogo rerun --set` set a value? In the phase and those after it; pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from gonogo.contract.api import ExperimentView
from gonogo.contract.errors import Rejected
from gonogo.contract.lifecycle import PhaseState
from gonogo.contract.near_miss import hint

_THROUGH = (PhaseState.PASSED, PhaseState.INHERITED)
_SHORT = {"seed": "train.seed"}


def phases_again(view: ExperimentView, named: str | None) -> list[str]:
    """Return the phase that is run again, and those after it.

    That is the named one, or the first that has not passed, or the first of all.

    Raises:
        Rejected: there is no phase of that name.
    """
    names = [phase.name for phase in view.phases]
    if named is None:
        open_ = (phase.name for phase in view.phases if phase.state not in _THROUGH)
        named = next(open_, names[0])
    if named not in names:
        raise Rejected(f"--phase: {view.id} has no phase {named!r}; {hint(named, names)}")
    return names[names.index(named) :]


def sets_of_phases(sets: Mapping[str, Any], phases: Sequence[str]) -> dict[str, Any]:
    """Return the overrides of a plan that change these phases alone.

    Args:
        sets: path to value: `train.KEY`, `env.NAME`, `seed`, `steps` (of the first phase), or any
            path of a plan.
        phases: the phase that is run again, then those after it.
    """
    found: dict[str, Any] = {}
    for said, value in sets.items():
        path = _SHORT.get(said, said)
        if path == "steps":
            found[f"phases.{phases[0]}.steps"] = value
        elif path.startswith(("train.", "env.")):
            found |= {f"phases.{phase}.{path}": value for phase in phases}
        else:
            found[path] = value
    return found
