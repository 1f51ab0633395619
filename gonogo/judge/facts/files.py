"""The files that a verdict rests on: small ones by size and SHA-256, device lines by digest.

Small files stay as they are, so their bytes are sealed. Device lines are held by the digest of what
they say (parsed, each once, sorted), so their order changes nothing.

Findings are folded again at every judging. The fold is the witness, not findings.jsonl: a finding
of the fold counts whether the file has it or not. A halt that only the file has counts too, since
the run was ended for it. Every difference is named.
"""

import hashlib
from collections.abc import Iterable, Iterator
from os.path import lexists
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gonogo.contract.device import DeviceSample
from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.node import NodeExit
from gonogo.contract.records import ExitRecord, Preflight
from gonogo.contract.tick import FileSeal, parse_rank
from gonogo.plain_file import read_plain
from gonogo.rundir import RunDir, check_whole, iter_lines, load_raw, parse_record, preflight_name
from gonogo.watch.watch_record import TOLD_BYTES

_M = TypeVar("_M", bound=BaseModel)

SEALED = ("order.json", "exit.json", "preflight/preflight.json", "model.json", "env.json")
"""Small files that are sealed beside every rank's exit record."""

UNWATCHED = frozenset({"env.json", "exit.json"})
"""Of those, what no tick need have sealed: env.json is for people, and whether the watcher saw
exit.json is a fact of its own. Any other record that is there and that no tick sealed was added."""

_CHUNK = 2**20
_UNREADABLE = DoubtKind.UNREADABLE
_ESSENCE = ("detector", "severity", "rank", "section", "step")
"""Fields of a finding in which findings.jsonl and the fold must agree."""


class SmallFiles:
    """The small files of a run directory, each read once: what is parsed is what is sealed."""

    def __init__(self, run_dir: RunDir) -> None:
        self._dir = run_dir
        self._read: dict[Path, bytes | Corrupt | OSError | None] = {}

    def record(self, path: Path, model: type[_M]) -> _M | None:
        """Return a small record, or None when there is no such file.

        Raises:
            Corrupt: it is there and is not such a record.
            OSError: it cannot be read.
        """
        raw = self._raw(path)
        return None if raw is None else parse_record(path.name, raw, model)

    def try_record(self, path: Path, model: type[_M], unreadable: list[Doubt]) -> _M | None:
        """Return a small record; one that cannot be read is named and counts as missing."""
        try:
            return self.record(path, model)
        except (Corrupt, OSError) as error:
            unreadable.append(unreadable_doubt(path.name, error))
            return None

    def seals(
        self, ranks: Iterable[int], unreadable: list[Doubt], more: Iterable[str] = ()
    ) -> dict[str, FileSeal]:
        """Return the seal of every small file that is there; one that cannot be read is named.

        Args:
            ranks: whose exit records are looked for.
            unreadable: is told what cannot be read.
            more: names of other files.
        """
        names = [*SEALED, *(self._dir.rank_exit(rank).name for rank in ranks), *more]
        found = {}
        for name in names:
            seal = self.seal(self._dir.path / name, unreadable)
            if seal is not None:
                found[name] = seal
        return found

    def seal(self, path: Path, unreadable: list[Doubt]) -> FileSeal | None:
        """Return the seal of a small file; None where it is missing or cannot be read."""
        try:
            raw = self._raw(path)
        except (Corrupt, OSError) as error:
            doubt = unreadable_doubt(path.name, error)
            if doubt not in unreadable:
                unreadable.append(doubt)
            return None
        if raw is None:
            return None
        return FileSeal(bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())

    def _raw(self, path: Path) -> bytes | None:
        if path not in self._read:
            try:
                self._read[path] = load_raw(path)
            except (Corrupt, OSError) as error:
                self._read[path] = error
        found = self._read[path]
        if isinstance(found, Exception):
            raise found
        return found


def unreadable_doubt(name: str, error: Exception) -> Doubt:
    """Return the doubt about a record that exists and cannot be read; without its path."""
    why = error.strerror if isinstance(error, OSError) else str(error).removeprefix(f"{name}: ")
    return Doubt(kind=_UNREADABLE, name=name, found=why)


def broken_seal(name: str) -> Doubt:
    """Return the doubt about a file that is not the one that exit.json seals."""
    return Doubt(kind=DoubtKind.SEAL_BROKEN, name=name)


def watch_seal_holds(run_dir: RunDir, exit_record: ExitRecord | None) -> bool | None:
    """Say whether watch.jsonl begins with the bytes that exit.json seals; None without a seal.

    Ticks may follow the sealed ones: the watcher continues until it has seen the end.
    """
    if exit_record is None or exit_record.watch is None:
        return None
    return begins_with(run_dir.watch, exit_record.watch)


def check_findings_seal(
    run_dir: RunDir, exit_record: ExitRecord | None, unreadable: list[Doubt]
) -> None:
    """Name findings.jsonl when it does not begin with the bytes that exit.json seals."""
    seal = exit_record.findings if exit_record is not None else None
    if seal is not None and seal.bytes and not begins_with(run_dir.findings, seal):
        unreadable.append(broken_seal("findings.jsonl"))


def begins_with(path: Path, seal: FileSeal) -> bool:
    """Say whether a file's first bytes are the sealed ones."""
    sealed, left = hashlib.sha256(), seal.bytes
    try:
        with read_plain(path) as stream:
            while left and (chunk := stream.read(min(left, _CHUNK))):
                sealed.update(chunk)
                left -= len(chunk)
    except OSError:
        return False
    return not left and sealed.hexdigest() == seal.sha256


