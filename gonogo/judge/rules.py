"""What does a verdict depend on besides the facts? Everything, as JSON, whole.

Rules hold the gate with its thresholds, the identity, the steps owed, the conditions that this
phase can meet and the watchdog's values with their sources, so that recorded facts and recorded
rules come to the same decision for ever, whatever the defaults of later versions are.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from gonogo.contract.canonical import wire_value
from gonogo.contract.criterion import BUILT_IN_CRITERIA, Criterion
from gonogo.contract.decision import Condition
from gonogo.contract.order import JUDGE_VERSION, Order


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCondition:
    """A condition that waits for evidence, with its criterion as it was when it failed."""

    condition: Condition
    criterion: Criterion | None
    """None where nothing can be measured again: only a person can settle it."""


def build_rules(order: Order | None, conditions: Iterable[OpenCondition] = ()) -> dict[str, Any]:
    """Return the rules by which a run is judged.

    Args:
        order: the run's order; None when nobody recorded what was ordered.
        conditions: open conditions of the experiment whose `evidence_from` is this phase.
    """
    if order is None:
        return {
            "judge_version": JUDGE_VERSION,
            "built_in": list(BUILT_IN_CRITERIA),
            "gate": [],
            "conditions": [],
        }
    evals = order.train.get("eval")
    rules = {
        "judge_version": order.judge_version,
        "plan": order.plan,
        "plan_digest": order.plan_digest,
        "phase": order.phase,
        "profile": order.profile,
        "steps": order.steps,
        "first_step": order.resume_from.step + 1 if order.resume_from is not None else 1,
        "world_size": order.world_size,
        "tokens_per_step": order.identity.tokens_per_step,
        "eval_every_steps": evals.get("every_steps") if isinstance(evals, Mapping) else None,
        "identity": order.identity.model_dump(mode="json", exclude_none=True),
        "params_tolerance_ratio": order.watch.identity.params_tolerance_ratio,
        "allow_drift": sorted(order.allow_drift),
        "built_in": list(BUILT_IN_CRITERIA),
        "gate": [criterion.model_dump(mode="json") for criterion in order.gate],
        "left_out": [row.model_dump(mode="json") for row in order.left_out],
        "phases_after": [row.model_dump(mode="json") for row in order.phases_after],
        "conditions": [
            {
                "condition": row.condition.model_dump(mode="json"),
                "criterion": row.criterion.model_dump(mode="json"),
            }
            for row in conditions
            if row.criterion is not None
        ],
        "watch": dict(watch_values(order)),
    }
    found: dict[str, Any] = wire_value(rules)
    return found


def watch_values(order: Order) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every setting of the watchdog: dotted path, value and where it came from."""
    from_profile = frozenset(order.watch_from_profile)
    for path, value in _leaves(order.watch, ""):
        source = order.watch.source_of(path, from_profile)
        yield path, {"value": value, "source": source.value}


def _leaves(model: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
