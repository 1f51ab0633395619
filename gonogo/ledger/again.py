"""What do recorded facts, an order and a run directory come to, by the judge of their version?

The only place that knows which code judged a decision: `v1` for release 0.1, the present code for
everything since. Recorded facts and rules are read through their models first, so that what is not
well formed is `Corrupt` with its place, never a crash.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gonogo.contract.canonical import wire_value
from gonogo.contract.criterion import BUILT_IN_CRITERIA, Criterion
from gonogo.contract.decision import Condition
from gonogo.contract.errors import Corrupt
from gonogo.contract.facts import Facts, History
from gonogo.contract.order import JUDGE_VERSION, Order, RunReason
from gonogo.contract.rules import Rules
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.metrics import absent_text, metric_row
from gonogo.judge.facts.record import load_order, load_run
from gonogo.judge.gate.history import early_end_of, rerun_of, with_history
from gonogo.judge.gate.rules import OpenCondition, build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.ledger.v1 import facts as v1_facts
from gonogo.ledger.v1 import record as v1_record
from gonogo.ledger.v1 import rules as v1_rules
from gonogo.ledger.v1 import shape as v1_shape
from gonogo.ledger.v1 import verdict as v1_verdict
from gonogo.pruned import check_not_pruned
from gonogo.rundir import RunDir

Json = Mapping[str, Any]
MAX_RANKS = 100_000
"""Of one run; rules that say more would make the judge count for ever."""

_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What a run directory comes to today, by the judge of its decision's version."""

    rules: dict[str, Any] | None
    """Derived from order.json; None where there is none."""
    facts: dict[str, Any]
    ended: bool
    """Whether exit.json is there."""
    reason: str | None
    """Why the run was started, by its order."""
    run: str | None
    """Which run it is, by its order."""
    experiment: str | None
    """Whose run it is, by its order."""
    rerun: dict[str, Any] | None = None
    """What the order tells of a confirmation or a remedy, as a history would."""
    until: int | None = None
    """Its last step by its order, where that is not the phase's own."""
    attempt: int | None = None
    """Which attempt of its phase it is, by its order."""


def is_v1(rules: Json) -> bool:
    """Say whether release 0.1 judged by these rules.

    Raises:
        Corrupt: they do not say which version judged, or one that this code does not know.
    """
    return known_version(rules.get("judge_version"), "rules.judge_version") == 1


def known_version(said: object, path: str) -> int:
    """Return which version of the judge is said to have judged.

    Raises:
        Corrupt: nothing says it, or this code does not know that one.
    """
    if type(said) is not int or said not in range(1, JUDGE_VERSION + 1):
        raise Corrupt(f"{path} is {said!r}; this code knows 1 to {JUDGE_VERSION}")
    return said


def judge_again(facts: Json, rules: Json) -> dict[str, Any]:
    """Return what recorded facts and rules come to: the fields that the judge fills in.

    Raises:
        Corrupt: they are not well formed, or a metric is of a package that is not installed.
    """
    if is_v1(rules):
        v1_shape.check_shapes(facts, rules)
        return v1_verdict.judge(facts, rules)
    said = _parsed(Rules, "rules", rules)
    if said.world_size is not None and not 0 <= said.world_size <= MAX_RANKS:
        raise Corrupt(f"rules.world_size: {said.world_size} is not between 0 and {MAX_RANKS}")
    _check_metrics(said)
    again = judge(_parsed(Facts, "facts", facts), said)
    found: dict[str, Any] = wire_value(
        {
            "verdict": again.verdict,
            "criteria": [row.model_dump(mode="json") for row in again.criteria],
            "conditions": [row.model_dump(mode="json") for row in again.conditions],
            "diagnosis": again.diagnosis,
            "weakened": again.weakened,
        }
    )
    return found


def failed_again(facts: Json, rules: Json) -> list[str]:
    """Return which criteria and open conditions a run fails, or leaves open, by facts and rules.

    Raises:
        Corrupt: they are not well formed.
    """
    if is_v1(rules):
        return []
    found = judge(_parsed(Facts, "facts", facts), _parsed(Rules, "rules", rules))
    left = (row.criterion for row in found.conditions)
    return [*found.failed, *found.lasting, *left]


