"""Judging a run again: from recorded facts and rules, or from its run directory.

Recorded facts and rules are read through their models first. So a malformed document is `Corrupt`
and names the place; it never crashes a replay.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gonogo.contract.canonical import wire_value
from gonogo.contract.criterion import Criterion
from gonogo.contract.decision import Condition
from gonogo.contract.errors import Corrupt
from gonogo.contract.facts import Facts, History
from gonogo.contract.order import MOST_RANKS, Order, RunReason
from gonogo.contract.rules import Rules
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.metrics import absent_text, metric_row
from gonogo.judge.facts.record import load_order, load_run
from gonogo.judge.gate.history import early_end_of, rerun_of, with_history
from gonogo.judge.gate.rules import OpenCondition, build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.ledger.recorded import first_error
from gonogo.pruned import check_not_pruned
from gonogo.rundir import RunDir

Json = Mapping[str, Any]

_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """The rules and facts that a run directory yields today."""

    order: Order | None
    rules: dict[str, Any] | None
    """Derived from the order; None without order.json."""
    facts: dict[str, Any]

    @property
    def rerun(self) -> dict[str, Any] | None:
        """What the order says of a confirmation or a remedy, in the form of a history."""
        if self.order is None or self.order.reason not in (RunReason.CONFIRM, RunReason.REMEDY):
            return None
        found: dict[str, Any] = rerun_of(self.order).model_dump(mode="json")
        return found

    @property
    def until(self) -> int | None:
        """Last step by the order, if the order ends before its phase does."""
        return None if self.order is None else early_end_of(self.order)


def judge_again(facts: Json, rules: Json) -> dict[str, Any]:
    """Return the fields of a decision that the judge fills in, from recorded facts and rules.

    Raises:
        Corrupt: the facts or rules are malformed, or a metric needs a package that is missing here.
    """
    asked = parsed(Rules, "rules", rules)
    if asked.world_size is not None and not 0 <= asked.world_size <= MOST_RANKS:
        text = f"rules.world_size: {asked.world_size} is not between 0 and {MOST_RANKS}"
        raise Corrupt(text)
    _check_metrics(asked)
    again = judge(parsed(Facts, "facts", facts), asked)
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


def _check_metrics(rules: Rules) -> None:
    """Raise `Corrupt`, with its place, if nothing installed here measures a metric."""
    places = [(f"gate.{number}", row) for number, row in enumerate(rules.gate)]
    places += [(f"measured.{number}", row) for number, row in enumerate(rules.measured)]
    places += [
        (f"conditions.{number}.criterion", row.criterion)
        for number, row in enumerate(rules.conditions)
    ]
    for place, row in places:
        if metric_row(row.metric) is None:
            raise Corrupt(f"rules.{place}.metric: {absent_text(row.metric)}")


def parsed(model: type[_M], name: str, document: Any) -> _M:
    """Return a part of a recorded decision as its model.

    Args:
        model: of the part.
        name: path of the part, for the error.
        document: the part.

    Raises:
        Corrupt: the part is malformed.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise Corrupt(f"{name}.{first_error(error)}") from error


def read_again(path: Path, recorded: Json, history: Json | None) -> Again:
    """Return the rules and facts of a run directory.

    Args:
        path: the run directory.
        recorded: the recorded rules. Their open conditions are taken over, since an order does not
            name them; without order.json all of them are.
        history: what the phase's other runs came to, put beside the facts as recorded.

    Raises:
        Corrupt: a record in the directory cannot be read.
        NotFound: the directory was pruned.
    """
    check_not_pruned(path)
    try:
        return _read(path, recorded, history)
    except OSError as error:
        raise Corrupt(f"{path.name} cannot be read: {error.strerror}") from error


def _read(path: Path, recorded: Json, history: Json | None) -> Again:
    order = load_order(RunDir(path))
    derived = None
    if order is not None:
        derived = build_rules(order, _open(recorded.get("conditions", [])))
    record = load_run(path)
    if record.order != order:
        raise Corrupt("order.json was overwritten while it was read")
    facts = build_facts(record, derived or parsed(Rules, "rules", recorded))
    past = parsed(History, "facts.history", history) if history else None
    return Again(
        order=order,
        rules=None if derived is None else derived.document(),
        facts=with_history(facts, past).document(),
    )


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