def load_parts(
    run_dir: RunDir, small: SmallFiles, exit_record: ExitRecord | None, unreadable: list[Doubt]
) -> dict[int, NodeExit]:
    """Return node → how its part ended, of those that exit.json seals; name what does not fit."""
    sealed = exit_record.nodes if exit_record is not None else None
    found = {}
    for name, seals in sorted((sealed or {}).items()):
        node = parse_rank(name)
        if node is None:
            why = f"{name[:16]!r} is no node"
            unreadable.append(Doubt(kind=_UNREADABLE, name="exit.json", found=why))
            continue
        path, lines = run_dir.node_exit(node), run_dir.node_watch(node)
        part = small.try_record(path, NodeExit, unreadable)
        if part is not None:
            found[node] = part
        if small.seal(path, unreadable) != seals.exit:
            unreadable.append(broken_seal(path.name))
        if seals.watch.bytes and not begins_with(lines, seals.watch):
            unreadable.append(broken_seal(lines.name))
    return found


def load_preflights(
    run_dir: RunDir, small: SmallFiles, nodes: Iterable[int], unreadable: list[Doubt]
) -> dict[int, Preflight]:
    """Return node → what was checked there before the launch; name what cannot be read."""
    found = {}
    for node in nodes:
        problems: list[Doubt] = []
        row = small.try_record(run_dir.preflight_of(node), Preflight, problems)
        name = preflight_name(node)
        unreadable += [doubt.model_copy(update={"name": name}) for doubt in problems]
        if row is not None:
            found[node] = row
    return found


def read_devices(run_dir: RunDir, told: bytes, unreadable: list[Doubt]) -> tuple[str | None, int]:
    """Return the digest of the samples in devices.jsonl, and how many of the ticks' are not there.

    The digest is of samples as parsed, each once, sorted; None without any. A line that is no
    sample is counted and named. The sampler outlives the last tick, so the file may hold more.

    Args:
        run_dir: the run's directory.
        told: digests of the samples that ticks carry, `TOLD_BYTES` of each.
        unreadable: is told what cannot be read.
    """
    seen = {row.digest() for row in _load_rows(run_dir.devices, DeviceSample, unreadable)}
    held = {digest[:TOLD_BYTES] for digest in seen} if told else set()
    carried = {told[at : at + TOLD_BYTES] for at in range(0, len(told), TOLD_BYTES)}
    sealed = hashlib.sha256(b"".join(sorted(seen))).hexdigest() if seen else None
    return sealed, len(carried - held)


def compare_findings(
    run_dir: RunDir, folded: Iterable[Finding], unreadable: list[Doubt]
) -> tuple[tuple[Finding, ...], tuple[Doubt, ...]]:
    """Return the findings that count, and how findings.jsonl differs from the fold.

    Those of the fold count, and the halts that only the file has.

    Args:
        run_dir: the run directory.
        folded: what the fold found.
        unreadable: is told what of findings.jsonl cannot be read.
    """
    found = {row.key: row for row in folded}
    counted = dict(found)
    recorded = load_findings(run_dir, unreadable)
    known = {row.key for row in recorded}
    differences = [_difference(None, row) for key, row in found.items() if key not in known]
    for row in recorded:
        key, mine = row.key, found.get(row.key)
        if mine is None:
            differences.append(_difference(row, None))
            if row.severity is Severity.HALT:
                counted[key] = row
        elif any(getattr(mine, name) != getattr(row, name) for name in _ESSENCE):
            differences.append(_difference(row, mine))
            if row.severity is Severity.HALT and mine.severity is not Severity.HALT:
                counted[f"{key} as recorded"] = row
    more = [row for key, row in counted.items() if key not in found]
    return (*found.values(), *more), tuple(differences)


def load_findings(run_dir: RunDir, unreadable: list[Doubt] | None = None) -> list[Finding]:
    """Return the findings of findings.jsonl; `unreadable` receives what cannot be read."""
    return list(_load_rows(run_dir.findings, Finding, [] if unreadable is None else unreadable))


def _load_rows(path: Path, model: type[_M], unreadable: list[Doubt]) -> Iterator[_M]:
    """Yield the records of a file with one JSON record a line; blank lines do not count."""
    bad = 0
    for raw in filter(bytes.strip, iter_lines(path)) if is_readable(path, unreadable) else ():
        try:
            row = model.model_validate_json(raw)
        except ValidationError:
            bad += 1
        else:
            yield row
    if bad:
        unreadable.append(Doubt(kind=_UNREADABLE, name=path.name, found=f"{bad} lines"))


def is_readable(path: Path, unreadable: list[Doubt]) -> bool:
    """Say whether a growing file can be read to its end; name a file that cannot be read."""
    if not lexists(path):
        return False
    try:
        check_whole(path)
    except OSError as error:
        unreadable.append(unreadable_doubt(path.name, error))
        return False
    return True


def _difference(recorded: Finding | None, folded: Finding | None) -> Doubt:
    row = recorded or folded
    assert row is not None
    return Doubt(
        kind=DoubtKind.FINDING_DIFFERS,
        rank=row.rank,
        step=row.step,
        name=row.detector,
        expected=None if folded is None else folded.severity.value,
        found=None if recorded is None else recorded.severity.value,
    )
