"""Does a recorded decision come out the same again? Its seals, its chain, and two halves.

(a) recorded facts and recorded rules come to the same decision; (b) order.json comes to the same
rules, the run directory to the same facts and its watch to the same findings, and the runs that
the history names to the verdicts that it gives them. The first difference is named. What nothing
here can show is *not verified*, and said; it is never a silent pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gonogo.contract.decision import PASSING, DecisionKind
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.ledger.again import Again, built_in_of, is_v1, judge_again, read_again
from gonogo.ledger.chain import (
    Authority,
    check_chain,
    led_to_head,
    shortened,
    signature_problem,
)
from gonogo.ledger.difference import Difference, first_difference
from gonogo.ledger.past import (
    check_history,
    check_open_conditions,
    names_a_directory,
    reported_only,
)
from gonogo.ledger.places import place_of
from gonogo.ledger.recorded import RecordedDecision
from gonogo.ledger.rewatch import rewatch
from gonogo.ledger.settled import settled_again
from gonogo.ledger.since import changed_rules, not_installed, without_findings_of

Json = Mapping[str, Any]

NO_KEY = "not verified: no public key is there to check it with"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What replaying a decision came to."""

    equal: bool
    checked: tuple[str, ...]
    """What was compared: `hash`, `rules`, `facts`, `signature`, `chain`, `decision`, `order`,
    `history`, `run_directory`, `watch`."""
    not_verified: tuple[str, ...] = ()
    """What nothing here could show, one sentence each."""
    path: str | None = None
    """Where the first difference is, such as `facts.ranks.0.digest`."""
    recorded: Any = None
    found: Any = None
    text: str = ""
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What lies around a decision."""

    run_dir: Path | None = None
    """The directory of its run."""
    siblings: Sequence[RecordedDecision] | None = None
    """The decisions of its experiment, itself aside; None where nobody looked."""
    authority: Authority | None = None
    """By what signatures are checked; None where nothing says that decisions are signed there."""
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
        around: its run directory, its siblings and the keys; nothing of that when None.
        facts_only: start from the recorded facts and leave the run directory alone.

    Raises:
        NotFound: the run directory is not there, though the facts rest on its lines.
    """
    around = around or Surroundings()
    log = _Log()
    try:
        difference = _first_wrong(recorded, around, facts_only, log) or _unchecked(recorded, around)
    except Corrupt as error:
        path = error.detail.partition(":")[0]
        difference = Difference(path=path, recorded=None, found=None, text=error.detail)
    if difference is not None:
        return _differs(difference, log)
    kind = recorded.decision.kind
    verdict = recorded.verdict or "no verdict"
    text = f"{verdict}: the same" if kind is DecisionKind.AUTO else f"a {kind} decision"
    if kind is not DecisionKind.AUTO:
        text += ": digests are whole"
    return ReplayResult(
        equal=True,
        checked=tuple(log.checked),
        not_verified=tuple(log.not_verified),
        text=text,
    )


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
        log.not_verified.append("a person decided: nothing but his word can show why")
        return None
    if decision.kind is DecisionKind.CONDITION:
        return settled_again(recorded.document, log.checked, log.not_verified)
    log.checked.append("decision")
    difference = _judged_again(recorded.document)
    if difference is None and not facts_only:
        difference = _read_again(recorded, around, log)
    return difference


def _signature(recorded: RecordedDecision, around: Surroundings, log: _Log) -> Difference | None:
    """A signature that can be checked is; one that cannot is for `_unchecked`."""
    if _no_key(recorded, around):
        log.not_verified.append("who recorded it: its signature: no public key is there")
        return None
    if around.authority is None:
        log.not_verified.append("who recorded it: it is not signed")
        return None
    log.checked.append("signature")
    text = doubt_about(recorded, around)
    return None if text is None else _unsigned(recorded, text)


def doubt_about(recorded: RecordedDecision, around: Surroundings) -> str | None:
    """Return why nobody who is trusted vouches for a decision; None where nothing there signs.

    Args:
        recorded: its seals are whole.
        around: what lies around it.
    """
    if _no_key(recorded, around):
        return NO_KEY
    authority = around.authority
    if authority is None:
        return None
    led = led_to_head([recorded, *(around.siblings or ())], authority)
    return signature_problem(recorded, authority, led)


def _no_key(recorded: RecordedDecision, around: Surroundings) -> bool:
    """Say whether there is a signature, and nothing to check it with."""
    return recorded.signed and (around.authority is None or not around.authority.trust)


def _unchecked(recorded: RecordedDecision, around: Surroundings) -> Difference | None:
    """A signature that nothing here can check never passes, even where all else is the same.

    Otherwise whoever takes the public key away could edit a signed decision and keep it equal.
    """
    if not _no_key(recorded, around):
        return None
    return _unsigned(recorded, NO_KEY)


def _unsigned(recorded: RecordedDecision, text: str) -> Difference:
    signature = recorded.document.get("signature")
    return Difference(path="signature", recorded=signature, found=None, text=f"signature: {text}")


