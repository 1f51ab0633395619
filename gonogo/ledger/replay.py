"""Replaying a recorded decision: its digests, its signature and chain, and two halves.

(a) The recorded facts and rules must yield the same decision. (b) The order must yield the same
rules, and the run directory the same facts. The result names the first difference, and which code
made the decision if this is another. What cannot be checked is listed as *not verified*; it never
passes silently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gonogo.contract.criterion import BUILT_IN_CRITERIA
from gonogo.contract.decision import PASSING, DecisionKind
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.made_by import MadeBy
from gonogo.ledger.chain import check_chain, signature_problem
from gonogo.ledger.conditions import check_open, check_settled
from gonogo.ledger.history import check_confirmations, check_reason, names_a_directory
from gonogo.ledger.recorded import Difference, RecordedDecision, first_difference, shortened
from gonogo.ledger.rejudge import Again, judge_again, read_again
from gonogo.ledger.sign import Trust
from gonogo.watch.sources import made_by

Json = Mapping[str, Any]

NO_KEY = "not verified: no public key is there to check it with"

_FROM_LINES = ("ranks", "boots", "identity", "pace", "measures", "findings", "config_digest")
"""Facts that do not depend on who wrote down the end of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The result of replaying a decision."""

    equal: bool
    checked: tuple[str, ...]
    """What was compared: `rule`, `facts`, `hash`, `signature`, `chain`, `decision`, `order`,
    `run_directory`, `history`."""
    not_verified: tuple[str, ...] = ()
    """What could not be checked, one sentence each."""
    path: str | None = None
    """Where the first difference is, such as `facts.ranks.0.digest`."""
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
    unreadable: tuple[str, ...] = ()
    """Files among the siblings that cannot be read."""


@dataclass(slots=True)
class _Log:
    """What was checked so far, and what could not be."""

    checked: list[str] = field(default_factory=list)
    not_verified: list[str] = field(default_factory=list)


def replay_decision(
    recorded: RecordedDecision, around: Surroundings | None = None, *, facts_only: bool = False
) -> ReplayResult:
    """Return whether a decision replays.

    Args:
        recorded: as read.
        around: its run directory, its siblings and the keys.
        facts_only: start from the recorded facts and leave the run directory alone.

    Raises:
        NotFound: the run directory is missing, though the facts rest on its lines.
    """
    around = around or Surroundings()
    log = _Log()
    try:
        difference = _first_wrong(recorded, around, facts_only, log)
        if difference is None and _no_key(recorded, around):
            # else whoever removes the public key could edit a signed decision and keep it equal
            difference = _unsigned(recorded, NO_KEY)
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
    if then == here:
        return ""
    commands = []
    if (then.gonogo, then.sources) != (here.gonogo, here.sources):
        commands.append(f"git checkout v{then.gonogo} && pip install .")
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
        by = "" if then == made_by() else f", though made by {then.words()}"
        return f"{recorded.verdict or 'no verdict'}: the same{by}"
    return f"a {recorded.decision.kind} decision: digests are whole"


def _first_wrong(
    recorded: RecordedDecision, around: Surroundings, facts_only: bool, log: _Log
) -> Difference | None:
    log.checked += ["rule", "facts", "hash"]
    difference = (
        recorded.seals() or _signature(recorded, around, log) or _chain(recorded, around, log)
    )
    if difference is not None:
        return difference
    decision = recorded.decision
    if decision.run is not None and not names_a_directory(decision.run):
        text = f"run: {shortened(decision.run)} is the name of no run directory"
        return Difference(path="run", recorded=shortened(decision.run), found=None, text=text)
    if decision.kind is DecisionKind.HUMAN:
        log.not_verified.append("a person decided: nothing but their word shows why")
        return None
    if decision.kind is DecisionKind.CONDITION:
        return check_settled(recorded.document, log.checked, log.not_verified)
    log.checked.append("decision")
    difference = _judged_again(recorded.document)
    if difference is None and not facts_only:
        difference = _read_again(recorded, around, log)
    return difference


def _signature(recorded: RecordedDecision, around: Surroundings, log: _Log) -> Difference | None:
    if _no_key(recorded, around):
        log.not_verified.append("who recorded it: its signature: no public key is there")
        return None
    if around.trust is None:
        log.not_verified.append("who recorded it: it is not signed")
        return None
    log.checked.append("signature")
    text = doubt_about(recorded, around)
    return None if text is None else _unsigned(recorded, text)


def doubt_about(recorded: RecordedDecision, around: Surroundings) -> str | None:
    """Return why no trusted key signed a decision; None where decisions are not signed.

    Args:
        recorded: its digests fit.
        around: the files around it.
    """
    if _no_key(recorded, around):
        return NO_KEY
    return None if around.trust is None else signature_problem(recorded, around.trust)


def _no_key(recorded: RecordedDecision, around: Surroundings) -> bool:
    """Say whether there is a signature, and no key to check it with."""
    return recorded.signed and not around.trust


def _unsigned(recorded: RecordedDecision, text: str) -> Difference:
    signature = recorded.document.get("signature")
    return Difference(path="signature", recorded=signature, found=None, text=f"signature: {text}")


def _chain(recorded: RecordedDecision, around: Surroundings, log: _Log) -> Difference | None:
    log.not_verified += around.unreadable
    if around.siblings is None:
        log.not_verified.append("its chain: nobody looked for the decisions before and after it")
        return None
    log.checked.append("chain")
    for wrong in check_chain([recorded, *around.siblings], around.trust or None):
        if wrong.missing:
            log.not_verified.append(wrong.text.removeprefix("not verified: "))
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


def _read_again(recorded: RecordedDecision, around: Surroundings, log: _Log) -> Difference | None:
    """Half (b): the directory's rules and facts, and the history."""
    document, run_dir = recorded.document, around.run_dir
    facts, rules = document.get("facts", {}), document.get("rules", {})
    passed = document.get("verdict") in PASSING
    if run_dir is None or not run_dir.is_dir():
        if not facts.get("ranks") and not passed:
            log.not_verified.append("its run: it left no directory")
            return None
        where = recorded.decision.run if run_dir is None else run_dir
        raise NotFound(f"{where}: no run directory; --facts-only replays without it")
    log.checked += ["run_directory", "order"]
    try:
        again = read_again(run_dir, rules, facts.get("history"))
    except Corrupt as error:
        raise Corrupt(f"run_directory: {error.detail}") from error
    except NotFound as error:
        raise NotFound(f"{error.detail}; --facts-only replays without it") from error
    return (
        _same_rules(recorded, again, around, log)
        or _same_facts(facts, again, passed, log)
        or check_reason(facts.get("history") or {}, again, passed=passed)
        or check_confirmations(facts, again, run_dir.parent, log.checked, log.not_verified)
    )


