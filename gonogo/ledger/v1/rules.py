"""By which rules did release 0.1 judge a run? Derived from its order.json, as it derived them.

What a plan left unsaid had that release's defaults, which stand in `watch_defaults.json`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import Corrupt
from gonogo.contract.wire import Recorded
from gonogo.ledger.v1.beats import Identity

Json = Mapping[str, Any]

BUILT_IN = ("completed", "identity", "coverage", "preflight", "no_halt_finding")

NOBODY_SAID: Json = {
    "judge_version": 1,
    "built_in": list(BUILT_IN),
    "gate": [],
    "conditions": [],
}
"""The rules of a run without an order."""

Bound = float | Literal["profile"] | None


class Criterion(BaseModel):
    """A predicate over facts; `pass_*` is inclusive, `fail_*` exclusive."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    metric: str
    aggregate: str = "median"
    over_ranks: Literal["min", "max", "mean", "sum"] = "min"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    window: Annotated[int, Field(ge=0)] = 0
    pass_above: Bound = None
    pass_below: Bound = None
    fail_above: float | None = None
    fail_below: float | None = None
    grey: Literal["conditional", "inconclusive"] = "inconclusive"
    min_samples: Annotated[int, Field(ge=1)] = 1
    on_missing: Literal["inconclusive", "error", "fail"] = "inconclusive"
    on_nan: Literal["fail", "error"] = "fail"
    severity: Literal["required", "conditional", "advisory"] = "required"
    evidence_from: str | None = None
    due: str | None = None
    on_miss: Literal["no_go", "conditional_go", "inconclusive"] = "no_go"


class _LeftOut(Recorded):
    id: str
    why: str


class _Phase(Recorded):
    name: str
    steps: int


class _Resume(Recorded):
    path: str
    step: int


class Order(Recorded):
    """What release 0.1 read of order.json."""

    experiment: str
    run: str
    attempt: int = 1
    reason: str = "first"
    plan: str
    plan_digest: str
    phase: str
    steps: int
    world_size: int
    profile: str
    resume_from: _Resume | None = None
    train: dict[str, Any]
    identity: Identity = Identity()
    allow_drift: list[str] = Field(default_factory=list)
    gate: list[Criterion] = Field(default_factory=list)
    left_out: list[_LeftOut] = Field(default_factory=list)
    phases_after: list[_Phase] = Field(default_factory=list)
    watch: dict[str, Any] = Field(default_factory=dict)
    watch_from_profile: list[str] = Field(default_factory=list)
    judge_version: int = 1


def build_rules(order: Order, conditions: Iterable[Json] = ()) -> dict[str, Any]:
    """Return the rules of an order.

    Args:
        order: as read from order.json.
        conditions: open conditions of the experiment that the run could meet, each with its
            criterion, as rules hold them.
    """
    evals = order.train.get("eval")
    watch = dict(_watch_values(order))
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
        "params_tolerance_ratio": watch["identity.params_tolerance_ratio"]["value"],
        "allow_drift": sorted(order.allow_drift),
        "built_in": list(BUILT_IN),
        "gate": [row.model_dump(mode="json") for row in order.gate],
        "left_out": [row.model_dump(mode="json") for row in order.left_out],
        "phases_after": [row.model_dump(mode="json") for row in order.phases_after],
        "conditions": [dict(row) for row in conditions],
        "watch": watch,
    }
    found: dict[str, Any] = wire_value(rules)
    return found


def watch_defaults() -> dict[str, Any]:
    """Return dotted path → value of every setting that release 0.1 had."""
    text = files("gonogo.ledger.v1").joinpath("watch_defaults.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def _watch_values(order: Order) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, default in watch_defaults().items():
        said, value = _at(order.watch, path.split("."))
        source = "plan" if said else "default"
        if path in order.watch_from_profile:
            source = "profile"
        yield path, {"value": value if said else default, "source": source}


def _at(node: Any, parts: list[str]) -> tuple[bool, Any]:
    for part in parts:
        if not isinstance(node, Mapping) or part not in node:
            return False, None
        node = node[part]
    return True, node


def parse_criterion(row: Any) -> Criterion:
    """Return a recorded criterion.

    Raises:
        Corrupt: it is none.
    """
    try:
        return Criterion.model_validate(row)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Corrupt(f"a criterion of the rules: {where}: {first['msg']}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What was ordered, as far as it decides which samples must be there."""

    first_step: int
    last_step: int
    world_size: int
    tokens_per_step: int | None = None
    eval_every_steps: int | None = None
    steps_after: int = 0

    def steps(self) -> range:
        """Return the steps that this attempt owes."""
        return range(self.first_step, self.last_step + 1)

    def window(self, criterion: Criterion) -> range:
        """Return the steps that a criterion looks at: after warm-up, the last `window` of them."""
        first = self.first_step + criterion.warmup_steps
        if criterion.window:
            first = max(first, self.last_step - criterion.window + 1)
        return range(first, self.last_step + 1)

    def evals(self, window: range) -> list[int]:
        """Return the steps in `window` after which an evaluation is due."""
        every = self.eval_every_steps
        return [step for step in window if every and step % every == 0]


def build_scope(rules: Json) -> Scope | None:
    """Return the scope that rules name, or None when nobody said what was ordered."""
    if rules.get("steps") is None or rules.get("world_size") is None:
        return None
    return Scope(
        first_step=rules["first_step"],
        last_step=rules["steps"],
        world_size=rules["world_size"],
        tokens_per_step=rules.get("tokens_per_step"),
        eval_every_steps=rules.get("eval_every_steps"),
        steps_after=sum(row["steps"] for row in rules.get("phases_after", [])),
    )