def _chain(recorded: RecordedDecision, around: Surroundings, log: _Log) -> Difference | None:
    log.not_verified += around.unreadable
    if around.siblings is None:
        log.not_verified.append("its chain: nobody looked for the decisions before and after it")
        return None
    log.checked.append("chain")
    authority = around.authority if around.authority and around.authority.trust else None
    for wrong in check_chain([recorded, *around.siblings], authority):
        if wrong.missing:
            log.not_verified.append(wrong.text.removeprefix("not verified: "))
            continue
        text = f"chain, {wrong.decision}: {wrong.text}"
        return Difference(
            path=f"chain.{wrong.decision}.{wrong.field}", recorded=None, found=None, text=text
        )
    return None


def _judged_again(document: Json) -> Difference | None:
    """Half (a)."""
    facts, rules = document.get("facts", {}), document.get("rules", {})
    built_in = list(built_in_of(rules))
    if rules.get("built_in") != built_in:
        return Difference(path="rules.built_in", recorded=rules.get("built_in"), found=built_in)
    if document.get("judge_version") != rules["judge_version"]:
        return Difference(
            path="judge_version", recorded=document.get("judge_version"),
            found=rules["judge_version"],
        )  # fmt: skip
    for name in ("phase", "run"):  # a GO of one is none of another
        named, ordered = document.get(name), rules.get(name)
        if None not in (named, ordered) and named != ordered:
            return Difference(path=name, recorded=named, found=ordered)
    again = judge_again(facts, rules)
    recorded = {name: document.get(name) for name in again}
    return first_difference(recorded, again)


def _read_again(recorded: RecordedDecision, around: Surroundings, log: _Log) -> Difference | None:
    """Half (b): the directory's rules and facts, the history, the watch."""
    document, run_dir = recorded.document, around.run_dir
    facts, rules = document.get("facts", {}), document.get("rules", {})
    if run_dir is None or not run_dir.is_dir():
        if not facts.get("ranks") and document.get("verdict") not in PASSING:
            log.not_verified.append("its run: it never got so far as to leave a directory")
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
        _derived(recorded, again, around, log)
        or _same_facts(facts, again, run_dir, rules, log)
        or check_history(
            facts,
            rules,
            again,
            run_dir.parent,
            log.checked,
            log.not_verified,
            passed=document.get("verdict") in PASSING,
        )
        or (rewatch(run_dir, rules, facts, log.checked, log.not_verified) if is_v1(rules) else None)
    )


def _derived(
    recorded: RecordedDecision, again: Again, around: Surroundings, log: _Log
) -> Difference | None:
    """The rules are those of order.json; the conditions in them those that were open."""
    rules = recorded.document.get("rules", {})
    if again.rules is None:
        if rules.get("steps") is None:
            return None
        return Difference(path="rules", recorded=shortened(rules), found="(no order.json)")
    named = recorded.document.get("experiment")
    if named and named != again.experiment:  # a GO of one experiment is none of another
        return Difference(path="experiment", recorded=named, found=again.experiment)
    run = recorded.decision.run
    if None not in (run, again.run) and run != again.run:  # rules of release 0.1 name none
        return Difference(path="run", recorded=run, found=again.run)
    name = "judge_version"  # before all else: an older judge than ordered has fewer rules
    difference = first_difference(rules.get(name), again.rules.get(name), f"rules.{name}")
    difference = difference or first_difference(rules, _as_far(rules, again.rules), "rules")
    if difference is not None:
        return difference
    return check_open_conditions(recorded, around.siblings, log.not_verified)


def _as_far(recorded: Json, derived: dict[str, Any]) -> dict[str, Any]:
    """Return derived rules without the defaults of settings that came after the decision."""
    known = recorded.get("watch")
    watch = derived.get("watch")
    if not isinstance(known, Mapping) or not isinstance(watch, Mapping):
        return derived
    kept = {path: row for path, row in watch.items() if path in known or row["source"] != "default"}
    return {**derived, "watch": kept}


def _same_facts(
    facts: Json, again: Again, run_dir: Path, rules: Json, log: _Log
) -> Difference | None:
    left, right, said = reported_only(facts, again)
    if said is not None:
        log.not_verified.append(said)
    if not is_v1(rules):
        absent = not_installed(rules, left, right)
        changed = [name for name in changed_rules(rules) if name not in absent]
        if changed:
            text = f"findings of {', '.join(changed)}: their rule has changed since"
            log.not_verified.append(text)
        for name in absent:
            text = f"findings of {name}: it was not installed both when the run was judged and here"
            log.not_verified.append(text)
        left, right = without_findings_of([*changed, *absent], left, right)
    difference = first_difference(left, right, "facts")
    if difference is None:
        return None
    return replace(difference, where=place_of(difference.path, run_dir, v1=is_v1(rules)))


def _differs(difference: Difference, log: _Log) -> ReplayResult:
    text = difference.text or (
        f"{difference.path}{difference.where}: recorded {shortened(difference.recorded)},"
        f" found {shortened(difference.found)}"
    )
    return ReplayResult(
        equal=False,
        checked=tuple(log.checked),
        not_verified=tuple(log.not_verified),
        path=difference.path,
        recorded=difference.recorded,
        found=difference.found,
        text=text,
    )
