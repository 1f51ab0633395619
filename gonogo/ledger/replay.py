"""Replaying a recorded decision: its digests, its signature and chain, and two halves.

(a) The recorded facts and rules must yield the same decision. (b) The order must yield the same
rules, and the run directory the same facts. The result names the first difference, and which code
made the decision if this is another. What cannot be checked is listed as *not verified*; it never
passes silently.

Not covered: the decisions of persons and about conditions, of which only digests, signature and
chain are checked; what the history says of other runs; which conditions were open.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gonogo.contract.canonical import wire_value
from gonogo.contract.criterion import BUILT_IN_CRITERIA
from gonogo.contract.decision import PASSING, DecisionKind, MadeBy
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.facts import Facts, History
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.contract.order import MOST_RANKS, Order, Rules
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.metrics import absent_text, metric_row
from gonogo.judge.facts.record import load_run
from gonogo.judge.gate.added_criteria import with_history
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.ledger.recorded import (
    Difference,
    RecordedDecision,
    first_difference,
    first_error,
    shortened,
)
from gonogo.ledger.sign import Trust
from gonogo.ledger.verify import check_chain, signature_problem
from gonogo.watch.registry import made_by

Json = Mapping[str, Any]

_M = TypeVar("_M", bound=BaseModel)

_FROM_LINES = ("ranks", "boots", "identity", "pace", "measures", "findings", "config_digest")
"""Facts that do not depend on who wrote down the end of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The result of replaying a decision."""

    equal: bool
    checked: tuple[str, ...]
    """What was compared: `rule`, `facts`, `hash`, `signature`, `chain`, `decision`, `order`,
    `run_directory`."""
    not_verified: tuple[Doubt, ...] = ()
    """What could not be checked."""
    path: str | None = None
    """Place of the first difference, such as `facts.ranks.0.digest`."""
    recorded: Any = None
    found: Any = None
    text: str = ""
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The files around a decision."""

    run_dir: Path | None = None
    """The directory of its run."""
    siblings: Sequence[RecordedDecision] | None = None
    """The other decisions of its experiment; None if nobody looked."""
    trust: Trust | None = None
    """The keys that may sign; None if decisions are not signed there."""
    unreadable: tuple[Doubt, ...] = ()
    """Files among the siblings that cannot be read."""


@dataclass(slots=True)
class _Log:
    """What was checked so far, and what could not be."""

    checked: list[str] = field(default_factory=list)
    not_verified: list[Doubt] = field(default_factory=list)

    def cannot_check(self, kind: DoubtKind, name: str | None = None) -> None:
        """Add what could not be checked."""
        self.not_verified.append(Doubt(kind=kind, name=name))


def replay_decision(
    recorded: RecordedDecision, around: Surroundings | None = None, *, facts_only: bool = False
) -> ReplayResult:
    """Return whether a decision replays.

    Args:
        around: its run directory, its siblings and the keys.
        facts_only: start from the recorded facts and leave the run directory alone.

    Raises:
        NotFound: the run directory is missing, though the facts rest on its lines.
    """
    around = around or Surroundings()
    log = _Log()
    try:
        difference = _first_wrong(recorded, around, facts_only, log)
    except Corrupt as error:
        path = error.detail.partition(":")[0]
        difference = Difference(path=path, recorded=None, found=None, text=error.detail)
    if difference is None:
        return _result(log, equal=True, text=_same_text(recorded))
    text = difference.sentence()
    if "decision" in log.checked:
        text += _other_code(recorded.decision.made_by, made_by())
    return _result(
        log,
        equal=False,
        path=difference.path,
        recorded=difference.recorded,
        found=difference.found,
        text=text,
    )


def _other_code(then: MadeBy, here: MadeBy) -> str:
    """Return how to install the code that made a decision; nothing if this is that code."""
    if then.is_same_code(here):
        return ""
    commands = []
    if (then.gonogo, then.sources) != (here.gonogo, here.sources):
        checkout = f"git checkout {then.commit} && pip install ."
        commands.append(checkout if then.commit else f"pip install gonogo=={then.gonogo}")
    for name, version in then.packages.items():
        if here.packages.get(name) != version:
            commands.append(f"pip install {name}=={version}")
    return (
        f". It was made by {then.words()}; this is {here.words()}."
        f" The code that made it: {' && '.join(commands) or 'without the packages added since'}"
    )


