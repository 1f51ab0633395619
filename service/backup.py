"""How is a home kept? In one tar file: `gonogo backup FILE`.

Guarantees: the file is whole or not there; it may be made while the service works, and holds one
moment of the database (SQLite's own backup) with the decisions of that moment, the home's keys and
what it signs with, and with `runs` the run directories. Its last member lists every other with its
size and SHA-256, which a restore (`service.restore`) looks at. What it is not: a backup of a
PostgreSQL database (`pg_dump` makes that, and the rest is here), of `secrets/`, or of another
host's run directories.
"""

import fcntl
import hashlib
import io
import json
import os
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from sqlalchemy import make_url, select
from sqlalchemy.orm import Session

from gonogo import __version__
from gonogo.contract.errors import Conflict, NotFound, Rejected
from gonogo.files import read_plain, sync_folder
from gonogo.signing import KEY_FILE, PUBLIC_FILE
from service.db.engine import is_sqlite
from service.db.migrate import current_revision
from service.db.schema import ExperimentRow
from service.db.store import Store
from service.http.auth import LOCAL_KEYS
from service.instants import stamp
from service.queries.decisions import load_ids
from service.settings import Settings, sqlite_url

V = 1
LIST = "backup.json"
DATABASE = "gonogo.db"
KEYS = (*(name for name, _ in LOCAL_KEYS), KEY_FILE, PUBLIC_FILE)
RUNS = "runs"
FOLDERS = ("decisions", RUNS)
_SHRINKS = 5
"""How often a file is begun anew that grows shorter while it is read."""


class _ShrunkError(Exception):
    """A file has fewer bytes than it had: the middle of a log was let go."""


@dataclass(slots=True)
class _Listed:
    """A file that is written to: passes bytes on, and knows their digest."""

    source: IO[bytes]
    digest: Any = field(default_factory=hashlib.sha256)

    def read(self, size: int) -> bytes:
        piece = self.source.read(size)
        if len(piece) < size:
            raise _ShrunkError
        self.digest.update(piece)
        return piece