def _same_rules(
    recorded: RecordedDecision, again: Again, around: Surroundings, log: _Log
) -> Difference | None:
    """Compare the rules with those of order.json, and their conditions with the open ones."""
    rules = recorded.document.get("rules", {})
    if again.rules is None or again.order is None:
        if rules.get("steps") is None:
            return None
        return Difference(path="rules", recorded=shortened(rules), found="(no order.json)")
    named = recorded.document.get("experiment")
    if named and named != again.order.experiment:  # a GO of one experiment is none of another
        return Difference(path="experiment", recorded=named, found=again.order.experiment)
    run = recorded.decision.run
    if None not in (run, again.order.run) and run != again.order.run:
        return Difference(path="run", recorded=run, found=again.order.run)
    difference = first_difference(rules, again.rules, "rules")
    return difference or check_open(recorded, around.siblings, log.not_verified)


def _same_facts(facts: Json, again: Again, passed: bool, log: _Log) -> Difference | None:
    """Compare the facts; without the end, if the control plane wrote it down.

    The end of a lost host stands in no run directory. A keeper names its order in each end that it
    writes; the control plane does not.
    """
    ended, left, right = facts.get("exit"), facts, again.facts
    if not passed and isinstance(ended, Mapping) and not ended.get("order_sha256"):
        left, right = (
            {name: row.get(name) for name in _FROM_LINES} for row in (facts, again.facts)
        )
        log.not_verified.append("its end, and what rests on it: the control plane recorded it")
    return first_difference(left, right, "facts")