def _check_metrics(rules: Rules) -> None:
    """Raise `Corrupt`, with its place, where nothing installed here measures a metric."""
    places = [(f"gate.{number}", row) for number, row in enumerate(rules.gate)]
    places += [(f"measured.{number}", row) for number, row in enumerate(rules.measured)]
    places += [
        (f"conditions.{number}.criterion", row.criterion)
        for number, row in enumerate(rules.conditions)
    ]
    for place, row in places:
        if metric_row(row.metric) is None:
            raise Corrupt(f"rules.{place}.metric: {absent_text(row.metric)}")


def _parsed(model: type[_M], name: str, document: Json) -> _M:
    """Return recorded facts or rules as their model.

    Raises:
        Corrupt: they are not well formed.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Corrupt(f"{name}.{where}: {first['msg']}") from error


def built_in_of(rules: Json) -> tuple[str, ...]:
    """Return the built-in criteria that the judge of these rules' version has."""
    return v1_rules.BUILT_IN if is_v1(rules) else BUILT_IN_CRITERIA


def read_again(path: Path, recorded: Json, history: Json | None) -> Again:
    """Return the rules and facts of a run directory.

    Args:
        path: the run directory.
        recorded: the recorded rules; the version to read by, and the conditions that were open,
            which an order does not name.
        history: what the phase's other runs said, put beside the facts as recorded.

    Raises:
        Corrupt: a record in the directory cannot be read.
        NotFound: it was pruned.
    """
    check_not_pruned(path)
    try:
        return _read(path, recorded, history)
    except OSError as error:
        raise Corrupt(f"{path.name} cannot be read: {error.strerror}") from error


def _read(path: Path, recorded: Json, history: Json | None) -> Again:
    conditions = recorded.get("conditions", [])
    if is_v1(recorded):
        return _read_v1(path, conditions, history)
    run_dir = RunDir(path)
    order = load_order(run_dir)
    said = _parsed(Rules, "rules", recorded)
    rules = None
    if order is not None:
        rules = build_rules(order, _open(conditions))
    measured = rules if rules is not None else said
    record = load_run(path)
    if record.order != order:
        raise Corrupt("order.json was written over while it was read")
    facts = build_facts(record, measured)
    past = _parsed(History, "facts.history", history) if history else None
    return Again(
        rules=None if rules is None else rules.document(),
        facts=with_history(facts, past).document(),
        ended=run_dir.exit.exists(),
        reason=None if order is None else order.reason.value,
        run=None if order is None else order.run,
        experiment=None if order is None else order.experiment,
        rerun=_rerun_of(order),
        until=None if order is None else early_end_of(order),
        attempt=None if order is None else order.attempt,
    )


def _rerun_of(order: Order | None) -> dict[str, Any] | None:
    if order is None or order.reason not in (RunReason.CONFIRM, RunReason.REMEDY):
        return None
    found: dict[str, Any] = rerun_of(order).model_dump(mode="json")
    return found


def _open(conditions: Iterable[Any]) -> list[OpenCondition]:
    try:
        return [
            OpenCondition(
                condition=Condition.model_validate(row["condition"]),
                criterion=Criterion.model_validate(row["criterion"]),
            )
            for row in conditions
        ]
    except (ValidationError, KeyError, TypeError) as error:
        raise Corrupt(f"rules.conditions: not well formed: {error}") from error


def _read_v1(path: Path, conditions: Iterable[Json], history: Json | None) -> Again:
    run_dir = RunDir(path)
    record = v1_record.load_run(path)
    rules = None if record.order is None else v1_rules.build_rules(record.order, conditions)
    facts = v1_facts.build_facts(record, rules or v1_rules.NOBODY_SAID)
    return Again(
        rules=rules,
        facts={**facts, "history": dict(history)} if history else facts,
        ended=run_dir.exit.exists(),
        reason=None if record.order is None else record.order.reason,
        run=None if record.order is None else record.order.run,
        experiment=None if record.order is None else record.order.experiment,
        attempt=None if record.order is None else record.order.attempt,
    )
