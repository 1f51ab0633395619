"""What do the built-in criteria rest on? Who reached the end, who differs, what halted.

Each answer is one outcome, what was observed, and a sentence; `built_in` makes criteria of them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.decision import CriterionOutcome
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Severity
from gonogo.contract.rules import Rules

MOST_TOLD = 4
"""Ranks that a sentence names."""


class Word(Enum):
    """What a check says, the worst first."""

    FAIL = CriterionOutcome.FAIL
    INCONCLUSIVE = "what was seen does not fit together, or is not enough"
    UNTOLD = "what a program may be unable to tell; the only thing that a waiver excuses"
    PASS = CriterionOutcome.PASS

    @property
    def outcome(self) -> CriterionOutcome:
        """Outcome of the criterion whose worst word it is."""
        found = self.value
        return found if isinstance(found, CriterionOutcome) else CriterionOutcome.INCONCLUSIVE


Said = tuple[Word, Any, str]
"""Word, what was observed, and one sentence."""

PASS, FAIL, INCONCLUSIVE, UNTOLD = Word.PASS, Word.FAIL, Word.INCONCLUSIVE, Word.UNTOLD


def ranks_completed(facts: Facts, rules: Rules, steps: int) -> Said:
    """Every rank said that it was done, and reached the last ordered step."""
    rows = [(rank, facts.ranks.get(str(rank))) for rank in rules.ranks()]
    for rank, row in rows:
        if row is not None and row.done_step is not None and row.done_step < steps:
            return FAIL, row.done_step, f"rank {rank} was done at step {row.done_step}"
    for rank, row in rows:
        if row is None:
            return INCONCLUSIVE, None, f"rank {rank} was never heard"
        if row.done_step is None:
            text = f"rank {rank} never said that it was done; step {row.last_step} was its last"
            return INCONCLUSIVE, None, text
        if row.last_step < steps and steps >= rules.first_step:
            return INCONCLUSIVE, row.last_step, f"rank {rank}: step {steps} was never seen"
    if facts.exit is None:
        return INCONCLUSIVE, steps, "every rank was done, but no exit is recorded"
    return PASS, steps, f"all {len(rows)} ranks reached step {steps} and exited 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unequal:
    """A field in which a process is not what it should be."""

    name: str
    rank: str | None
    """None where the ranks differ and nothing tells which of them is right."""
    wanted: Any
    found: Any
    """Of no rank: rank → what it says."""
    by_peers: bool = False
    """Whether most of the other ranks say what is wanted, and not the order."""


def differences(facts: Facts, rules: Rules) -> Iterator[Unequal]:
    """Yield every field in which a rank is not what was ordered, or not what most ranks are."""
    identities = {rank: row.said() for rank, row in facts.identity.items()}
    yield from unequal(identities.items(), rules)
    tokens = rules.identity.tokens_per_step
    for rank, row in facts.ranks.items():
        for found in row.tokens:
            if tokens is not None and found != tokens:
                yield Unequal(name="tokens", rank=rank, wanted=tokens, found=found)


def unequal(said: Iterable[tuple[str, dict[str, Any]]], rules: Rules) -> Iterator[Unequal]:
    """Yield every field in which a process is not what was ordered, or not what most others are."""
    rows = list(said)
    expected = rules.identity.said()
    for rank, fields in rows:
        for name, value in fields.items():
            wanted = expected.get(name)
            if wanted is not None and not _equal(name, wanted, value, rules.params_tolerance_ratio):
                yield Unequal(name=name, rank=rank, wanted=wanted, found=value)
    for name in dict.fromkeys(name for _, fields in rows for name in fields):
        yield from _odd_ones(name, [(rank, row[name]) for rank, row in rows if name in row])


def _odd_ones(name: str, said: Sequence[tuple[str, Any]]) -> Iterator[Unequal]:
    """Yield the ranks that differ from most; one row without a rank where none are most."""
    texts = [canonical_bytes(value) for _, value in said]
    (most, count), *others = Counter(texts).most_common()
    if not others:
        return
    if 2 * count <= len(said):
        yield Unequal(name=name, rank=None, wanted=None, found=dict(said))
        return
    usual = said[texts.index(most)][1]
    for (rank, value), text in zip(said, texts, strict=True):
        if text != most:
            yield Unequal(name=name, rank=rank, wanted=usual, found=value, by_peers=True)


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
        return f"rank {row.rank} did not say {row.name}, {row.wanted!r} was ordered"
    who = "is that of most ranks" if row.by_peers else "was ordered"
    return f"{row.name} of rank {row.rank} is {row.found!r}, {row.wanted!r} {who}"


def halts(facts: Facts) -> Said | None:
    """Return what the halt findings say, or None without one."""
    rows = [row for row in facts.findings if row.severity is Severity.HALT]
    if not rows:
        return None
    first = rows[0]
    where = "" if first.rank is None else f" on rank {first.rank}"
    section = "" if first.section is None else f" in {first.section}"
    return FAIL, len(rows), f"{first.detector}{where}{section}"
