"""Restoring a home from a backup: `gonogo restore FILE`.

The home must have no database, decisions or keys; its `runs/` may stay when the backup has none.
Size and SHA-256 of every member are checked before anything enters the home, and the database
enters last. A service that starts on the restored home hands out no fencing token that an attempt
after the backup already has (`service.experiments.fencing_tokens`).
"""

import json
import os
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from sqlalchemy import make_url

from gonogo.contract.errors import Conflict, Corrupt, NotFound, Rejected
from gonogo.files import read_plain, sync_folder
from service.backup import DATABASE, FOLDERS, KEYS, LIST, RUNS, Hashed, V, summary
from service.db.engine import is_sqlite
from service.db.migrate import HEAD
from service.settings import Settings

_LISTED = {"made_at", "version", "revision", "database", "files"}


def restore_backup(settings: Settings, source: Path) -> dict[str, Any]:
    """Put a backup into the home, which has no database yet, and return what was in it.

    Raises:
        NotFound: there is no such file.
        Corrupt: the backup is not whole.
        Conflict: the home has a file that the backup would bring, or another restore is at work.
        Rejected: not a backup, made by a newer gonogo, with a database of another kind, or files
            cannot be read or written.
    """
    home = settings.home
    waiting = home / ".restore"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        logs = (f"{DATABASE}-wal", f"{DATABASE}-journal")
        _check_room(home, (DATABASE, *logs, *KEYS, *(name for name in FOLDERS if name != RUNS)))
        try:
            waiting.mkdir(mode=0o700)
        except FileExistsError as error:
            text = f"{waiting} exists: another restore is at work; remove the folder if none is"
            raise Conflict(text) from error
        try:
            listed = _unpack(source, waiting)
            _check_fits(settings, listed)
            names = sorted(
                {Path(name).parts[0] for name in listed["files"]}, key=lambda name: name == DATABASE
            )
            _check_room(home, names)
            for folder in [path for path in waiting.rglob("*") if path.is_dir()]:
                sync_folder(folder)
            _move_in(home, waiting, names)
        finally:
            shutil.rmtree(waiting, ignore_errors=True)
    except OSError as error:
        raise Rejected(f"nothing was restored: {error}") from error
    return {**summary(listed), "home": str(home)}


def _check_room(home: Path, names: Iterable[str]) -> None:
    """Refuse a home that has what a backup would bring.

    Raises:
        Conflict: it has.
    """
    taken = [
        name
        for name in names
        if (home / name).exists()
        and not ((home / name).is_dir() and not any((home / name).iterdir()))
    ]
    if taken:
        raise Conflict(f"{home} has {', '.join(taken)}; restore into a GONOGO_HOME without them")


def _move_in(home: Path, waiting: Path, names: list[str]) -> None:
    """Move what was unpacked into the home: all of it or nothing."""
    moved: list[Path] = []
    try:
        for name in names:
            place = home / name
            if place.is_dir():
                place.rmdir()
            (waiting / name).rename(place)
            moved.append(place)
            sync_folder(home)
    except BaseException:
        for place in moved:
            if place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink()
        raise


def _unpack(source: Path, folder: Path) -> dict[str, Any]:
    """Write every member into `folder`, and return the list that they all agree with."""
    try:
        file = read_plain(source)
    except FileNotFoundError as error:
        raise NotFound(f"no such backup: {source}") from error
    found: dict[str, dict[str, Any]] = {}
    listed: Any = None
    try:
        with file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isreg() else None
                if stream is None or listed is not None or not _is_ours(member.name):
                    raise Corrupt(f"{source}: {member.name!r} has no place in a backup")
                if member.name == LIST:
                    listed = json.load(stream)
                else:
                    mode = member.mode & 0o700 | 0o600
                    found[member.name] = _write(folder / member.name, stream, mode)
    except (tarfile.TarError, ValueError, EOFError) as error:
        kind = Corrupt if found else Rejected
        raise kind(f"{source}: not a whole backup: {error}") from error
    if not isinstance(listed, dict) or listed.get("v") != V or not listed.keys() >= _LISTED:
        raise Corrupt(f"{source}: not a whole backup: {LIST} is missing or of another version")
    if listed["files"] != found:
        names = sorted({*found, *listed["files"]})
        wrong = [name for name in names if listed["files"].get(name) != found.get(name)]
        raise Corrupt(f"{source}: not as it was made: {', '.join(wrong[:5])}")
    return listed


def _is_ours(name: str) -> bool:
    """Say whether a member's name belongs into a backup and stays inside its folder."""
    parts = name.split("/")
    if len(parts) == 1:
        return name in (LIST, DATABASE, *KEYS)
    return parts[0] in FOLDERS and not {"", ".", ".."} & set(parts)


def _write(path: Path, stream: IO[bytes], mode: int) -> dict[str, Any]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    hashed = Hashed(stream)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as target:
        while piece := hashed.read(2**20):
            target.write(piece)
        target.flush()
        os.fsync(target.fileno())
        size = target.tell()
    return {"bytes": size, "sha256": hashed.digest.hexdigest()}


def _check_fits(settings: Settings, listed: dict[str, Any]) -> None:
    """Refuse a backup that this version, or these settings, cannot use."""
    held = listed["database"] == "sqlite"
    if held and Path(make_url(settings.database_url).database or "") != settings.home / DATABASE:
        raise Rejected("the backup holds a SQLite database; unset GONOGO_DATABASE_URL")
    if not held and is_sqlite(settings.database_url):
        raise Rejected("the backup's database was PostgreSQL; set GONOGO_DATABASE_URL")
    if listed["revision"] > HEAD:
        raise Rejected(f"the backup was made by gonogo {listed['version']}, newer than this one")
