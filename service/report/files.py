"""Which files did a run leave, and which bytes are they? Name, size and SHA-256 of each.

A file on this host is read for its digest, once as long as it stays as it is. One that is larger
than `MAX_HASHED` is not; where a checkpoint's manifest says its digest, that is shown as its word.
Small records and evidence that were shipped are told from the database, wherever the run was.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from gonogo.contract.api import ArtifactsView
from gonogo.contract.errors import Corrupt
from gonogo.contract.records import Manifest
from gonogo.rundir import RunDir, is_text, load_record
from service.db.schema import RunRow
from service.db.store import Session
from service.evidence.artifacts import load_copies, reachable_dir
from service.evidence.promised import load_digests, load_records

MAX_FILES = 200
MAX_HASHED = 256 * 2**20
_CHUNK = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFile:
    """One file of a run."""

    path: str
    bytes: int
    sha256: str | None = None
    note: str = ""
    """Where it lies or why it has no digest, where that needs a word."""


def load_files(
    session: Session, run: RunRow, listed: ArtifactsView
) -> tuple[tuple[SealedFile, ...], int]:
    """Return the files of a run by name, and how many there are beyond `MAX_FILES`."""
    found: dict[str, SealedFile] = {}
    here = reachable_dir(run)
    told = _manifests(here) if here is not None else {}
    shown = [row for row in listed.items if not row.path.startswith(".")]
    for row in shown[:MAX_FILES]:
        if row.here and here is not None:
            found[row.path] = _seal(here.path / row.path, row.path, row.bytes, told)
    room = MAX_FILES - len(found)
    for copy in load_copies(session, run.id, but=set(found), limit=room):
        if not copy.path.startswith("."):
            found[copy.path] = SealedFile(
                path=copy.path,
                bytes=copy.size,
                sha256=hashlib.sha256(copy.content).hexdigest(),
                note=f"of its first {len(copy.content)} bytes" if copy.truncated else "",
            )
    digests = load_digests(session, run.id)
    for path, content in load_records(session, run.id).items():
        if path not in found and not path.startswith("."):
            found[path] = SealedFile(path=path, bytes=len(content), sha256=digests[path])
    beyond = {row.path for row in shown} - found.keys()
    return tuple(found[path] for path in sorted(found)), len(beyond)


def _seal(path: Path, name: str, size: int, told: Mapping[str, str]) -> SealedFile:
    if size > MAX_HASHED:
        said = told.get(name)
        note = "as its manifest says" if said else "too large to be read for a report"
        return SealedFile(path=name, bytes=size, sha256=said, note=note)
    try:
        stat = path.stat()
        digest = _digest(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        return SealedFile(path=name, bytes=size, note=f"cannot be read: {error.strerror}")
    return SealedFile(path=name, bytes=stat.st_size, sha256=digest)


@lru_cache(maxsize=4096)
def _digest(path: Path, inode: int, size: int, mtime_ns: int) -> str:
    """Return the digest of the first `size` bytes; a file that has changed is another key."""
    digest, left = hashlib.sha256(), size
    with path.open("rb") as stream:
        while left and (chunk := stream.read(min(left, _CHUNK))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def _manifests(run_dir: RunDir) -> dict[str, str]:
    """Return file of a checkpoint → digest that its manifest says."""
    return dict(_told(run_dir))


def _told(run_dir: RunDir) -> Iterator[tuple[str, str]]:
    for path in sorted(filter(is_text, run_dir.checkpoints.glob("*/manifest.json"))):
        try:
            manifest = load_record(path, Manifest)
        except (OSError, Corrupt):
            continue
        folder = PurePosixPath(path.parent.relative_to(run_dir.path))
        for name, row in (manifest.files if manifest is not None else {}).items():
            yield str(folder / name), row.sha256
