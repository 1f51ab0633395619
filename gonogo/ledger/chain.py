"""Checking that the decisions of one experiment form one chain: numbers, links and signatures.

Each decision is checked by itself (digests, hash, signature) and by its neighbours. `seq` counts
1, 2, …; `prev_hash` is the hash of the decision before; `supersedes` names the last decision about
the same phase; one key signs them all. A missing decision is reported as *not verified*. No chain
can show that its end is missing: for that, alerts, events and the report carry the hash of its
head.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gonogo.contract.decision import DecisionKind
from gonogo.ledger.recorded import RecordedDecision, shortened
from gonogo.ledger.sign import Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """One problem in a chain."""

    decision: str
    """Id of the decision."""
    field: str
    text: str
    missing: bool = False
    """Whether a decision is missing, rather than wrong."""


def check_chain(decisions: Iterable[RecordedDecision], trust: Trust | None = None) -> list[Wrong]:
    """Return the problems in the decisions of one experiment, in their order.

    Args:
        decisions: in any order.
        trust: the keys that may sign; None leaves signatures unchecked.
    """
    rows = sorted(decisions, key=lambda row: (row.decision.seq, row.id))
    found = [wrong for row in rows for wrong in check_alone(row, trust)]
    return [*found, *_links(rows), *_supersedes(rows), *_one_key(rows)]


def check_alone(row: RecordedDecision, trust: Trust | None) -> list[Wrong]:
    """Return the first problem of one decision: in its digests, or in its signature."""
    difference = row.seals()
    if difference is not None:
        return [Wrong(decision=row.id, field=difference.path, text=difference.sentence())]
    problem = None if trust is None else signature_problem(row, trust)
    return [] if problem is None else [Wrong(decision=row.id, field="signature", text=problem)]


def signature_problem(row: RecordedDecision, trust: Trust) -> str | None:
    """Return why no trusted key signed a decision; None if one did."""
    decision = row.decision
    return trust.problem(decision.hash, decision.key_id, decision.signature)


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
            yield Wrong(
                decision=row.id, field="prev_hash", missing=True,
                text=f"not verified: {_missing(expected, decision.seq - 1)}"
                f" of {decision.experiment} is not there",
            )  # fmt: skip
        elif decision.prev_hash != previous:
            text = f"prev_hash: recorded {shortened(decision.prev_hash)}, found" + (
                f" {shortened(previous)}"
            )
            yield Wrong(decision=row.id, field="prev_hash", text=text)
        expected, previous = decision.seq + 1, decision.hash


def _missing(first: int, last: int) -> str:
    return f"decision {first}" if first == last else f"each of the decisions {first} to {last}"


def _supersedes(rows: Sequence[RecordedDecision]) -> Iterator[Wrong]:
    """Check that each decision about a phase names the last one about the same phase."""
    complete = [row.decision.seq for row in rows] == list(range(1, len(rows) + 1))
    last: dict[str | None, str] = {}
    for row in rows:
        decision = row.decision
        if decision.kind is DecisionKind.CONDITION:
            continue
        wanted = last.get(decision.phase)
        if complete and decision.supersedes != wanted:
            text = f"supersedes: recorded {decision.supersedes!r}, found {wanted!r}"
            yield Wrong(decision=row.id, field="supersedes", text=text)
        last[decision.phase] = row.id


def _one_key(rows: Sequence[RecordedDecision]) -> Iterator[Wrong]:
    """Check that one key signed the whole chain, whatever other keys are trusted."""
    first: str | None = None
    for row in rows:
        key_id = row.decision.key_id
        first = first or key_id
        if key_id is not None and key_id != first:
            text = f"signed by the key {key_id}, the first of {row.decision.experiment} by {first}"
            yield Wrong(decision=row.id, field="key_id", text=text)
