"""Does a checkpoint hold that claims to be whole? The watcher reads it itself, once.

A folder in `checkpoints/` claims to be whole when its `manifest.json` is there and stays as it is
from one look to the next (drafts, whose names begin with a dot, claim nothing, nor does what has no
text for a name). One that is saved anew under the same name, by a training that begins again, has
another manifest and is looked at again. Its files are held against sizes and SHA-256 of the
manifest, in a thread of its own and at a bounded speed, so that gigabytes delay no tick and leave
the disk to the trainer. What the trainer deletes meanwhile (it keeps the newest few) or saves anew
is told as gone: no failure, and no proof. Where the disk or this process cannot read one just now
(a stale handle, no file descriptor left) it is looked at some times more before it is told. One
that takes long to read (`LONG_S`) is told when that begins, too: terabytes take hours, in which the
trainer has done its part. What a watcher after another finds there was mostly read before, and is
read again when nothing new waits, the newest first.

The first look tells an empty list: the watcher looks at checkpoints, even where there are none.
Until the last claim is verified something is owed: a run's last checkpoint is often written just
before it ends, and the watcher stays for it.
"""

import errno
import hashlib
import logging
import math
import queue
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gonogo.contract.errors import GonogoError
from gonogo.contract.observation import CheckpointSeen
from gonogo.contract.records import Manifest
from gonogo.files import read_plain
from gonogo.rundir import RunDir, is_text, load_sealed
from gonogo.supervise.threads import start_thread

MANIFEST = "manifest.json"
BYTES_PER_S = 500e6
LONG_S = 10.0
_CHUNK_BYTES = 4 * 2**20
_MANIFEST_BYTES = 16 * 2**20
_KNOWN_AT_ONCE = 64
"""Folders that were read and are looked at again, at one look: a trainer may keep thousands."""

AGAIN_S = (1.0, 5.0, 25.0)
"""Pauses before the looks at a checkpoint that could not be read."""
_PASSES = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
    }
)
"""Errors that say nothing of a file, and may be over soon."""

_log = logging.getLogger(__name__)

_Seal = tuple[int, int]
"""Size and time of a manifest."""


class _Gone(Exception):
    """The checkpoint was deleted while it was read."""


