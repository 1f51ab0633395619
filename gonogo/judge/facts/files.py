"""Which bytes did a verdict rest on? Small files by size and SHA-256, device lines by digest.

Small files stay as they are, so their bytes are sealed; lines are held by the digest of what they
say (parsed, each once, sorted), so that how they are written, and in which order, changes nothing.
What is written over while it is judged is judged, and sealed, as it was read first.
"""

import hashlib
import os
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gonogo.contract.device import DeviceSample
from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.errors import Corrupt
from gonogo.contract.records import ExitRecord
from gonogo.contract.tick import FileSeal
from gonogo.plain_file import first_hole
from gonogo.rundir import (
    RunDir,
    check_whole,
    heartbeat_rank,
    iter_lines,
    load_raw,
    open_file,
    parse_record,
)
from gonogo.watch.watch_record import TOLD_BYTES

_M = TypeVar("_M", bound=BaseModel)

SEALED = ("order.json", "exit.json", "preflight/preflight.json", "model.json", "env.json")
"""Small files that are sealed beside every rank's exit record."""

UNWATCHED = frozenset({"env.json", "exit.json"})
"""Of those, what no tick need have sealed: env.json is for people, and whether the watcher saw
exit.json is a fact of its own. Any other record that is there and that no tick sealed was added."""

DEVICES = "devices.jsonl"
_CHUNK = 2**20
_UNREADABLE = DoubtKind.UNREADABLE


class SmallFiles:
    """The small files of a run directory, each read once: what is parsed is what is sealed.

    One that changed in between would be judged by bytes that its seal does not show.
    """

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


def unreadable_text(name: str, error: Exception) -> str:
    """Return the sentence about a record that is there and cannot be read; without its path."""
    why = error.strerror if isinstance(error, OSError) else str(error).removeprefix(f"{name}: ")
    return f"{name} cannot be read: {why}"


def unreadable_doubt(name: str, error: Exception) -> Doubt:
    """Return the doubt about a record that exists and cannot be read."""
    why = error.strerror if isinstance(error, OSError) else str(error).removeprefix(f"{name}: ")
    return Doubt(kind=DoubtKind.UNREADABLE, name=name, found=why)


def broken_seal(name: str) -> Doubt:
    """Return the doubt about a file that is not the one that exit.json seals."""
    return Doubt(kind=DoubtKind.SEAL_BROKEN, name=name)


def watch_seal_holds(
    run_dir: RunDir, exit_record: ExitRecord | None, read: FileSeal | None = None
) -> bool | None:
    """Say whether watch.jsonl begins with the bytes that exit.json seals; None where it does not.

    Ticks may follow the sealed ones: the watcher goes on until it has seen the end.

    Args:
        run_dir: the run's directory.
        exit_record: exit.json.
        read: the bytes that were folded, where any were; a file that begins with others was
            written over meanwhile.
    """
    if exit_record is None or exit_record.watch is None:
        return None
    return begins_with(run_dir.watch, exit_record.watch, *filter(None, (read,)))


def check_findings_seal(
    run_dir: RunDir,
    exit_record: ExitRecord | None,
    compared: Sequence[bytes],
    unreadable: list[Doubt],
) -> None:
    """Name findings.jsonl when it does not begin with the bytes that exit.json seals.

    Args:
        run_dir: the run's directory.
        exit_record: exit.json.
        compared: the lines that were held against the fold; where they do not begin with those
            that are sealed, the file was another one then.
        unreadable: is told.
    """
    seal = exit_record.findings if exit_record is not None else None
    if seal is None or not seal.bytes:
        return
    raw = _sealed_bytes(run_dir.findings, seal)
    lines = [] if raw is None else raw[: raw.rfind(b"\n") + 1].splitlines()
    if raw is None or [*compared[: len(lines)]] != lines:
        unreadable.append(broken_seal("findings.jsonl"))


def _sealed_bytes(path: Path, seal: FileSeal) -> bytes | None:
    """Return the first bytes of a file, where they are the sealed ones; else None."""
    try:
        with open_file(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            raw = stream.read(min(seal.bytes, size, first_hole(stream.fileno())))
    except OSError:
        return None
    same = len(raw) == seal.bytes and hashlib.sha256(raw).hexdigest() == seal.sha256
    return raw if same else None


def find_kept(
    run_dir: RunDir, exit_record: ExitRecord | None, owed: Container[int]
) -> frozenset[int]:
    """Return the ranks whose heartbeat file begins with the bytes that exit.json seals.

    Only those that were never ordered are looked at: what the others wrote the ticks hold.

    Args:
        run_dir: the run's directory.
        exit_record: how the run ended.
        owed: the ranks that were ordered.
    """
    found = set()
    for name, row in ((exit_record.heartbeats if exit_record else None) or {}).items():
        rank = heartbeat_rank(name)
        if rank is None or rank in owed or row.sha256 is None:
            continue
        if begins_with(run_dir.path / name, FileSeal(bytes=row.bytes, sha256=row.sha256)):
            found.add(rank)
    return frozenset(found)


def begins_with(path: Path, *seals: FileSeal) -> bool:
    """Say whether a file's first bytes are the sealed ones, by each of the seals in one pass."""
    sealed, at, wanted = hashlib.sha256(), 0, sorted(seals, key=lambda row: row.bytes)
    try:
        with open_file(path) as stream:
            for seal in wanted:
                while at < seal.bytes and (chunk := stream.read(min(seal.bytes - at, _CHUNK))):
                    sealed.update(chunk)
                    at += len(chunk)
                if at != seal.bytes or sealed.hexdigest() != seal.sha256:
                    return False
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLines:
    """What devices.jsonl holds."""

    digest: str | None
    """Of its samples: parsed, each once, sorted; None where there are none."""
    gone: int
    """Samples that ticks carry and the file does not hold."""


def read_devices(run_dir: RunDir, told: bytes, unreadable: list[Doubt]) -> DeviceLines:
    """Return what devices.jsonl holds, and what of it is gone.

    A line that is no sample is counted and named. Lines that no tick carries are none that are
    missing there: the sampler outlives the last tick.

    Args:
        run_dir: the run's directory.
        told: digests of the samples that ticks carry, `TOLD_BYTES` of each.
        unreadable: is told what cannot be read.
    """
    seen: set[bytes] = set()
    path = run_dir.path / DEVICES
    if path.is_file():
        try:
            check_whole(path)
        except OSError as error:
            unreadable.append(unreadable_doubt(DEVICES, error))
        bad = 0
        for raw in filter(bytes.strip, iter_lines(path)):  # a blank line tells nothing
            try:
                seen.add(DeviceSample.model_validate_json(raw).digest())
            except ValidationError:
                bad += 1
        if bad:
            unreadable.append(Doubt(kind=_UNREADABLE, name=DEVICES, found=f"{bad} lines"))
    elif lexists(path):
        unreadable.append(Doubt(kind=_UNREADABLE, name=DEVICES, found="it is no file"))
    held = {digest[:TOLD_BYTES] for digest in seen} if told else set()
    carried = {told[at : at + TOLD_BYTES] for at in range(0, len(told), TOLD_BYTES)}
    return DeviceLines(
        digest=hashlib.sha256(b"".join(sorted(seen))).hexdigest() if seen else None,
        gone=len(carried - held),
    )