def make_backup(settings: Settings, target: Path, now: float, *, runs: bool) -> dict[str, Any]:
    """Write the backup and return what is in it.

    Raises:
        Conflict: there is such a file already, or it is being made.
        NotFound: this home has no database yet.
        Rejected: a file cannot be written, or read.
    """
    if target.exists():
        raise Conflict(f"{target} is there already; a backup is never written over")
    revision, _ = current_revision(settings.database_url)
    if revision is None:
        raise NotFound(f"{settings.home} has no database yet")
    held = is_sqlite(settings.database_url)
    part = target.with_name(f".{target.name}.part")
    copy = target.with_name(f".{target.name}.db")
    try:
        with _own(part, target) as stream, _clearing(part, copy):
            with tarfile.open(fileobj=stream, mode="w") as archive:
                files: dict[str, dict[str, Any]] = {}
                url = settings.database_url
                if held:
                    _copy_database(Path(make_url(url).database or ""), copy)
                    _add(archive, files, DATABASE, copy)
                    url = sqlite_url(copy)
                for name, path in _files(settings, _late_decisions(settings, url), runs=runs):
                    _add(archive, files, name, path)
                listed = {
                    "v": V,
                    "made_at": stamp(now),
                    "version": __version__,
                    "revision": revision,
                    "database": "sqlite" if held else "postgresql",
                    "runs": runs,
                    "files": files,
                }
                content = json.dumps(listed).encode()
                info = tarfile.TarInfo(LIST)
                info.size, info.mode = len(content), 0o600
                archive.addfile(info, io.BytesIO(content))
            stream.flush()
            os.fsync(stream.fileno())
            part.rename(target)
            sync_folder(target.parent)
    except OSError as error:
        raise Rejected(f"no backup: {error.filename or target}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise Rejected(f"no backup: {copy}: {error}") from error
    return {**summary(listed), "file": str(target), "bytes": target.stat().st_size}


@contextmanager
def _own(part: Path, target: Path) -> Iterator[IO[bytes]]:
    """Yield the file of a backup that is not done, empty and ours alone; a killed one's is taken.

    Raises:
        Conflict: somebody else is at it, or just was.
    """
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as stream:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.path.samestat(os.fstat(descriptor), os.stat(part))
        except (BlockingIOError, FileNotFoundError):
            ours = False
        if not ours or target.exists():
            raise Conflict(f"{target} is being made by another backup, or is there already")
        os.fchmod(descriptor, 0o600)
        stream.truncate()
        yield stream


@contextmanager
def _clearing(part: Path, copy: Path) -> Iterator[None]:
    """Remove in the end what is half done, and what SQLite leaves beside a copy."""
    logs = [copy.with_name(f"{copy.name}-{name}") for name in ("wal", "shm", "journal")]
    try:
        yield
    finally:
        for path in (part, copy, *logs):
            with suppress(OSError):
                path.unlink()


def summary(listed: dict[str, Any]) -> dict[str, Any]:
    """Return what a backup holds, for people, of the list that it ends with."""
    names = list(listed["files"])
    return {
        "made_at": listed["made_at"],
        "database": listed["database"],
        "files": len(names),
        "decisions": sum(name.startswith("decisions/dec_") for name in names),
        "runs": len({Path(name).parts[1] for name in names if name.startswith("runs/run_")}),
    }


def _copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database as it is at one moment, while others write to it."""
    for name in ("", "-wal", "-shm", "-journal"):  # a killed backup's
        target.with_name(f"{target.name}{name}").unlink(missing_ok=True)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(source)) as living, closing(sqlite3.connect(target)) as copy:
        living.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")


def _late_decisions(settings: Settings, url: str) -> set[str]:
    """Return the decision files of after the database's moment: their chains would fork."""

    def load(session: Session) -> tuple[set[str], set[str]]:
        known = load_ids(session)
        return known, set(session.scalars(select(ExperimentRow.id)))

    store = Store(url)
    try:
        known, experiments = store.read(load)
    finally:
        store.close()
    late = set()
    for path in settings.decisions.glob("dec_*.json"):
        if path.stem not in known:
            try:
                theirs = json.loads(_load(path)).get("experiment")
            except (OSError, ValueError, AttributeError):
                continue
            if theirs in experiments:
                late.add(path.name)
    return late


def _load(path: Path) -> bytes:
    with read_plain(path) as stream:
        return stream.read()


def _files(settings: Settings, late: set[str], *, runs: bool) -> Iterator[tuple[str, Path]]:
    """Yield name and path of every file of the home that is kept, but the database."""
    for name in KEYS:
        if (settings.home / name).is_file():
            yield name, settings.home / name
    for folder in FOLDERS if runs else FOLDERS[:1]:
        for at, folders, names in os.walk(settings.home / folder):
            folders.sort()
            for name in sorted(names):
                path = Path(at) / name
                if path.is_file() and not path.is_symlink() and name not in late:
                    yield str(path.relative_to(settings.home)), path


def _add(archive: tarfile.TarFile, files: dict[str, Any], name: str, path: Path) -> None:
    """Add as much of a file as it has now; one that is gone meanwhile is left out.

    Raises:
        Rejected: it grows shorter again and again.
        OSError: it cannot be read, or the archive not be written.
    """
    begins = archive.offset
    for _ in range(_SHRINKS):
        try:
            with read_plain(path) as stream:
                files[name] = _append(archive, name, stream)
            return
        except FileNotFoundError:
            return
        except _ShrunkError:  # what stands of it in the archive is written over
            archive.offset = begins
            target = cast(IO[bytes], archive.fileobj)
            target.seek(begins)
            target.truncate()
    raise Rejected(f"no backup: {path} grew shorter {_SHRINKS} times while it was read")


def _append(archive: tarfile.TarFile, name: str, stream: IO[bytes]) -> dict[str, Any]:
    info = tarfile.TarInfo(name)
    stat = os.fstat(stream.fileno())
    info.size, info.mode, info.mtime = stat.st_size, stat.st_mode & 0o777, int(stat.st_mtime)
    read = _Listed(stream)
    archive.addfile(info, read)  # type: ignore[arg-type]  # only read() is used
    return {"bytes": info.size, "sha256": read.digest.hexdigest()}
