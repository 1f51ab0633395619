"""The criterion `identity`: was every process what was ordered, and started for this run?

A field that the plan lets differ (`allow_drift`) makes a condition instead of a failure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.contract.facts import BootFacts, Facts
from gonogo.contract.rules import Rules
from gonogo.judge.gate.built_in import (
    FAIL,
    INCONCLUSIVE,
    ORDER,
    PASS,
    UNKNOWN_ORDER,
    UNREPORTED,
    Said,
)

DRIFT = "identity_drift"
"""Id of the condition that an allowed drift of the code identity makes."""
IDENTITY = "identity"
COVERAGE = "coverage"
IN_WEIGHTS = frozenset({DRIFT, IDENTITY, COVERAGE})
"""What stays in the weights of a run's checkpoint, and counts only for runs that resume from it."""
MOST_TOLD = 4
"""Ranks that a sentence names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unequal:
    """A field in which a process is not what it should be."""

    name: str
    rank: str | None
    """None where the ranks differ and the order does not say which of them is right."""
    wanted: Any
    found: Any
    """Of no rank: rank → what it says."""


def identity(facts: Facts, rules: Rules) -> Iterator[Said]:
    """Every process that ended a step was what was ordered, and every record is this run's."""
    if not rules.known:
        yield INCONCLUSIVE, None, UNKNOWN_ORDER
        return
    mismatches = [row for row in _differences(facts, rules) if row.name not in rules.allow_drift]
    if mismatches:
        text = "; ".join(told(row) for row in mismatches[:3])
        yield FAIL, {row.name: row.found for row in mismatches}, text
    yield from _order_holds(facts, rules)
    for rank in rules.ranks():
        yield from _rank_identity(facts, rules, rank)
    yield from _watched_order(facts, rules)
    count = len(rules.identity.said())
    if not count:
        yield UNREPORTED, None, "the order does not name what must run"
    yield PASS, None, f"{count} fields are equal on every rank and to the order"


def evaluate_drift(facts: Facts, rules: Rules) -> CriterionResult | None:
    """Return the condition that an allowed drift makes, or None without drift."""
    drifted = [row for row in _differences(facts, rules) if row.name in rules.allow_drift]
    drifted += _unsaid_drift(facts, rules)
    if not drifted:
        return None
    return CriterionResult(
        id=DRIFT,
        severity=GateSeverity.CONDITIONAL,
        outcome=CriterionOutcome.FAIL,
        observed={row.name: row.found for row in drifted},
        threshold={row.name: row.wanted for row in drifted},
        evidence="; ".join(told(row) for row in drifted[:3]),
    )


def _unsaid_drift(facts: Facts, rules: Rules) -> Iterator[Unequal]:
    """Yield the ordered fields that may drift and were not reported: they may differ."""
    expected = rules.identity.said()
    for rank in rules.ranks():
        for boot in _counted(facts, rank):
            said = {} if boot.identity is None else boot.identity.said()
            for name in rules.allow_drift:
                if name in expected and name not in said:
                    yield Unequal(name=name, rank=str(rank), wanted=expected[name], found=None)


def _differences(facts: Facts, rules: Rules) -> Iterator[Unequal]:
    """Yield each field in which a process is not what was ordered, or the ranks differ.

    The last process of each rank counts, and every other one that ended a step. What the order
    leaves open must be the same on all ranks.
    """
    expected = rules.identity.said()
    last = [(rank, row.said()) for rank, row in facts.identity.items()]
    before = [
        (rank, boot.identity.said())
        for rank, boots in facts.boots.items()
        for boot in boots[:-1]
        if boot.ended_steps and boot.identity is not None
    ]
    differing = set()
    for rank, fields in (*last, *before):
        for name, value in fields.items():
            wanted = expected.get(name)
            if wanted is not None and not _equal(name, wanted, value, rules.params_tolerance_ratio):
                differing.add(name)
                yield Unequal(name=name, rank=rank, wanted=wanted, found=value)
    tokens = rules.identity.tokens_per_step
    for rank, row in facts.ranks.items():
        for found in row.tokens:
            if tokens is not None and found != tokens:
                yield Unequal(name="tokens", rank=rank, wanted=tokens, found=found)
    for name in sorted({name for _, fields in last for name in fields} - differing):
        said = {rank: fields[name] for rank, fields in last if name in fields}
        if len(set(map(canonical_bytes, said.values()))) > 1:
            yield Unequal(name=name, rank=None, wanted=None, found=said)


