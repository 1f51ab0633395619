"""Checking all decisions of a home, or of a folder of exported decisions: `gonogo verify`.

Every file is read, and every digest, hash, signature and link is checked; each problem names its
decision and its file. No run directory is needed: `gonogo replay` compares a decision with its
evidence.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gonogo.contract.errors import Corrupt, NotFound, Rejected
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.judge.words import sentence
from gonogo.ledger.recorded import RecordedDecision, load_decision, shortened
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


_ANCHOR = re.compile(r"[0-9a-f]{16,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What verifying came to."""

    decisions: int
    problems: list[Wrong] = field(default_factory=list)
    not_verified: list[Doubt] = field(default_factory=list)
    """What could not be checked."""
    hashes: tuple[str, ...] = ()
    """Hashes of every decision that was read."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def load_folder(folder: Path) -> tuple[dict[Path, RecordedDecision], list[Wrong]]:
    """Return the decisions in a folder's `*.json`, and what cannot be read.

    Raises:
        NotFound: no such folder.
    """
    if not folder.is_dir():
        raise NotFound(f"{folder}: no such folder")
    rows: dict[Path, RecordedDecision] = {}
    problems: list[Wrong] = []
    try:
        files = sorted(folder / name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError as error:  # an empty folder and one that nobody can look into are not the same
        text = f"it cannot be listed: {error.strerror}"
        problems, files = [Wrong(decision=None, path=str(folder), text=text)], []
    for path in files:
        if path.name.startswith("."):
            continue
        try:
            rows[path] = load_decision(path)
        except (Corrupt, NotFound) as error:
            problems.append(_unreadable(path, error))
    return rows, problems


def _unreadable(path: Path, error: Corrupt | NotFound) -> Wrong:
    named = path.stem if path.stem.startswith("dec_") else None
    text = error.detail.removeprefix(f"{path}: ")
    return Wrong(decision=named, path=str(path), text=text)


def verify_folder(folder: Path, trust: Trust) -> Verified:
    """Return what is wrong with the decisions in a folder of a home, or of exported decisions.

    Raises:
        NotFound: no such folder.
    """
    rows, problems = load_folder(folder)
    for experiment in sorted({row.decision.experiment for row in rows.values()}):
        own = {path: row for path, row in rows.items() if row.decision.experiment == experiment}
        problems += _check(own, trust)
    return Verified(
        decisions=len(rows),
        problems=problems,
        hashes=tuple(row.decision.hash for row in rows.values()),
    )


def verify_file(path: Path, trust: Trust) -> Verified:
    """Return what is wrong with one decision, its siblings in the same folder at hand.

    Raises:
        NotFound: no such file.
    """
    try:
        recorded = load_decision(path)
    except Corrupt as error:
        return Verified(decisions=0, problems=[_unreadable(path, error)])
    decision = recorded.decision
    rows, _ = load_folder(path.parent)
    own = {at: row for at, row in rows.items() if row.decision.experiment == decision.experiment}
    wrong = _check({**own, path: recorded}, trust)
    return Verified(
        decisions=1,
        problems=[row for row in wrong if row.missing is None],
        hashes=(decision.hash,),
        not_verified=[row.missing for row in wrong if row.missing is not None],
    )


def _check(rows: Mapping[Path, RecordedDecision], trust: Trust) -> list[Wrong]:
    """Return the problems of one experiment's decisions, with their files."""
    paths = {row.id: str(path) for path, row in rows.items()}
    wrong = check_chain(rows.values(), trust)
    return [replace(row, path=paths.get(row.decision or "", "")) for row in wrong]


def check_anchors(verified: Verified, anchors: Sequence[str], where: Path) -> Verified:
    """Return what was verified, with a problem for each anchor that no decision has.

    Args:
        anchors: hashes that stand outside, as in an alert; 16 digits of one are enough.

    Raises:
        Rejected: an anchor is no hash.
    """
    missing = []
    for anchor in anchors:
        if _ANCHOR.fullmatch(anchor) is None:
            raise Rejected(f"--anchor {anchor}: expected 16 to 64 hex digits of a decision's hash")
        if not any(hash_.startswith(anchor) for hash_ in verified.hashes):
            text = f"no decision has the hash {anchor}, which stands outside: it was removed"
            missing.append(Wrong(decision=None, path=str(where), text=text))
    return replace(verified, problems=[*verified.problems, *missing])
