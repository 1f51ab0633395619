"""Which files did a run leave, and which bytes are they? Name, size and SHA-256 of each.

A file on this host is read for its digest, once as long as it stays as it is: the smallest first,
`MAX_HASHED` bytes of one and `MAX_HASHED_IN_ALL` of a run. Of what is beyond, a checkpoint's
manifest may say the digest, which is shown as its word.
Small records and evidence that were shipped are told from the database, wherever the run was.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from gonogo.contract.api import ArtifactsView, ArtifactView
from gonogo.contract.errors import Corrupt
from gonogo.contract.records import Manifest
from gonogo.files import read_plain
from gonogo.rundir import RunDir, load_record
from service.db.schema import RunRow
from service.db.store import Session
from service.evidence.artifacts import load_copies, reachable_dir
from service.evidence.promised import load_digests, load_records

MAX_FILES = 200
MAX_HASHED = 256 * 2**20
MAX_HASHED_IN_ALL = 4 * 2**30
MAX_MANIFEST = 2**20
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
    shown = [row for row in listed.items if not row.path.startswith(".")]
    some = [row for row in shown[:MAX_FILES] if row.here and here is not None]
    if here is not None:
        told = dict(_told(here, some))
        left = MAX_HASHED_IN_ALL
        for row in sorted(some, key=lambda row: row.bytes):
            sealed = _seal(here.path / row.path, row, told, min(left, MAX_HASHED))
            left = max(0, left - sealed.bytes)
            found[row.path] = sealed
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


def _seal(path: Path, row: ArtifactView, told: Mapping[str, str], most: int) -> SealedFile:
    try:
        stat = path.stat()
        if stat.st_size > most:
            said = told.get(row.path)
            note = "as its manifest says" if said else "too large to be read for a report"
            return SealedFile(path=row.path, bytes=stat.st_size, sha256=said, note=note)
        digest = _digest(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        return SealedFile(path=row.path, bytes=row.bytes, note=f"cannot be read: {error.strerror}")
    return SealedFile(path=row.path, bytes=stat.st_size, sha256=digest)


@lru_cache(maxsize=4096)
def _digest(path: Path, inode: int, size: int, mtime_ns: int) -> str:
    """Return the digest of the first `size` bytes; a file that has changed is another key."""
    digest, left = hashlib.sha256(), size
    with read_plain(path) as stream:
        while left and (chunk := stream.read(min(left, _CHUNK))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def _told(run_dir: RunDir, listed: Iterable[ArtifactView]) -> Iterator[tuple[str, str]]:
    """Yield file of a checkpoint and digest, as the manifests among the listed files say."""
    for row in listed:
        path = PurePosixPath(row.path)
        if not path.match("checkpoints/*/manifest.json") or row.bytes > MAX_MANIFEST:
            continue
        try:
            manifest = load_record(run_dir.path / path, Manifest)
        except (OSError, Corrupt):
            continue
        for name, said in (manifest.files if manifest is not None else {}).items():
            yield str(path.parent / name), said.sha256