def _equal(name: str, wanted: Any, found: Any, tolerance: float) -> bool:
    if name == "params":
        return bool(abs(found - wanted) <= tolerance * wanted)
    return bool(found == wanted)


def told(row: Unequal) -> str:
    """Return a difference in words."""
    if row.rank is None:
        values = [f"{value!r} on rank {rank}" for rank, value in row.found.items()]
        more = f" and {len(values) - MOST_TOLD} more" if len(values) > MOST_TOLD else ""
        return f"{row.name} differs between the ranks: {', '.join(values[:MOST_TOLD])}{more}"
    if row.found is None:
        return f"rank {row.rank} did not report {row.name}, {row.wanted!r} was ordered"
    return f"{row.name} of rank {row.rank} is {row.found!r}, {row.wanted!r} was ordered"


def _order_holds(facts: Facts, rules: Rules) -> Iterator[Said]:
    """Check that the order agrees with itself in its configuration and its number of ranks."""
    wanted = rules.identity.config_digest
    if wanted is not None and facts.config_digest != wanted:
        text = "the configuration of the order does not have the digest that the order names"
        yield FAIL, facts.config_digest, text
    size = rules.identity.world_size
    if size is not None and size != rules.world_size:
        yield FAIL, size, f"the order asks for {rules.world_size} ranks, its identity for {size}"


def _rank_identity(facts: Facts, rules: Rules, rank: int) -> Iterator[Said]:
    counted = _counted(facts, rank)
    if not counted:
        yield UNREPORTED, None, f"rank {rank} did not report its identity"
    for boot in counted:
        yield from _boot_identity(boot, rules, rank)


def _counted(facts: Facts, rank: int) -> list[BootFacts]:
    """Return the processes of a rank whose identity counts: the last, and all that ended a step."""
    boots = facts.boots.get(str(rank), [])
    return [boot for boot in boots[:-1] if boot.ended_steps] + boots[-1:]


def _boot_identity(boot: BootFacts, rules: Rules, rank: int) -> Iterator[Said]:
    """Check that one process reported its identity, and was started for this run."""
    if boot.identity is None:
        yield UNREPORTED, None, f"rank {rank} did not report its identity"
        return
    expected = rules.identity.said()
    unsaid = sorted(expected.keys() - boot.identity.said().keys() - set(rules.allow_drift))
    if unsaid:
        yield UNREPORTED, None, f"rank {rank} did not report {', '.join(unsaid)}"
    for name, mine, its in (("run", rules.run, boot.run), ("attempt", rules.attempt, boot.attempt)):
        if not rules.run:
            yield INCONCLUSIVE, its, "the order names no run"
        elif its is None:
            yield UNREPORTED, None, f"rank {rank} did not report for which {name} it was started"
        elif its != mine:
            yield FAIL, its, f"rank {rank} was started for {name} {its}, not for {mine}"


def _watched_order(facts: Facts, rules: Rules) -> Iterator[Said]:
    """Check that every watcher watched this run, under this order."""
    order = facts.files.get(ORDER)
    for start in facts.watch.starts if facts.watch is not None else []:
        if (start.run, start.attempt) != (rules.run, rules.attempt):
            text = f"the watcher watched run {start.run}, attempt {start.attempt}"
            yield INCONCLUSIVE, start.run, text
        if order is None or start.order_sha256 != order.sha256:
            yield INCONCLUSIVE, start.order_sha256, "the watcher watched under another order.json"
