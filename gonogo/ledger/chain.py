"""Do the decisions of an experiment form one chain? Numbers, links, signatures and adoption.

Each decision is checked by itself (digests, hash, signature) and by its neighbours: `seq` counts
1, 2, …, `prev_hash` is the hash of the one before, `supersedes` names an earlier one about the
same phase, and one key has signed them all. A decision that is not there is never taken for
granted: what only it could show is *not verified*, and said. That the end of a chain is missing, no
chain can show: for that the hash of its head stands outside, in alerts, events and the report.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gonogo.contract.decision import DecisionKind
from gonogo.ledger.adoption import Adoption, head_problem, unsigned_problem
from gonogo.ledger.recorded import RecordedDecision
from gonogo.ledger.sign import Purpose, Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """One thing that is wrong in a chain."""

    decision: str
    """Id of the decision."""
    field: str
    text: str
    missing: bool = False
    """Whether nothing is wrong with what is there, but something is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """By what signatures are checked."""

    trust: Trust = field(default_factory=Trust)
    adopted: Adoption | None = None
    """Already found to be signed by a trusted key."""


def check_chain(
    decisions: Iterable[RecordedDecision], authority: Authority | None = None
) -> list[Wrong]:
    """Return what is wrong with the decisions of one experiment, by their order.

    Args:
        decisions: in any order.
        authority: checks signatures; None leaves them unchecked.
    """
    rows = sorted(decisions, key=lambda row: (row.decision.seq, row.id))
    led = led_to_head(rows, authority)
    found: list[Wrong] = []
    for row in rows:
        found += alone(row, authority, led)
    found += _links(rows)
    found += _supersedes(rows)
    found += _one_key(rows, None if authority is None else authority.adopted)
    if authority is not None and authority.adopted is not None:
        found += _adopted_heads(rows, authority.adopted)
    return found


def alone(row: RecordedDecision, authority: Authority | None, led: Container[str]) -> list[Wrong]:
    """Return what is wrong with one decision: its digests, then who vouches for it."""
    difference = row.seals()
    if difference is not None:
        text = (
            f"{difference.path}: recorded {shortened(difference.recorded)},"
            f" found {shortened(difference.found)}"
        )
        return [Wrong(decision=row.id, field=difference.path, text=text)]
    problem = None if authority is None else signature_problem(row, authority, led)
    return [] if problem is None else [Wrong(decision=row.id, field="signature", text=problem)]


def signature_problem(
    row: RecordedDecision, authority: Authority, led: Container[str]
) -> str | None:
    """Return why nobody who is trusted vouches for a decision, or None.

    Args:
        row: its seals are whole.
        authority: by what it is checked.
        led: what `led_to_head` found among the decisions that are there.
    """
    decision = row.decision
    if decision.v == 1 or (not row.signed and decision.hash in led):
        text = unsigned_problem(decision.experiment, decision.seq, authority.adopted)
        if text is None and decision.hash not in led:
            text = "unsigned, and no chain of the decisions here leads from it to the adopted head"
        return text
    return authority.trust.problem(
        Purpose.DECISION, decision.hash, decision.key_id, decision.signature
    )


def led_to_head(rows: Iterable[RecordedDecision], authority: Authority | None) -> frozenset[str]:
    """Return the hashes of the decisions from which whole links lead to an adopted head.

    Followed back from the head, whose hash the home signed: each link names the hash of the one
    before, so nothing can be put among them.
    """
    if authority is None or authority.adopted is None:
        return frozenset()
    by_hash = {row.decision.hash: row for row in rows}
    led: set[str] = set()
    for head in authority.adopted.heads.values():
        at: str | None = head.hash
        while at in by_hash and at not in led and by_hash[at].content_hash() == at:
            led.add(at)
            at = by_hash[at].decision.prev_hash
    return frozenset(led)


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
    """A decision about a phase replaces the last one about it: all of them, and no other."""
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


def _one_key(rows: Sequence[RecordedDecision], adopted: Adoption | None) -> Iterator[Wrong]:
    """A home has one key for ever: who is trusted for another chain goes on with none of its."""
    first: str | None = None
    for row in rows:
        decision = row.decision
        key_id = decision.key_id
        if not row.signed and adopted is not None:
            key_id = adopted.key_id
        first = first or key_id
        if key_id is not None and key_id != first:
            text = f"signed by the key {key_id}, the first of {decision.experiment} by {first}"
            yield Wrong(decision=row.id, field="key_id", text=text)


def _adopted_heads(rows: Sequence[RecordedDecision], adopted: Adoption) -> Iterator[Wrong]:
    for row in rows:
        decision = row.decision
        text = head_problem(decision.experiment, decision.seq, decision.hash, adopted)
        if text is not None:
            yield Wrong(decision=row.id, field="hash", text=text)
    if rows:
        experiment = rows[0].decision.experiment
        head = adopted.heads.get(experiment)
        if head is not None and all(row.decision.seq < head.seq for row in rows):
            yield Wrong(
                decision=rows[-1].id, field="hash", missing=True,
                text=f"not verified: decision {head.seq} of {experiment}, the adopted head,"
                " is not there",
            )  # fmt: skip


def shortened(value: object) -> str:
    """Return a value for a sentence."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
