"""How is a home kept and brought back? One tar file: `gonogo backup FILE`, `gonogo restore FILE`.

Guarantees: the file is whole or not there; it may be made while the service works, and holds one
moment of the database (SQLite's own backup) with the decisions of that moment, the home's keys and
what it signs with, and with `runs` the run directories. Its last member lists every other with its
size and SHA-256; a restore looks at all of them before it puts anything into the home, and only
into one that has no database yet. What it is not: a backup of a PostgreSQL database (`pg_dump`
makes that, and the rest is here), of `secrets/`, or of another host's run directories. A service
that starts on a restored home begins a new epoch, so that it hands out no token that an attempt of
after the backup already has.
"""

import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from alembic.script import ScriptDirectory
from sqlalchemy import make_url, select
from sqlalchemy.orm import Session

from gonogo import __version__
from gonogo.contract.errors import Conflict, Corrupt, NotFound, Rejected
from gonogo.signing import KEY_FILE, PUBLIC_FILE
from service.db.engine import is_sqlite
from service.db.migrate import build_config, current_revision
from service.db.schema import ExperimentRow
from service.db.store import Store
from service.http.auth import LOCAL_KEYS
from service.instants import stamp
from service.queries.decisions import load_ids
from service.settings import Settings

V = 1
LIST = "backup.json"
DATABASE = "gonogo.db"
_KEYS = (*(name for name, _ in LOCAL_KEYS), KEY_FILE, PUBLIC_FILE)
_FOLDERS = ("decisions", "runs")
_LISTED = {"made_at", "version", "revision", "database", "files"}
_PIECE = 2**20


@dataclass(slots=True)
class _Listed:
    """A file that is written to: passes bytes on, and knows their digest."""

    source: IO[bytes]
    digest: Any = field(default_factory=hashlib.sha256)

    def read(self, size: int) -> bytes:
        piece = self.source.read(size)
        self.digest.update(piece)
        return piece


def make_backup(settings: Settings, target: Path, now: float, *, runs: bool) -> dict[str, Any]:
    """Write the backup and return what is in it.

    Raises:
        Conflict: there is such a file already.
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
        with part.open("xb") as stream:
            os.fchmod(stream.fileno(), 0o600)
            with tarfile.open(fileobj=stream, mode="w") as archive:
                files: dict[str, dict[str, Any]] = {}
                url = settings.database_url
                if held:
                    _copy_database(Path(make_url(url).database or ""), copy)
                    _add(archive, files, DATABASE, copy)
                    url = f"sqlite:///{copy}"
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
    except OSError as error:
        raise Rejected(f"no backup: {error.filename or target}: {error.strerror}") from error
    finally:
        _clear(part, copy)
    return {**_summary(listed), "file": str(target), "bytes": target.stat().st_size}


def _clear(*paths: Path) -> None:
    """Remove what is half done; where there is no such folder, there is nothing."""
    for path in paths:
        with suppress(OSError):
            path.unlink()


def restore_backup(settings: Settings, source: Path) -> dict[str, Any]:
    """Put a backup into the home, which has no database yet, and return what was in it.

    Raises:
        NotFound: there is no such file.
        Corrupt: it is not whole.
        Conflict: the home has something that a backup would bring.
        Rejected: it is no backup, was made by a newer gonogo, or with a database of another kind.
    """
    home = settings.home
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    taken = [name for name in (DATABASE, *_KEYS, *_FOLDERS) if _is_taken(home / name)]
    if taken:
        raise Conflict(f"{home} has {', '.join(taken)}; restore into a GONOGO_HOME without them")
    waiting = home / ".restore"
    shutil.rmtree(waiting, ignore_errors=True)
    waiting.mkdir(mode=0o700)
    try:
        listed = _unpack(source, waiting)
        _check_fits(settings, listed)
        # The database last: a home that has one is whole.
        names = sorted({Path(name).parts[0] for name in listed["files"]}, key=_is_database)
        for name in names:
            if (home / name).is_dir():
                (home / name).rmdir()
            (waiting / name).rename(home / name)
    finally:
        shutil.rmtree(waiting, ignore_errors=True)
    return {**_summary(listed), "home": str(home)}


def _is_database(name: str) -> bool:
    return name == DATABASE


def _is_taken(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _summary(listed: dict[str, Any]) -> dict[str, Any]:
    names = list(listed["files"])
    return {
        "made_at": listed["made_at"],
        "database": listed["database"],
        "files": len(names),
        "decisions": sum(name.startswith("decisions/dec_") for name in names),
        "runs": len({Path(name).parts[1] for name in names if name.startswith("runs/")}),
    }


def _copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database as it is at one moment, while others write to it."""
    target.unlink(missing_ok=True)
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
                theirs = json.loads(path.read_bytes()).get("experiment")
            except (OSError, ValueError, AttributeError):
                continue
            if theirs in experiments:
                late.add(path.name)
    return late


