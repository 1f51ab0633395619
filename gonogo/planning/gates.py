"""Which of a phase's criteria apply on a hardware profile, and with which thresholds?

A criterion about devices is left out where there are none, one about the profile's floor where the
profile has none, and a `fail_*` threshold where the floor itself lies on its failing side: 39
tokens/s fail nobody whose machine owes 35. What is left out is said in the order.

An upper bound is one of the worst rank, the highest, unless the plan says over which ranks: by the
lowest, one rank would meet it for all.
"""

from typing import Any

from pydantic import ValidationError

from gonogo.contract.criterion import DEVICE_METRICS, Criterion
from gonogo.contract.hardware import HardwareProfile
from gonogo.contract.order import LeftOut
from gonogo.contract.plan import Phase
from gonogo.planning.problems import problems_of, rejected

_AGAINST = {"pass_above": "fail_below", "pass_below": "fail_above"}
"""Threshold that a profile may give → the one that must not contradict it."""


def gate_of(
    phase: Phase, profile: HardwareProfile, name: str
) -> tuple[list[Criterion], list[LeftOut]]:
    """Return the criteria that apply, thresholds filled from the profile, and what is left out.

    Args:
        phase: whose gate.
        profile: the row of the hardware table.
        name: what the row is called.

    Raises:
        Rejected: a criterion that makes no sense with the profile's floor.
    """
    gate: list[Criterion] = []
    left_out: list[LeftOut] = []
    for criterion in phase.gate:
        if criterion.metric in DEVICE_METRICS and not profile.has_devices:
            left_out.append(LeftOut(id=criterion.id, why="the profile has no devices"))
            continue
        bound = next((row for row in _AGAINST if getattr(criterion, row) == "profile"), None)
        if bound is None:
            gate.append(_of_worst_rank(criterion))
            continue
        against = _AGAINST[bound]
        fails = getattr(criterion, against)
        if profile.floor_tok_s is None and fails is None:
            left_out.append(LeftOut(id=criterion.id, why="the profile has no floor"))
            continue
        said = {**criterion.model_dump(exclude_unset=True), bound: profile.floor_tok_s}
        if _contradicts(bound, profile.floor_tok_s, fails):
            del said[against]
            why = f"{fails:g} contradicts the floor of {name}, {profile.floor_tok_s:g}"
            left_out.append(LeftOut(id=f"{criterion.id}.{against}", why=why))
        filled = _criterion(said, f"phases.{phase.name}.gate.{criterion.id}")
        gate.append(_of_worst_rank(filled))
    return gate, left_out


def _of_worst_rank(criterion: Criterion) -> Criterion:
    """Return the criterion with the rank that counts; of a lower bound it is the lowest anyway."""
    below = criterion.pass_below is not None or criterion.fail_above is not None
    if not below or "over_ranks" in criterion.model_fields_set:
        return criterion
    return criterion.model_copy(update={"over_ranks": "max"})


def _contradicts(bound: str, floor: float | None, fails: float | None) -> bool:
    if floor is None or fails is None:
        return False
    return fails > floor if bound == "pass_above" else fails < floor


def _criterion(said: dict[str, Any], where: str) -> Criterion:
    try:
        return Criterion.model_validate(said)
    except ValidationError as error:
        problems = problems_of(error, said)
        raise rejected(
            [type(row)(path=where, message=f"{row.path}: {row.message}") for row in problems]
        ) from error