class Checkpoints:
    """The source `checkpoints`.

    Args:
        run_dir: the run's directory.
        bytes_per_s: how fast files are read at most.
        again_s: pauses before more looks at one that cannot be read just now.
    """

    kind = "checkpoints"
    every_s = 1.0

    def __init__(
        self,
        run_dir: RunDir,
        *,
        bytes_per_s: float = BYTES_PER_S,
        again_s: Sequence[float] = AGAIN_S,
    ) -> None:
        self._dir, self._bytes_per_s, self._again_s = run_dir, bytes_per_s, again_s
        self._known: dict[str, _Seal | None] = {}
        self._sighted: dict[str, _Seal] = {}
        self._turn = self._claimed = 0
        self._jobs: queue.PriorityQueue[tuple[float, float, Path]] = queue.PriorityQueue()
        self._seen: queue.SimpleQueue[CheckpointSeen] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._began = self._resumed = False
        self._found: frozenset[str] = frozenset()
        """What was there when this watcher came after another."""
        self._reading: set[str] = set()

    def look(self, now: float) -> list[dict[str, Any]] | None:
        """Return what was verified since the last look; None when there is nothing new.

        Raises:
            OSError: the folder is there and cannot be listed, or nobody can read just now.
        """
        for folder in self._claims():
            seal = self._known[folder.name] = self._sighted.pop(folder.name)
            self._reading.add(folder.name)
            self._jobs.put((*self._turn_of(folder.name, seal), folder))
        if not self._jobs.empty() and self._thread is None:
            self._thread = start_thread(self._work, "checkpoints")
        found = []
        while not self._seen.empty():
            seen = self._seen.get_nowait()
            if not seen.reads_bytes:
                self._reading.discard(Path(seen.path).name)
            found.append(seen.wire())
        if self._began and not found:
            return None
        if self._resumed and not self._began:
            self._found = frozenset(self._sighted)
        self._began = True
        return found

    def _turn_of(self, name: str, seal: _Seal) -> tuple[float, float]:
        """Return when a checkpoint is to be read: what comes is, in its order, before what was."""
        if name in self._found:
            return math.inf, -seal[1]
        self._claimed += 1
        return self._claimed, 0.0

    def resume(self, payload: Any) -> None:
        """Leave out what stands in a recorded payload: it was verified then."""
        self._resumed = True
        for row in payload if isinstance(payload, list) else []:
            if not isinstance(row, dict) or row.get("reads_bytes"):
                continue
            if isinstance(row.get("path"), str):
                name = Path(row["path"]).name
                self._known[name] = _seal(self._dir.checkpoints / name)

    def owes(self) -> bool:
        """Say whether a checkpoint claims to be whole that no look has told of."""
        if self._reading:
            return True
        try:
            return bool(self._new())
        except OSError:
            return False

    def _new(self) -> dict[str, _Seal]:
        """Return the folders with a manifest that was not read, oldest first, and its seal."""
        try:
            names = sorted(path.name for path in self._dir.checkpoints.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        read = [name for name in names if name in self._known and name not in self._reading]
        self._forget_saved_anew(read)
        found = {}
        for name in names:
            if name in self._known or name.startswith(".") or not is_text(name):
                continue
            seal = _seal(self._dir.checkpoints / name)
            if seal is not None:
                found[name] = seal
        return found

    def _forget_saved_anew(self, names: list[str]) -> None:
        """Forget those of the next few that were read whose manifest is another by now."""
        first = self._turn if self._turn < len(names) else 0
        self._turn = first + _KNOWN_AT_ONCE
        for name in names[first : self._turn]:
            seal = _seal(self._dir.checkpoints / name)
            if seal is not None and seal != self._known[name]:
                del self._known[name]

    def _claims(self) -> list[Path]:
        """Return the folders that claim to be whole and that were not looked at, oldest first."""
        before, self._sighted = self._sighted, self._new()
        return [
            self._dir.checkpoints / name
            for name, seal in self._sighted.items()
            if before.get(name) == seal
        ]

    def _work(self) -> None:
        """Verify one after the other, for as long as the process lives."""
        while True:
            *_, folder = self._jobs.get()
            try:
                seen = verify(
                    self._dir,
                    folder,
                    bytes_per_s=self._bytes_per_s,
                    again_s=self._again_s,
                    tell=self._seen.put,
                )
            except Exception as error:  # noqa: BLE001 - edge of a thread: the next one still counts
                _log.exception("%s", folder, extra={"action": "checkpoint_unverified"})
                path, text = _told(self._dir, folder), f"{type(error).__name__}: {error}"
                seen = CheckpointSeen(path=path, verified=False, gone=True, text=text)
            self._seen.put(seen)


def verify(
    run_dir: RunDir,
    folder: Path,
    *,
    bytes_per_s: float = BYTES_PER_S,
    again_s: Sequence[float] = (),
    tell: Callable[[CheckpointSeen], object] = lambda seen: None,
) -> CheckpointSeen:
    """Return whether a checkpoint holds, or that it is gone meanwhile.

    Args:
        run_dir: the run's directory.
        folder: of the checkpoint.
        bytes_per_s: how fast files are read at most.
        again_s: pauses before more looks at it, where it cannot be read just now.
        tell: is told of one that takes long, when its files begin to be read.
    """
    pauses = iter(again_s)
    while True:
        try:
            return _verified(run_dir, folder, bytes_per_s, tell)
        except (OSError, GonogoError) as error:
            passes = isinstance(error, OSError) and error.errno in _PASSES
            pause_s = next(pauses, None) if passes else None
            if pause_s is None:
                path = _told(run_dir, folder)
                return CheckpointSeen(path=path, verified=False, text=str(error))
        threading.Event().wait(pause_s)


def _verified(
    run_dir: RunDir, folder: Path, bytes_per_s: float, tell: Callable[[CheckpointSeen], object]
) -> CheckpointSeen:
    """Return what one look finds.

    Raises:
        OSError, GonogoError: it cannot be read, or is no checkpoint at all.
    """
    path = _told(run_dir, folder)
    gone = CheckpointSeen(path=path, verified=False, gone=True)
    try:
        seal = _seal(folder)
        manifest, sha256 = _manifest(folder)
        places = {name: RunDir(folder).inside(name) for name in manifest.files}
        text = _other_size(folder, manifest, places)
        if not text:
            size = sum(file.bytes for file in manifest.files.values())
            if size > LONG_S * bytes_per_s:
                tell(CheckpointSeen(path=path, verified=False, reads_bytes=size))
            text = _other_content(folder, manifest, places, bytes_per_s)
        if text and _seal(folder) != seal:
            return gone
    except _Gone:
        return gone
    except (OSError, GonogoError):
        if _is_missing(folder / MANIFEST):
            return gone
        raise
    return CheckpointSeen(
        step=manifest.step if 0 <= manifest.step < 2**53 else None,
        path=path,
        verified=not text,
        manifest_sha256=sha256,
        bytes=0 if text else sum(file.bytes for file in manifest.files.values()),
        text=text,
    )


def _seal(folder: Path) -> _Seal | None:
    """Return the seal of a folder's manifest; None where none can be seen."""
    try:
        seen = (folder / MANIFEST).stat()
    except (OSError, ValueError):
        return None
    return (seen.st_size, seen.st_mtime_ns) if stat.S_ISREG(seen.st_mode) else None


def _is_missing(path: Path) -> bool:
    """Whether there is no such file; one that cannot be seen just now may be there."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _told(run_dir: RunDir, folder: Path) -> str:
    return str(folder.relative_to(run_dir.path))


def _manifest(folder: Path) -> tuple[Manifest, str]:
    """Return the manifest and its SHA-256.

    Raises:
        _Gone: there is none any more.
        OSError, Corrupt: it cannot be read.
    """
    file = folder / MANIFEST
    try:
        if file.stat().st_size > _MANIFEST_BYTES:
            raise OSError(f"{MANIFEST} has {file.stat().st_size} bytes")
    except FileNotFoundError as error:
        raise _Gone from error
    found = load_sealed(file, Manifest)
    if found is None:
        raise _Gone
    return found


def _other_size(folder: Path, manifest: Manifest, places: Mapping[str, Path]) -> str:
    """Return how sizes differ from the manifest; nothing when they do not.

    Raises:
        _Gone: the checkpoint was deleted meanwhile.
        OSError: a file cannot be seen.
    """
    if not manifest.files:
        return f"{MANIFEST} names no file"
    for name, place in places.items():
        try:
            size = place.stat().st_size
        except FileNotFoundError as error:
            return _missing(folder, error)
        if size != manifest.files[name].bytes:
            return f"{name} has {size} of {manifest.files[name].bytes} bytes"
    return ""


def _other_content(
    folder: Path, manifest: Manifest, places: Mapping[str, Path], bytes_per_s: float
) -> str:
    """Return how digests differ from the manifest; nothing when they do not.

    Raises:
        _Gone: the checkpoint was deleted meanwhile.
        OSError: a file cannot be read.
    """
    for name, place in places.items():
        try:
            sha256 = _sha256(place, bytes_per_s)
        except FileNotFoundError as error:
            return _missing(folder, error)
        if sha256 != manifest.files[name].sha256:
            return f"{name} has another SHA-256 than the manifest says"
    return ""


def _missing(folder: Path, error: FileNotFoundError) -> str:
    """Return what is wrong where a file is not there.

    Raises:
        _Gone: nor is the manifest.
    """
    if _is_missing(folder / MANIFEST):
        raise _Gone from error
    return f"{Path(str(error.filename)).name} is missing"


def _sha256(path: Path, bytes_per_s: float) -> str:
    """Return the digest of a file, read no faster than that."""
    digest, pause = hashlib.sha256(), threading.Event()
    with read_plain(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            pause.wait(len(chunk) / bytes_per_s)
    return digest.hexdigest()
