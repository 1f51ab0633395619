"""What do the built-in criteria rest on? Who reached the end, who differs, what halted.

Each answer is one outcome, what was observed, and a sentence; `built_in` makes criteria of them.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

from gonogo.contract.decision import CriterionOutcome
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Severity
from gonogo.contract.rules import Rules


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


Unequal = tuple[str, str, Any, Any]
"""Field, rank, expected, found."""


def differences(facts: Facts, rules: Rules) -> Iterator[Unequal]:
    """Yield every field in which a rank is not what was ordered, or not what rank 0 is."""
    identities = {rank: row.said() for rank, row in facts.identity.items()}
    yield from unequal(identities.items(), rules)
    tokens = rules.identity.tokens_per_step
    for rank, row in facts.ranks.items():
        for found in row.tokens:
            if tokens is not None and found != tokens:
                yield "tokens", rank, tokens, found


def unequal(said: Iterable[tuple[str, dict[str, Any]]], rules: Rules) -> Iterator[Unequal]:
    """Yield every field in which a process is not what was ordered, or not what the first is."""
    expected = rules.identity.said()
    first: dict[str, Any] | None = None
    for rank, fields in said:
        first = fields if first is None else first
        for name, value in fields.items():
            wanted = expected.get(name)
            if wanted is not None and not _equal(name, wanted, value, rules.params_tolerance_ratio):
                yield name, rank, wanted, value
            elif name in first and value != first[name]:
                yield name, rank, first[name], value


def _equal(name: str, wanted: Any, found: Any, tolerance: float) -> bool:
    if name == "params":
        return bool(abs(found - wanted) <= tolerance * wanted)
    return bool(found == wanted)


def told(row: Unequal) -> str:
    """Return a difference in words."""
    name, rank, wanted, found = row
    if found is None:
        return f"rank {rank} did not say {name}, {wanted!r} was ordered"
    return f"{name} of rank {rank} is {found!r}, {wanted!r} was ordered"


def halts(facts: Facts) -> Said | None:
    """Return what the halt findings say, or None without one."""
    rows = [row for row in facts.findings if row.severity is Severity.HALT]
    if not rows:
        return None
    first = rows[0]
    where = "" if first.rank is None else f" on rank {first.rank}"
    section = "" if first.section is None else f" in {first.section}"
    return FAIL, len(rows), f"{first.detector}{where}{section}"