def _files(settings: Settings, late: set[str], *, runs: bool) -> Iterator[tuple[str, Path]]:
    """Yield name and path of every file of the home that is kept, but the database."""
    for name in _KEYS:
        if (settings.home / name).is_file():
            yield name, settings.home / name
    for folder in _FOLDERS if runs else _FOLDERS[:1]:
        for at, folders, names in os.walk(settings.home / folder):
            folders.sort()
            for name in sorted(names):
                path = Path(at) / name
                if path.is_file() and not path.is_symlink() and name not in late:
                    yield str(path.relative_to(settings.home)), path


def _add(archive: tarfile.TarFile, files: dict[str, Any], name: str, path: Path) -> None:
    """Add as much of a file as it has now; one that is gone meanwhile is left out."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    with stream:
        info = tarfile.TarInfo(name)
        stat = os.fstat(stream.fileno())
        info.size, info.mode, info.mtime = stat.st_size, stat.st_mode & 0o777, int(stat.st_mtime)
        read = _Listed(stream)
        archive.addfile(info, read)  # type: ignore[arg-type]  # only read() is used
        files[name] = {"bytes": info.size, "sha256": read.digest.hexdigest()}


def _unpack(source: Path, folder: Path) -> dict[str, Any]:
    """Write every member into `folder`, and return the list that they all agree with."""
    found: dict[str, dict[str, Any]] = {}
    listed: dict[str, Any] | None = None
    try:
        with _open_archive(source) as archive:
            for member in archive:
                stream = archive.extractfile(member)
                if stream is None or listed is not None or not _is_ours(member.name):
                    text = f"{source}: {member.name!r} has no place in a backup"
                    raise Corrupt(text) if found or listed else Rejected(text)
                if member.name == LIST:
                    listed = json.load(stream)
                else:
                    found[member.name] = _write(folder / member.name, stream, member.mode & 0o700)
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        raise Corrupt(f"{source}: not a whole backup: {error}") from error
    if not isinstance(listed, dict) or listed.get("v") != V or not listed.keys() >= _LISTED:
        raise Corrupt(f"{source}: not a whole backup: {LIST} is missing or of another version")
    if listed["files"] != found:
        wrong = sorted(
            name
            for name in listed["files"].keys() | found.keys()
            if listed["files"].get(name) != found.get(name)
        )
        raise Corrupt(f"{source}: not as it was made: {', '.join(wrong[:5])}")
    return listed


def _open_archive(source: Path) -> tarfile.TarFile:
    """Return a file that may be a backup, open.

    Raises:
        NotFound: there is no such file.
        Rejected: it cannot be read, or is no archive at all.
    """
    try:
        return tarfile.open(source, mode="r:")
    except FileNotFoundError as error:
        raise NotFound(f"no such backup: {source}") from error
    except OSError as error:
        raise Rejected(f"{source}: {error.strerror}") from error
    except (tarfile.TarError, EOFError) as error:
        raise Rejected(f"{source} is no backup: {error}") from error


def _is_ours(name: str) -> bool:
    """Say whether a member's name is one of a backup's, which no `..` leads out of."""
    parts = name.split("/")
    if len(parts) == 1:
        return name in (LIST, DATABASE, *_KEYS)
    return parts[0] in _FOLDERS and not {"", ".", ".."} & set(parts)


def _write(path: Path, stream: IO[bytes], mode: int) -> dict[str, Any]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode | 0o600)
    with os.fdopen(descriptor, "wb") as target:
        while piece := stream.read(_PIECE):
            digest.update(piece)
            size += len(piece)
            target.write(piece)
        target.flush()
        os.fsync(target.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _check_fits(settings: Settings, listed: dict[str, Any]) -> None:
    """Refuse a backup that this version, or these settings, cannot go on with."""
    held = listed["database"] == "sqlite"
    if held and Path(make_url(settings.database_url).database or "") != settings.home / DATABASE:
        raise Rejected("the backup holds a SQLite database; unset GONOGO_DATABASE_URL")
    if not held and is_sqlite(settings.database_url):
        raise Rejected("the backup's database was PostgreSQL; set GONOGO_DATABASE_URL")
    known = {row.revision for row in ScriptDirectory.from_config(build_config()).walk_revisions()}
    if listed["revision"] not in known:
        raise Rejected(f"the backup was made by gonogo {listed['version']}, newer than this one")
