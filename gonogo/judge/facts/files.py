"""The files that a verdict rests on: small ones by size and SHA-256, device lines by digest.

Small files are written once, so their bytes are sealed. Device lines are held by the digest of what
they say (parsed, each once, sorted), so their order changes nothing.

Findings are folded again at every judging. A finding of the fold counts whether findings.jsonl has
it or not. A halt that only the file has counts too, since the run was ended for it. Every
difference is named.
"""

import hashlib
from collections.abc import Iterable, Iterator
from operator import attrgetter
from os.path import lexists
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Doubt, DoubtKind, Finding, Severity
from gonogo.contract.observation import DeviceSample
from gonogo.contract.records import ExitRecord, FileSeal, NodeExit, parse_rank
from gonogo.files import read_plain, read_small
from gonogo.rundir import iter_lines, parse_record
from gonogo.watch.watch_record import TOLD_BYTES

_M = TypeVar("_M", bound=BaseModel)

SEALED = ("order.json", "exit.json", "preflight/preflight.json", "model.json", "env.json")
"""Small files that are sealed beside every rank's exit record."""

UNWATCHED = frozenset({"env.json", "exit.json"})
"""Files that no tick has to seal: env.json is for people, and whether the watcher saw exit.json is
a fact of its own. Any other record that no tick sealed was added later."""

_CHUNK = 2**20
_ESSENCE = attrgetter("key", "detector", "severity", "rank", "section", "step")
"""Fields of a finding in which findings.jsonl and the fold must agree."""


class RunFiles:
    """The files of a run directory. A small file is read once: what is parsed is what is sealed.

    A file that cannot be read is named in `unreadable`, and counts as missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unreadable: list[Doubt] = []
        self._small: dict[str, bytes | None] = {}

    def add_unreadable(self, name: str, why: str | None) -> None:
        """Name a file that exists and cannot be read."""
        self.unreadable.append(Doubt(kind=DoubtKind.UNREADABLE, name=name, found=why))

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a small file; None if it is missing or cannot be read."""
        if name not in self._small:
            self._small[name] = None
            try:
                self._small[name] = read_small(self.folder / name)
            except FileNotFoundError:
                pass
            except OSError as error:
                self.add_unreadable(name, error.strerror)
        return self._small[name]

    def record(self, name: str, model: type[_M]) -> _M | None:
        """Return the record in a small file; None if it is missing or cannot be read."""
        raw = self.read(name)
        try:
            return None if raw is None else parse_record(name, raw, model)
        except Corrupt as error:
            self.add_unreadable(name, str(error).removeprefix(f"{name}: "))
            return None

    def seals(self, names: Iterable[str]) -> dict[str, FileSeal]:
        """Return name → seal of the small files that are there."""
        found = ((name, self.read(name)) for name in names)
        return {
            name: FileSeal(bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())
            for name, raw in found
            if raw is not None
        }

    def is_readable(self, name: str) -> bool:
        """Say whether a growing file can be read to its end; name a file that cannot."""
        path = self.folder / name
        if not lexists(path):
            return False
        try:
            with read_plain(path) as stream:
                while stream.read(_CHUNK):
                    pass
        except OSError as error:
            self.add_unreadable(name, error.strerror)
            return False
        return True

    def rows(self, name: str, model: type[_M]) -> Iterator[_M]:
        """Yield the records of a file with one JSON record a line; count the other lines."""
        lines = iter_lines(self.folder / name) if self.is_readable(name) else ()
        bad = 0
        for raw in filter(bytes.strip, lines):
            try:
                row = model.model_validate_json(raw)
            except ValidationError:
                bad += 1
            else:
                yield row
        if bad:
            self.add_unreadable(name, f"{bad} lines")

    def begins_with(self, name: str, seal: FileSeal) -> bool:
        """Say whether a file's first bytes are the sealed ones; more may follow."""
        sealed, left = hashlib.sha256(), seal.bytes
        try:
            with read_plain(self.folder / name) as stream:
                while left and (chunk := stream.read(min(left, _CHUNK))):
                    sealed.update(chunk)
                    left -= len(chunk)
        except OSError:
            return False
        return not left and sealed.hexdigest() == seal.sha256

    def check_seal(self, name: str, seal: FileSeal | None) -> None:
        """Name a growing file that does not begin with the bytes that exit.json seals."""
        if seal is not None and seal.bytes and not self.begins_with(name, seal):
            self.unreadable.append(Doubt(kind=DoubtKind.SEAL_BROKEN, name=name))


def load_parts(files: RunFiles, exit_record: ExitRecord | None) -> dict[int, NodeExit]:
    """Return node → how its part ended, of those that exit.json seals; name what does not fit."""
    sealed = exit_record.nodes if exit_record is not None else None
    found = {}
    for number, seals in sorted((sealed or {}).items()):
        node = parse_rank(number)
        if node is None:
            files.add_unreadable("exit.json", f"{number[:16]!r} is no node")
            continue
        name = f"exit_node{node}.json"
        part = files.record(name, NodeExit)
        if part is not None:
            found[node] = part
        if files.seals([name]).get(name) != seals.exit:
            files.unreadable.append(Doubt(kind=DoubtKind.SEAL_BROKEN, name=name))
        files.check_seal(f"watch_node{node}.jsonl", seals.watch)
    return found


def read_devices(files: RunFiles, digests: bytes) -> tuple[str | None, int]:
    """Return the digest of the samples in devices.jsonl, and how many of the ticks' are not there.

    The digest is None without samples. The sampler outlives the last tick, so the file may hold
    more samples than the ticks.

    Args:
        digests: digests of the samples that ticks carry, `TOLD_BYTES` of each.
    """
    seen = {row.digest() for row in files.rows("devices.jsonl", DeviceSample)}
    held = {digest[:TOLD_BYTES] for digest in seen}
    carried = {digests[at : at + TOLD_BYTES] for at in range(0, len(digests), TOLD_BYTES)}
    sealed = hashlib.sha256(b"".join(sorted(seen))).hexdigest() if seen else None
    return sealed, len(carried - held)


def compare_findings(
    folded: Iterable[Finding], recorded: Iterable[Finding]
) -> tuple[tuple[Finding, ...], tuple[Doubt, ...]]:
    """Return the findings that count, and how findings.jsonl (`recorded`) differs from the fold."""
    found = {_ESSENCE(row): row for row in folded}
    told = {_ESSENCE(row): row for row in recorded}
    added = [row for essence, row in told.items() if essence not in found]
    gone = [row for essence, row in found.items() if essence not in told]
    halts = [row for row in added if row.severity is Severity.HALT]
    differences = [
        *(_difference(row, expected=row.severity.value) for row in gone),
        *(_difference(row, found=row.severity.value) for row in added),
    ]
    return (*found.values(), *halts), tuple(differences)


def _difference(row: Finding, expected: str | None = None, found: str | None = None) -> Doubt:
    return Doubt(
        kind=DoubtKind.FINDING_DIFFERS,
        rank=row.rank,
        step=row.step,
        name=row.detector,
        expected=expected,
        found=found,
    )