def _result(log: _Log, **fields: Any) -> ReplayResult:
    checked, not_verified = tuple(log.checked), tuple(log.not_verified)
    return ReplayResult(checked=checked, not_verified=not_verified, **fields)


def _same_text(recorded: RecordedDecision) -> str:
    if recorded.decision.kind is DecisionKind.AUTO:
        then = recorded.decision.made_by
        by = "" if then.is_same_code(made_by()) else f", though made by {then.words()}"
        return f"{recorded.verdict or 'no verdict'}: the same{by}"
    return f"a {recorded.decision.kind} decision: digests are whole"


def _first_wrong(
    recorded: RecordedDecision, around: Surroundings, facts_only: bool, log: _Log
) -> Difference | None:
    log.checked += ["rule", "facts", "hash"]
    checks = (_signature, _chain) if around.trust else (_chain, _signature)
    difference = recorded.seals()
    for check in checks:
        difference = difference or check(recorded, around, log)
    if difference is not None:
        return difference
    decision = recorded.decision
    if decision.kind is not DecisionKind.AUTO:
        log.cannot_check(DoubtKind.NOT_JUDGED, decision.kind)
        if decision.kind is DecisionKind.HUMAN or decision.conditions:
            return None
        return Difference(path="conditions", recorded=[], found="(what it settles)")
    log.checked.append("decision")
    difference = _judged_again(recorded.document)
    if difference is None and not facts_only:
        difference = _read_again(recorded, around, log)
    return difference


def _signature(recorded: RecordedDecision, around: Surroundings, log: _Log) -> Difference | None:
    """Check the signature; a signed decision without a public key is a difference, too.

    Else a person who removes the public key could edit a signed decision and keep it equal.
    """
    if around.trust is None and not recorded.signed:
        log.cannot_check(DoubtKind.UNSIGNED)
        return None
    log.checked.append("signature")
    problem = signature_problem(recorded, around.trust or Trust())
    if problem is None:
        return None
    signature = recorded.document.get("signature")
    text = f"signature: {problem}"
    return Difference(path="signature", recorded=signature, found=None, text=text)


def _chain(recorded: RecordedDecision, around: Surroundings, log: _Log) -> Difference | None:
    log.not_verified += around.unreadable
    if around.siblings is None:
        log.cannot_check(DoubtKind.CHAIN_UNCHECKED)
        return None
    log.checked.append("chain")
    for wrong in check_chain([recorded, *around.siblings], around.trust or None):
        if wrong.missing is not None:
            log.not_verified.append(wrong.missing)
            continue
        path = f"chain.{wrong.decision}.{wrong.field}"
        text = f"chain, {wrong.decision}: {wrong.text}"
        return Difference(path=path, recorded=None, found=None, text=text)
    return None


def _judged_again(document: Json) -> Difference | None:
    """Half (a)."""
    facts, rules = document.get("facts", {}), document.get("rules", {})
    built_in = list(BUILT_IN_CRITERIA)
    if rules.get("built_in") != built_in:
        return Difference(path="rules.built_in", recorded=rules.get("built_in"), found=built_in)
    for name in ("phase", "run"):  # a GO of one phase is none of another
        named, ordered = document.get(name), rules.get(name)
        if None not in (named, ordered) and named != ordered:
            return Difference(path=name, recorded=named, found=ordered)
    again = judge_again(facts, rules)
    recorded = {name: document.get(name) for name in again}
    return first_difference(recorded, again)


