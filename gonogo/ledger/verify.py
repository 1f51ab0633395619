"""Checking all decisions of a home, or of a folder of exported decisions: `gonogo verify`.

Every file is read, and every digest, hash, signature and link is checked; each problem names its
decision and its file. No run directory is needed: `gonogo replay` compares a decision with its
evidence.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gonogo.contract.errors import Corrupt, NotFound, Rejected
from gonogo.contract.finding import Doubt
from gonogo.files import read_plain
from gonogo.ledger.chain import Wrong, check_chain
from gonogo.ledger.recorded import MAX_BYTES, RecordedDecision, load_decision
from gonogo.ledger.sign import Trust

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """The decision files of one folder, as far as they can be read."""

    folder: Path
    rows: dict[Path, RecordedDecision]
    problems: list[Wrong]

    def of(self, experiment: str) -> dict[Path, RecordedDecision]:
        """Return the decisions of one experiment."""
        rows = self.rows.items()
        return {path: row for path, row in rows if row.decision.experiment == experiment}


def load_shelf(folder: Path, *, containing: str = "") -> Shelf:
    """Return the decisions in a folder; what cannot be read is a problem, not an error.

    Args:
        folder: holds `*.json`, one decision each.
        containing: leave out files that do not contain this text.

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
        if path.name.startswith(".") or not _has(path, containing):
            continue
        try:
            rows[path] = load_decision(path)
        except (Corrupt, NotFound) as error:
            text = error.detail.removeprefix(f"{path}: ")
            problems.append(Wrong(decision=_named(path), path=str(path), text=text))
    return Shelf(folder=folder, rows=rows, problems=problems)


def _has(path: Path, text: str) -> bool:
    try:
        with read_plain(path) as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError:
        return True  # reading it will say why
    return len(raw) > MAX_BYTES or text.encode() in raw


def _named(path: Path) -> str | None:
    return path.stem if path.stem.startswith("dec_") else None


def verify_folder(folder: Path, trust: Trust, *, among_others: bool = False) -> Verified:
    """Return what is wrong with the decisions in a folder.

    Args:
        folder: of a home (`decisions/`), or of exported decisions.
        among_others: pass over files that neither hold a decision nor are named like one.

    Raises:
        NotFound: no such folder.
    """
    shelf = load_shelf(folder)
    problems = [
        row
        for row in shelf.problems
        if not among_others or row.decision is not None or row.path == str(folder)
    ]
    for experiment in sorted({row.decision.experiment for row in shelf.rows.values()}):
        problems += _told(check_chain(shelf.of(experiment).values(), trust), shelf)
    return Verified(
        decisions=len(shelf.rows),
        problems=problems,
        hashes=tuple(row.decision.hash for row in shelf.rows.values()),
    )


def verify_file(path: Path, trust: Trust) -> Verified:
    """Return what is wrong with one decision, its siblings in the same folder at hand.

    Raises:
        NotFound: no such file.
    """
    try:
        recorded = load_decision(path)
    except Corrupt as error:
        text = error.detail.removeprefix(f"{path}: ")
        return Verified(
            decisions=0, problems=[Wrong(decision=_named(path), path=str(path), text=text)]
        )
    experiment = recorded.decision.experiment
    shelf = load_shelf(path.parent, containing=experiment)
    own = {**shelf.of(experiment), path: recorded}
    wrong = check_chain(own.values(), trust)
    shelf.rows[path] = recorded
    return Verified(
        decisions=1,
        problems=_told([row for row in wrong if row.missing is None], shelf),
        hashes=(recorded.decision.hash,),
        not_verified=[row.missing for row in wrong if row.missing is not None],
    )


def _told(wrong: Iterable[Wrong], shelf: Shelf) -> list[Wrong]:
    """Return problems with the files of their decisions."""
    paths = {row.id: str(path) for path, row in shelf.rows.items()}
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
