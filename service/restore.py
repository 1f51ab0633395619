"""How is a home brought back? From the file of a backup: `gonogo restore FILE`.

Guarantees: every member's size and SHA-256 is looked at before anything is put into the home, and
only one that has no database yet, nor the log of one that was (SQLite would play it into the
restored one), is restored into; its `runs/` stays where the backup brings none, for runs go on
there. What is a mount of its own, or a link to a folder, stays one (and keeps what a restore that
was killed had put there, which a person takes out). A restore that fails leaves the home as it
found it. The database comes last, so where it lies in the backup a restore that was killed is done
again as if it had never begun. A service that starts on a restored home hands out no token that an
attempt of after the backup already has (`service.experiments.epochs`).
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from sqlalchemy import make_url

from gonogo.contract.errors import Conflict, Corrupt, NotFound, Rejected
from gonogo.contract.made_by import READS_BEFORE
from gonogo.files import read_plain, sync_folder
from gonogo.rundir import save_json
from service.backup import DATABASE, FOLDERS, KEYS, LIST, RUNS, V, summary
from service.db.engine import is_sqlite
from service.db.migrate import FIRST, HEAD
from service.settings import Settings

_LISTED = {"made_at", "version", "revision", "database", "files"}
_PIECE = 2**20
_OF_THE_DISK = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE),
    *(errno.EACCES, errno.EPERM),
)
"""What a disk refuses: it says nothing of the backup."""
_LOGS = tuple(f"{DATABASE}-{name}" for name in ("wal", "journal"))
"""What a SQLite database leaves beside it that was not closed."""
_MOVED = "moved.json"
"""Beside what was unpacked: the names that go into the home, once they begin to."""
_OF_EXT4 = "lost+found"
"""What an empty file system of its own may hold."""


def restore_backup(settings: Settings, source: Path) -> dict[str, Any]:
    """Put a backup into the home, which has no database yet, and return what was in it.

    Raises:
        NotFound: there is no such file.
        Corrupt: it is not whole.
        Conflict: the home has something that a backup would bring.
        Rejected: it is no backup, was made by a newer gonogo, or with a database of another kind;
            or it cannot be read, or the home not be written to.
    """
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(settings.home):
            return _restore(settings, source)
    except OSError as error:
        place = error.filename or settings.home
        raise Rejected(f"nothing was restored: {place}: {error.strerror}") from error


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the home against another restore into it; the kernel lets go of a killed one's."""
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(f"another restore into {home} is at work; wait for its end") from error
        yield
    finally:
        os.close(folder)


def _restore(settings: Settings, source: Path) -> dict[str, Any]:
    home = settings.home
    waiting = home / ".restore"
    _take_back(home, waiting)
    _check_room(home, (DATABASE, *_LOGS, *KEYS, *(name for name in FOLDERS if name != RUNS)))
    shutil.rmtree(waiting, ignore_errors=True)
    waiting.mkdir(mode=0o700)
    try:
        listed = _unpack(source, waiting)
        _check_fits(settings, listed)
        for folder in (path for path in waiting.rglob("*") if path.is_dir()):
            sync_folder(folder)
        # The database last: a home that has one is whole.
        names = sorted({Path(name).parts[0] for name in listed["files"]}, key=_is_database)
        _check_room(home, names)
        save_json(waiting / _MOVED, names)
    except BaseException:
        shutil.rmtree(waiting, ignore_errors=True)
        raise
    _move_in(home, waiting, names)
    shutil.rmtree(waiting, ignore_errors=True)
    return {**summary(listed), "home": str(home)}


def _move_in(home: Path, waiting: Path, names: list[str]) -> None:
    """Put what was unpacked into the home: all of it or nothing.

    Where nothing can be taken out again either, it waits for a next restore.
    """
    stay: list[Path] = []
    try:
        for name in names:
            if _gives_way(home / name):
                (waiting / name).rename(home / name)
            else:
                stay.append(home / name)
                _copy_in(waiting / name, home / name)
            sync_folder(home)
    except BaseException:
        _take_out(home, waiting, names)
        shutil.rmtree(waiting, ignore_errors=True)
        for folder in stay:
            _empty(folder)
        raise


def _gives_way(place: Path) -> bool:
    """Remove an empty folder; a mount, or a link to a folder, stays, and is written into."""
    if not place.is_dir():
        return True
    try:
        place.rmdir()
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTDIR):
            raise
        return False
    return True


def _copy_in(source: Path, folder: Path) -> None:
    for path in source.iterdir():
        copied = folder / path.name
        if path.is_dir():
            shutil.copytree(path, copied)
        else:
            shutil.copy2(path, copied)
        for written in (copied, *copied.rglob("*")):
            _sync(written)
    sync_folder(folder)


