"""How is a plan sent to a service? Once for a key; its problems get places, warnings are told."""

import uuid
from collections.abc import Mapping
from typing import Any

from gonogo.cli.client import Client
from gonogo.cli.output import err
from gonogo.cli.reach.plans import PlanArgument, placed
from gonogo.contract.canonical import wire_value


def submit_plan(
    client: Client,
    path: str,
    plan: PlanArgument | None,
    sets: Mapping[str, Any],
    *,
    key: str | None,
    **body: object,
) -> dict[str, Any]:
    """Return what the service answers; its warnings are told on the way.

    Args:
        client: the service.
        path: where plans of this kind go.
        plan: the plan as it was named; None: that of the experiment that is gone on from.
        sets: overrides of its keys.
        key: idempotency key; None: a fresh one, so that a repeated request submits once.
        body: what else is asked for.

    Raises:
        Rejected: the plan or an override is wrong; each problem has its line.
    """
    said = None if plan is None else wire_value(plan.submitted)
    whole = {"plan": said, "set": wire_value(dict(sets)), **body}
    with placed(plan or PlanArgument(name="rerun"), sets):
        answer: dict[str, Any] = client.post(
            path, whole, **{"Idempotency-Key": key or str(uuid.uuid4())}
        )
    for warning in answer.get("warnings", []):
        err.print(f"warning: {warning}", markup=False, highlight=False, soft_wrap=True)
    return answer
