"""How do rules come from an order? Derived again whenever a run is judged or a decision replayed.

Rules are a pure function of order.json and of the conditions that wait for the phase, so a check of
a decision derives them again instead of believing those that it holds.
"""

from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel, JsonValue

from gonogo.contract.criterion import ADDED_CRITERIA, BUILT_IN_CRITERIA, Criterion
from gonogo.contract.errors import Rejected
from gonogo.contract.facts import SaidIdentity
from gonogo.contract.order import MOST_STEPS, OpenCondition, Order, Rules, WatchValue
from gonogo.judge.gate.added_criteria import find_disarmed


def _eval_every_steps(order: Order) -> int | None:
    """Return how often an evaluation is due."""
    evals = order.train.get("eval")
    every = evals.get("every_steps") if isinstance(evals, Mapping) else None
    if every is None or (type(every) is int and 0 <= every <= MOST_STEPS):
        return every
    raise Rejected(f"order.json: train.eval.every_steps: {str(every)[:40]!r} is no number of steps")


def _distinct(criteria: list[Criterion]) -> list[Criterion]:
    """Return the criteria of an order; two of one id, or of an id of the judge, are rejected."""
    ids = [row.id for row in criteria]
    again = next((row for row in ids if ids.count(row) > 1), None)
    if again is not None:
        raise Rejected(f"order.json: gate.{again}: two criteria have the same id")
    taken = next((row for row in ids if row in ADDED_CRITERIA), None)
    if taken is not None:
        raise Rejected(f"order.json: gate.{taken}: the judge adds a criterion of this id itself")
    return criteria


def build_rules(order: Order | None, conditions: Iterable[OpenCondition] = ()) -> Rules:
    """Return the rules by which a run is judged.

    Args:
        order: the run's order; None when nobody recorded what was ordered.
        conditions: open conditions of the experiment whose `evidence_from` is this phase.

    Raises:
        Rejected: the order's gate, or its evaluations, make no sense.
    """
    if order is None:
        return Rules(built_in=list(BUILT_IN_CRITERIA), gate=[], conditions=[])
    from_profile = frozenset(order.watch_from_profile)
    return Rules(
        plan=order.plan if order.has_plan else "",
        plan_digest=order.plan_digest,
        phase=order.phase,
        profile=order.profile,
        steps=order.steps,
        first_step=order.resume_from.step + 1 if order.resume_from is not None else 1,
        world_size=order.world_size,
        tokens_per_step=order.identity.tokens_per_step,
        eval_every_steps=_eval_every_steps(order),
        identity=SaidIdentity.model_validate(order.identity.model_dump()),
        params_tolerance_ratio=order.watch.identity.params_tolerance_ratio,
        allow_drift=sorted(order.allow_drift),
        built_in=list(BUILT_IN_CRITERIA),
        gate=_distinct(order.gate),
        left_out=order.left_out,
        phases_after=order.phases_after,
        conditions=[row for row in conditions if row.criterion is not None],
        program_kind=order.program_kind,
        watch={
            path: WatchValue(value=value, source=order.watch.source_of(path, from_profile))
            for path, value in _leaves(order.watch)
        },
        run=order.run,
        attempt=order.attempt,
        reason=order.reason,
        preflight=order.preflight,
        detectors=sorted(order.detectors),
        waive=sorted(order.waive),
        programs=None if order.command is None else 1,
        allow_faults=order.allow_faults,
        fault=order.fault,
        carried=order.carried,
        failures=order.failures,
        taints=order.taints,
        disarmed=dict(find_disarmed(order)),
    )


def _leaves(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