def _sync(path: Path) -> None:
    if path.is_dir():
        return sync_folder(path)
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _empty(folder: Path) -> None:
    """Remove what was copied into a folder that was empty."""
    for path in folder.iterdir():
        if path.is_dir() and path.name != _OF_EXT4:
            shutil.rmtree(path)
        elif path.name != _OF_EXT4:
            path.unlink()


def _take_back(home: Path, waiting: Path) -> None:
    """Take out of the home what a restore that was killed had put there.

    Only where its database was still to come: no service has worked on what lies there then.
    """
    try:
        names = json.loads((waiting / _MOVED).read_bytes())
    except (FileNotFoundError, ValueError):
        return
    if DATABASE in names and not (home / DATABASE).exists():
        _take_out(home, waiting, names)


def _take_out(home: Path, waiting: Path, names: list[str]) -> None:
    """Remove what does not wait any more: it was put into the home."""
    for name in names:
        if (waiting / name).exists():
            continue
        if (home / name).is_dir():
            shutil.rmtree(home / name)
        else:
            (home / name).unlink(missing_ok=True)


def _is_database(name: str) -> bool:
    return name == DATABASE


def _check_room(home: Path, names: Iterable[str]) -> None:
    """Refuse a home that has what a backup would bring.

    Raises:
        Conflict: it has.
    """
    taken = [name for name in names if _is_taken(home / name)]
    if taken:
        raise Conflict(f"{home} has {', '.join(taken)}; restore into a GONOGO_HOME without them")


def _is_taken(path: Path) -> bool:
    if not path.is_dir():
        return path.exists()
    return any(found.name != _OF_EXT4 for found in path.iterdir())


def _unpack(source: Path, folder: Path) -> dict[str, Any]:
    """Write every member into `folder`, and return the list that they all agree with."""
    found: dict[str, dict[str, Any]] = {}
    listed: dict[str, Any] | None = None
    try:
        with _open_file(source) as file, _open_archive(source, file) as archive:
            for member in archive:
                plain = member.isreg() and not member.issparse()  # holes would fill the disk
                stream = archive.extractfile(member) if plain else None
                if stream is None or listed is not None or not _is_ours(member.name):
                    text = f"{source}: {member.name!r} has no place in a backup"
                    raise Corrupt(text) if found or listed else Rejected(text)
                if member.name == LIST:
                    listed = json.load(stream)
                else:
                    found[member.name] = _write(folder / member.name, stream, member.mode & 0o700)
    except OSError as error:
        if error.errno in _OF_THE_DISK:
            raise
        raise Corrupt(f"{source}: not a whole backup: {error}") from error
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise Corrupt(f"{source}: not a whole backup: {error}") from error
    if not isinstance(listed, dict) or listed.get("v") != V or not _is_list(listed):
        raise Corrupt(f"{source}: not a whole backup: {LIST} is missing or of another version")
    if listed["files"] != found:
        wrong = sorted(
            name
            for name in listed["files"].keys() | found.keys()
            if listed["files"].get(name) != found.get(name)
        )
        raise Corrupt(f"{source}: not as it was made: {', '.join(wrong[:5])}")
    return listed


def _is_list(listed: dict[str, Any]) -> bool:
    """Say whether a list has what every one has, in the form that it has there."""
    if not listed.keys() >= _LISTED or not isinstance(listed["files"], dict):
        return False
    return all(isinstance(listed[name], str) for name in _LISTED - {"files"})


def _open_file(source: Path) -> IO[bytes]:
    """Return a file that may be a backup, open; a pipe is not waited for.

    Raises:
        NotFound: there is no such file.
        Rejected: it cannot be read.
    """
    try:
        return read_plain(source)
    except FileNotFoundError as error:
        raise NotFound(f"no such backup: {source}") from error
    except OSError as error:
        raise Rejected(f"{source}: {error.strerror}") from error


def _open_archive(source: Path, file: IO[bytes]) -> tarfile.TarFile:
    """Return an open file as an archive.

    Raises:
        Rejected: it cannot be read, or is none at all.
    """
    try:
        return tarfile.open(fileobj=file, mode="r:")
    except OSError as error:
        raise Rejected(f"{source}: {error.strerror}") from error
    except (tarfile.TarError, EOFError) as error:
        raise Rejected(f"{source} is no backup: {error}") from error


def _is_ours(name: str) -> bool:
    """Say whether a member's name is one of a backup's, which no `..` leads out of."""
    parts = name.split("/")
    if len(parts) == 1:
        return name in (LIST, DATABASE, *KEYS)
    return parts[0] in FOLDERS and not {"", ".", ".."} & set(parts)


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
    if listed["revision"] < FIRST:
        raise Rejected(f"the backup is of an earlier form; {READS_BEFORE}")
    if listed["revision"] > HEAD:
        raise Rejected(f"the backup was made by gonogo {listed['version']}, newer than this one")
