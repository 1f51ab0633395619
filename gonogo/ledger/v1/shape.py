"""Are recorded facts and rules of release 0.1 well formed? Checked before anything is judged."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gonogo.contract.errors import Corrupt
from gonogo.ledger.v1.measure import AGGREGATES
from gonogo.ledger.v1.metrics import METRICS
from gonogo.ledger.v1.outcomes import CLASS_OF
from gonogo.ledger.v1.rules import BUILT_IN, Criterion, Json

Whole = Annotated[int, Field(strict=True)]
Small = Annotated[int, Field(strict=True, ge=0, le=100_000)]
Step = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Bound = Real | Literal["NaN", "Infinity", "-Infinity"]
Flag = Annotated[bool, Field(strict=True)]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Ended(_Shape):
    code: Whole | None
    signal: Whole | None


class _Outcome(_Shape):
    code: str
    actor: str
    klass: str = Field(alias="class")


class _Preflight(_Shape):
    passed: Flag
    failed: list[str]
    warned: list[str]
    checks: Whole


class _Finding(_Shape):
    detector: str
    severity: str
    rank: Whole | None
    section: str | None
    step: Whole | None


class _Missing(_Shape):
    count: Whole
    first: list[str]


class _Rank(_Shape):
    count: Whole
    gaps: Whole
    last_step: Whole
    done_step: Whole | None
    tokens: list[Whole]
    missing: _Missing | None


class _Said(_Shape):
    params: Whole | None = None
    dtype: str | None = None
    nsa_env: dict[str, str] | None = None


class _Pace(_Shape):
    sections_s: dict[str, Real | None]


class _MeasuredRank(_Shape):
    samples: Whole
    owed: Whole
    non_finite: Whole
    value: Bound | None
    low: Bound
    high: Bound


class _Measure(_Shape):
    window: str
    ranks: dict[str, _MeasuredRank]


class _Variant(_Shape):
    env: dict[str, Any] = {}
    train: dict[str, Any] = {}


class _Confirmation(_Shape):
    verdict: str | None
    variant: _Variant | None


class _Remedy(_Shape):
    diagnosis: str
    patch: Any


class _History(_Shape):
    restart_storm: Flag = False
    confirmations: list[_Confirmation] = []
    remedy: _Remedy | None = None


class _Facts(_Shape):
    source: str
    outcome: _Outcome | None
    exit: _Ended | None
    preflight: _Preflight | None
    watched: Flag
    findings: list[_Finding]
    ranks: dict[str, _Rank]
    identity: dict[str, _Said]
    pace: dict[str, _Pace]
    signs: list[str]
    measures: dict[str, _Measure]
    history: _History | None = None


class _Phase(_Shape):
    name: str
    steps: Step


class _OpenCondition(_Shape):
    condition: "_Condition"
    criterion: Criterion


class _Condition(_Shape):
    id: str


class _Rules(_Shape):
    judge_version: Whole
    built_in: list[Literal[BUILT_IN]]  # type: ignore[valid-type]  # a tuple of names
    gate: list[Criterion]
    conditions: list[_OpenCondition]
    phase: str | None = None
    steps: Step | None = None
    first_step: Step = 1
    world_size: Small | None = None
    tokens_per_step: Whole | None = None
    eval_every_steps: Whole | None = None
    identity: dict[str, Any] = {}
    params_tolerance_ratio: Real = 0.0
    allow_drift: list[str] = []
    phases_after: list[_Phase] = []


_FACTS = TypeAdapter(_Facts)
_RULES = TypeAdapter(_Rules)


def check_shapes(facts: Json, rules: Json) -> None:
    """Check that facts and rules can be judged.

    Raises:
        Corrupt: they cannot; with the place.
    """
    _check(_RULES, rules, "rules")
    _check(_FACTS, facts, "facts")
    _check_names(facts, rules)


def _check(shape: TypeAdapter[Any], value: Json, name: str) -> None:
    try:
        shape.validate_python(dict(value))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join([name, *(str(part) for part in first["loc"])])
        raise Corrupt(f"{where}: {first['msg']}") from error


def _check_names(facts: Json, rules: Json) -> None:
    """What tables are asked for must stand in them."""
    rows = [*rules["gate"], *(row["criterion"] for row in rules["conditions"])]
    for row in rows:
        if row["metric"] not in METRICS or row.get("aggregate", "median") not in AGGREGATES:
            raise Corrupt(f"rules.gate: release 0.1 knew no {row['metric']!r} of such an aggregate")
    outcome = facts["outcome"]
    if outcome is not None and CLASS_OF.get(outcome["code"]) != outcome["class"]:
        raise Corrupt(f"facts.outcome: release 0.1 knew no {outcome['code']!r} of that class")
    owed = {"first_step", "allow_drift", "world_size", "params_tolerance_ratio"}
    if (rules.get("identity") or rules.get("steps") is not None) and (
        owed - rules.keys() or rules["world_size"] is None
    ):
        raise Corrupt(f"rules: {', '.join(sorted(owed))} are needed beside what was ordered")
    known = rules.get("steps") is not None and rules.get("world_size") is not None
    if known and any(row["missing"] is None for row in facts["ranks"].values()):
        raise Corrupt("facts.ranks: what is missing was not counted")
    wanted = rules.get("identity", {}).get("params")
    if wanted is not None and type(wanted) is not int:
        raise Corrupt("rules.identity.params: expected a whole number")
