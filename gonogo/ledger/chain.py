"""Checking that the decisions of one experiment form one chain: numbers, links and signatures.

Each decision is checked by itself (digests, hash, signature) and by its neighbours: `seq` counts
1, 2, …, and `prev_hash` is the hash of the decision before. A missing decision is reported as *not
verified*. No chain can show that its end is missing. For that, alerts, events and the report carry
the hash of its head.

Not covered: two trusted keys in one chain, and a wrong `supersedes`. Only the owner of a trusted
key can make them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.judge.words import sentence
from gonogo.ledger.recorded import RecordedDecision, shortened
from gonogo.ledger.sign import Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """One thing that is wrong, or could not be verified."""

    decision: str | None
    """Its id; None where not even that can be read."""
    text: str
    field: str = ""
    path: str = ""
    """Its file."""
    missing: Doubt | None = None
    """Which decisions are missing, where none is wrong."""


def check_chain(decisions: Iterable[RecordedDecision], trust: Trust | None = None) -> list[Wrong]:
    """Return the problems in the decisions of one experiment, in their order.

    Args:
        decisions: in any order.
        trust: the keys that may sign; None leaves signatures unchecked.
    """
    rows = sorted(decisions, key=lambda row: (row.decision.seq, row.id))
    found = [wrong for row in rows for wrong in check_alone(row, trust)]
    return [*found, *_links(rows)]


def check_alone(row: RecordedDecision, trust: Trust | None) -> list[Wrong]:
    """Return the first problem of one decision: in its digests, or in its signature."""
    difference = row.seals()
    if difference is not None:
        return [Wrong(decision=row.id, field=difference.path, text=difference.sentence())]
    problem = signature_problem(row, trust)
    return [] if problem is None else [Wrong(decision=row.id, field="signature", text=problem)]


def signature_problem(row: RecordedDecision, trust: Trust | None) -> str | None:
    """Return why no trusted key signed a decision; None if one did, or signatures do not count."""
    said = row.decision
    return None if trust is None else trust.problem(said.hash, said.key_id, said.signature)


def _links(rows: Sequence[RecordedDecision]) -> Iterator[Wrong]:
    """Check numbers and links, from the first decision on."""
    expected, previous = 1, None
    for row in rows:
        decision = row.decision
        if decision.seq < expected:
            text = f"a second decision with the number {decision.seq} in {decision.experiment}"
            yield Wrong(decision=row.id, field="seq", text=text)
            continue
        if decision.seq > expected:
            doubt = _missing(expected, decision.seq - 1, decision.experiment)
            text = f"not verified: {sentence(doubt)}"
            yield Wrong(decision=row.id, field="prev_hash", text=text, missing=doubt)
        elif decision.prev_hash != previous:
            found = shortened(previous)
            text = f"prev_hash: recorded {shortened(decision.prev_hash)}, found {found}"
            yield Wrong(decision=row.id, field="prev_hash", text=text)
        expected, previous = decision.seq + 1, decision.hash


def _missing(first: int, last: int, experiment: str) -> Doubt:
    found = first if first == last else f"{first} to {last}"
    return Doubt(kind=DoubtKind.DECISION_MISSING, name=experiment, found=found)
