"""Backup of a home into one tar file: `gonogo backup FILE`.

The file is whole or not there. It holds one moment of the SQLite database, the decisions of that
moment, the home's keys, and with `runs` the run directories. Its last member lists every other
member with size and SHA-256. A PostgreSQL database is backed up with `pg_dump`. `secrets/` and run
directories of other hosts are not included.
"""

import hashlib
import io
import json
import os
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from sqlalchemy import make_url

from gonogo import __version__
from gonogo.contract.errors import Conflict, NotFound, Rejected
from gonogo.files import read_plain, sync_folder
from gonogo.signing import KEY_FILE, PUBLIC_FILE
from service.db.engine import is_sqlite
from service.db.migrate import current_revision
from service.http.auth import LOCAL_KEYS
from service.instants import stamp
from service.settings import Settings

V = 1
LIST = "backup.json"
DATABASE = "gonogo.db"
KEYS = (*(name for name, _ in LOCAL_KEYS), KEY_FILE, PUBLIC_FILE)
RUNS = "runs"
FOLDERS = ("decisions", RUNS)


@dataclass(slots=True)
class Hashed:
    """A stream that passes bytes on and knows their SHA-256."""

    source: IO[bytes]
    digest: Any = field(default_factory=hashlib.sha256)

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        piece = self.source.read(size)
        self.digest.update(piece)
        return piece


def make_backup(settings: Settings, target: Path, now: float, *, runs: bool) -> dict[str, Any]:
    """Write the backup and return what is in it.

    Raises:
        Conflict: the file exists.
        NotFound: this home has no database yet.
        Rejected: a file cannot be written, or read.
    """
    if target.exists():
        raise Conflict(f"{target} is there already; a backup is never written over")
    revision, _ = current_revision(settings.database_url)
    if revision is None:
        raise NotFound(f"{settings.home} has no database yet")
    try:
        with tempfile.TemporaryDirectory(
            dir=target.parent, prefix=f".{target.name}."
        ) as folder:  # for its owner alone
            part = Path(folder) / "part"
            listed = _write(settings, part, Path(folder) / DATABASE, revision, now, runs=runs)
            part.rename(target)
        sync_folder(target.parent)
    except (OSError, sqlite3.Error, tarfile.TarError) as error:
        raise Rejected(f"no backup: {error}") from error
    return {**summary(listed), "file": str(target), "bytes": target.stat().st_size}


def summary(listed: dict[str, Any]) -> dict[str, Any]:
    """Return what a backup holds, for people, from its list."""
    names = list(listed["files"])
    return {
        "made_at": listed["made_at"],
        "database": listed["database"],
        "files": len(names),
        "decisions": sum(name.startswith("decisions/dec_") for name in names),
        "runs": len({Path(name).parts[1] for name in names if name.startswith("runs/run_")}),
    }


def _write(
    settings: Settings, part: Path, copy: Path, revision: str, now: float, *, runs: bool
) -> dict[str, Any]:
    """Write the archive and return its list."""
    held = is_sqlite(settings.database_url)
    # Listed before the copy is made: each decision's file is written after its commit.
    paths = list(_files(settings, runs=runs))
    files: dict[str, dict[str, Any]] = {}
    with part.open("xb") as stream:
        os.fchmod(stream.fileno(), 0o600)
        with tarfile.open(fileobj=stream, mode="w") as archive:
            if held:
                _copy_database(Path(make_url(settings.database_url).database or ""), copy)
                _add(archive, files, DATABASE, copy)
            for name, path in paths:
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
    return listed


def _copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database as it is at one moment, while others write to it."""
    with closing(sqlite3.connect(source)) as living, closing(sqlite3.connect(target)) as copy:
        living.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")


def _files(settings: Settings, *, runs: bool) -> Iterator[tuple[str, Path]]:
    """Yield name and path of every file of the home that is kept, but the database."""
    for name in KEYS:
        if (settings.home / name).is_file():
            yield name, settings.home / name
    for folder in FOLDERS if runs else FOLDERS[:1]:
        for path in sorted((settings.home / folder).rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(settings.home)), path


def _add(archive: tarfile.TarFile, files: dict[str, Any], name: str, path: Path) -> None:
    """Add a file at its present size; a file that is gone meanwhile is left out."""
    try:
        stream = read_plain(path)
    except FileNotFoundError:
        return
    with stream:
        info, stat = tarfile.TarInfo(name), os.fstat(stream.fileno())
        info.size, info.mode, info.mtime = stat.st_size, stat.st_mode & 0o777, int(stat.st_mtime)
        hashed = Hashed(stream)
        archive.addfile(info, hashed)  # type: ignore[arg-type]  # only read() is used
    files[name] = {"bytes": info.size, "sha256": hashed.digest.hexdigest()}
