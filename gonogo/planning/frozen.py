"""What does an experiment hold of its plan once it is submitted? Everything, for good."""

from typing import Any

from pydantic import PrivateAttr

from gonogo.contract.plan import Plan
from gonogo.contract.wire import Recorded
from gonogo.planning.source import parse_frozen_plan


class ResolvedPlan(Recorded):
    """A plan with its overrides, the whole training configuration, and a fault to inject."""

    plan: dict[str, Any]
    train: dict[str, Any]
    fault: str | None = None
    _parsed: Plan | None = PrivateAttr(default=None)
    _digest: str | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, plan: Plan, train: dict[str, Any], fault: str | None) -> "ResolvedPlan":
        """Return the frozen form of a plan that is a model already."""
        found = cls(plan=plan.canonical(), train=train, fault=fault)
        found._parsed = plan
        return found

    def parsed(self) -> Plan:
        """Return the plan as a model; read once."""
        if self._parsed is None:
            self._parsed = parse_frozen_plan(self.plan)
        return self._parsed

    def plan_digest(self) -> str:
        """Return the digest of the plan; taken once."""
        if self._digest is None:
            self._digest = self.parsed().digest()
        return self._digest
