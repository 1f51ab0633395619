"""Backup of a home into one tar file, and back: `gonogo backup FILE`, `gonogo restore FILE`.

The file holds one moment of the SQLite database, decisions and keys, with `runs` also the run
directories. Its last member names every other one. A restore moves the database in last.
"""

import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from gonogo import __version__
from gonogo.contract.errors import Conflict, Corrupt, NotFound, Rejected
from gonogo.files import read_plain, sync_folder
from gonogo.signing import KEY_FILE, PUBLIC_FILE
from service.db.store import HEAD, current_revision, is_sqlite
from service.http.auth import LOCAL_KEYS
from service.settings import Settings
from service.text import stamp

V = 1
LIST = "backup.json"
DATABASE = "gonogo.db"
KEYS = (*(name for name, _ in LOCAL_KEYS), KEY_FILE, PUBLIC_FILE)
DECISIONS, RUNS = "decisions", "runs"


def make_backup(settings: Settings, target: Path, now: float, *, runs: bool) -> dict[str, Any]:
    """Write the backup and return what is in it."""
    if target.exists():
        raise Conflict(f"{target} is there already; a backup is never written over")
    revision, _ = current_revision(settings.database_url)
    if revision is None:
        raise NotFound(f"{settings.home} has no database yet")
    listed = {
        "v": V,
        "made_at": stamp(now),
        "version": __version__,
        "revision": revision,
        "database": "sqlite" if is_sqlite(settings.database_url) else "postgresql",
        "files": [],
    }
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
            part = Path(folder) / "part"
            with part.open("xb") as stream:
                os.fchmod(stream.fileno(), 0o600)
                with tarfile.open(fileobj=stream, mode="w") as archive:
                    _write_members(settings, archive, listed, Path(folder) / DATABASE, runs=runs)
                stream.flush()
                os.fsync(stream.fileno())
            part.rename(target)
        sync_folder(target.parent)
    except (OSError, sqlite3.Error, tarfile.TarError) as error:
        raise Rejected(f"no backup: {error}") from error
    return {**_summary(listed), "file": str(target), "bytes": target.stat().st_size}


def _write_members(
    settings: Settings, archive: tarfile.TarFile, listed: dict[str, Any], copy: Path, *, runs: bool
) -> None:
    # Listed before the copy is made: each decision's file is written after its commit.
    paths = list(_files(settings.home, runs=runs))
    if listed["database"] == "sqlite":
        source = Path(make_url(settings.database_url).database or "")
        with closing(sqlite3.connect(source)) as living, closing(sqlite3.connect(copy)) as kept:
            living.backup(kept)  # as it is at one moment, while others write to it
            kept.execute("PRAGMA journal_mode=DELETE")
        paths.insert(0, copy)
    for path in paths:
        name = DATABASE if path == copy else str(path.relative_to(settings.home))
        try:
            stream = read_plain(path)
        except FileNotFoundError:
            continue
        with stream:
            info, stat = tarfile.TarInfo(name), os.fstat(stream.fileno())
            info.size, info.mode = stat.st_size, stat.st_mode & 0o777
            archive.addfile(info, stream)
        listed["files"].append(name)
    content = json.dumps(listed).encode()
    info = tarfile.TarInfo(LIST)
    info.size, info.mode = len(content), 0o600
    archive.addfile(info, io.BytesIO(content))


def _files(home: Path, *, runs: bool) -> Iterator[Path]:
    yield from (home / name for name in KEYS if (home / name).is_file())
    for folder in (DECISIONS, RUNS) if runs else (DECISIONS,):
        for path in sorted((home / folder).rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path


def _summary(listed: dict[str, Any]) -> dict[str, Any]:
    names = listed["files"]
    return {
        "made_at": listed["made_at"],
        "database": listed["database"],
        "files": len(names),
        "decisions": sum(name.startswith("decisions/dec_") for name in names),
        "runs": len({Path(name).parts[1] for name in names if name.startswith("runs/run_")}),
    }


def restore_backup(settings: Settings, source: Path) -> dict[str, Any]:
    """Put a backup into a home that has no database yet, and return what was in it."""
    home, waiting = settings.home, settings.home / ".restore"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_room(home, (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-journal", *KEYS, DECISIONS))
        try:
            waiting.mkdir(mode=0o700)
        except FileExistsError as error:
            text = f"{waiting} exists: another restore is at work; remove the folder if none is"
            raise Conflict(text) from error
        try:
            listed = _unpack(source, waiting)
            _check_fits(settings, listed)
            names = {Path(name).parts[0] for name in listed["files"]}
            _check_room(home, names)
            for name in sorted(names, key=lambda name: name == DATABASE):
                if (home / name).is_dir():
                    (home / name).rmdir()
                (waiting / name).rename(home / name)
            sync_folder(home)
        finally:
            shutil.rmtree(waiting, ignore_errors=True)
    except OSError as error:
        raise Rejected(f"the restore failed: {error}") from error
    return {**_summary(listed), "home": str(home)}


def _check_room(home: Path, names: Iterable[str]) -> None:
    places = [home / name for name in sorted(names)]
    taken = [
        path.name
        for path in places
        if path.exists() and not (path.is_dir() and not any(path.iterdir()))
    ]
    if taken:
        raise Conflict(f"{home} has {', '.join(taken)}; restore into a GONOGO_HOME without them")


def _unpack(source: Path, folder: Path) -> dict[str, Any]:
    """Write every member into `folder`, and return what the last one says of the backup."""
    try:
        with read_plain(source) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            archive.extractall(folder, filter="data")
        listed: Any = json.loads((folder / LIST).read_bytes())
        (folder / LIST).unlink()
    except FileNotFoundError as error:
        if not source.exists():
            raise NotFound(f"no such backup: {source}") from error
        raise Corrupt(f"{source}: not a whole backup: {LIST} is missing") from error
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise Corrupt(f"{source}: not a whole backup: {error}") from error
    if not isinstance(listed, dict) or listed.get("v") != V:
        raise Corrupt(f"{source}: not a backup of this version")
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    if found != set(listed["files"]):
        wrong = ", ".join(sorted(found ^ set(listed["files"]))[:5])
        raise Corrupt(f"{source}: not as it was made: {wrong}")
    os.sync()
    return listed


def _check_fits(settings: Settings, listed: dict[str, Any]) -> None:
    held = listed["database"] == "sqlite"
    if held and Path(make_url(settings.database_url).database or "") != settings.home / DATABASE:
        raise Rejected("the backup holds a SQLite database; unset GONOGO_DATABASE_URL")
    if not held and is_sqlite(settings.database_url):
        raise Rejected("the backup's database was PostgreSQL; set GONOGO_DATABASE_URL")
    if listed["revision"] > HEAD:
        raise Rejected(f"the backup was made by gonogo {listed['version']}, newer than this one")