def judge_again(facts: Json, rules: Json) -> dict[str, Any]:
    """Return the fields of a decision that the judge fills in, from recorded facts and rules.

    Raises:
        Corrupt: the facts or rules are malformed, or a metric needs a package that is missing here.
    """
    asked = _parsed(Rules, "rules", rules)
    if asked.world_size is not None and not 0 <= asked.world_size <= MOST_RANKS:
        text = f"rules.world_size: {asked.world_size} is not between 0 and {MOST_RANKS}"
        raise Corrupt(text)
    for name, row in asked.criteria().items():
        if metric_row(row.metric) is None:
            raise Corrupt(f"rules.gate.{name}.metric: {absent_text(row.metric)}")
    again = judge(_parsed(Facts, "facts", facts), asked)
    found: dict[str, Any] = wire_value(
        {
            "verdict": again.verdict,
            "criteria": [row.model_dump(mode="json") for row in again.criteria],
            "conditions": [row.model_dump(mode="json") for row in again.conditions],
            "diagnosis": again.diagnosis,
            "weakened": [row.model_dump(mode="json") for row in again.weakened],
        }
    )
    return found


def _parsed(model: type[_M], name: str, document: Any) -> _M:
    """Return a part of a recorded decision as its model.

    Raises:
        Corrupt: the part is malformed; the error begins with its path.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise Corrupt(f"{name}.{first_error(error)}") from error


def _read_again(recorded: RecordedDecision, around: Surroundings, log: _Log) -> Difference | None:
    """Half (b): the rules and facts of the run directory.

    The history of the phase is as recorded: it can only make a verdict worse.
    """
    document, run_dir = recorded.document, around.run_dir
    facts, rules = document.get("facts", {}), document.get("rules", {})
    passed = document.get("verdict") in PASSING
    if run_dir is None or not os.path.isdir(run_dir):
        if not facts.get("ranks") and not passed:
            log.cannot_check(DoubtKind.RECORD_MISSING, "its run's directory")
            return None
        where = recorded.decision.run if run_dir is None else run_dir
        raise NotFound(f"{where}: no run directory; --facts-only replays without it")
    log.checked += ["run_directory", "order"]
    history = _parsed(History, "facts.history", facts.get("history") or {})
    derived = _parsed(Rules, "rules", rules)
    try:
        record = load_run(run_dir)
        if record.order is not None:  # it names no open conditions: those are as recorded
            derived = build_rules(record.order, derived.conditions)
        found = build_facts(record, derived)
    except OSError as error:
        raise Corrupt(f"run_directory: it cannot be read: {error.strerror}") from error
    except Corrupt as error:
        raise Corrupt(f"run_directory: {error.detail}") from error
    except NotFound as error:
        raise NotFound(f"{error.detail}; --facts-only replays without it") from error
    again = with_history(found, history if facts.get("history") else None).wire()
    wrong = _same_rules(recorded, record.order, derived)
    return wrong or _same_facts(facts, again, passed, log)


def _same_rules(
    recorded: RecordedDecision, order: Order | None, derived: Rules
) -> Difference | None:
    """Compare the rules with those of order.json."""
    rules = recorded.document.get("rules", {})
    if order is None:
        if rules.get("steps") is None:
            return None
        return Difference(path="rules", recorded=shortened(rules), found="(no order.json)")
    for name, ordered in (("experiment", order.experiment), ("run", order.run)):
        named = recorded.document.get(name)  # a GO of one experiment is none of another
        if named and ordered is not None and named != ordered:
            return Difference(path=name, recorded=named, found=ordered)
    return first_difference(rules, derived.wire(), "rules")


def _same_facts(facts: Json, again: Json, passed: bool, log: _Log) -> Difference | None:
    """Compare the facts; without the end, if the control plane wrote it down.

    The end of a lost host stands in no run directory. A keeper names its order in each end that it
    writes; the control plane does not.
    """
    ended, left, right = facts.get("exit"), facts, again
    if not passed and isinstance(ended, Mapping) and not ended.get("order_sha256"):
        left, right = ({name: row.get(name) for name in _FROM_LINES} for row in (facts, again))
        log.cannot_check(DoubtKind.END_UNSEEN)
    return first_difference(left, right, "facts")
