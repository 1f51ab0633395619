"""Verify checkpoints that claim to be whole: the watcher reads each one itself, once.

A folder claims to be whole when its `manifest.json` is the same at two looks. A thread compares the
files with the sizes and SHA-256 of the manifest, at a bounded speed, the newest checkpoint first. A
checkpoint that the trainer deletes or replaces meanwhile is reported as gone: no failure, and no
proof. The watcher stays until the last one is verified (`owes`).
"""

import hashlib
import logging
import queue
import stat
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.contract.errors import GonogoError
from gonogo.contract.observation import CheckpointSeen
from gonogo.contract.records import Manifest
from gonogo.files import read_plain
from gonogo.rundir import RunDir, is_text, load_sealed
from gonogo.supervise.transient_errors import TransientErrors, start_thread

MANIFEST = "manifest.json"
BYTES_PER_S = 500e6
LONG_S = 10.0
_CHUNK_BYTES = 4 * 2**20
AGAIN_FOR_S = 30.0
"""How long a checkpoint is tried again that cannot be read just now."""

_log = logging.getLogger(__name__)

_Seal = tuple[int, int]
"""Size and time of a manifest."""


class _Gone(Exception):
    """The checkpoint was deleted or replaced while it was read."""


class Checkpoints:
    """The source `checkpoints`."""

    kind = "checkpoints"
    every_s = 1.0

    def __init__(self, run_dir: RunDir, *, bytes_per_s: float = BYTES_PER_S) -> None:
        self._dir, self._bytes_per_s = run_dir, bytes_per_s
        self._known: dict[str, _Seal | None] = {}
        """Name → seal of what was verified, or is about to be."""
        self._reading: set[str] = set()
        self._sighted: dict[str, _Seal] = {}
        self._jobs: queue.LifoQueue[Path] = queue.LifoQueue()
        self._seen: queue.SimpleQueue[CheckpointSeen] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._began = False

    def look(self, now: float) -> list[dict[str, Any]] | None:
        """Return what was verified since the last look; None when there is nothing new."""
        before, self._sighted = self._sighted, self._claims()
        for name in [name for name, seal in self._sighted.items() if before.get(name) == seal]:
            self._known[name] = self._sighted[name]
            self._reading.add(name)
            self._jobs.put(self._dir.checkpoints / name)
        if self._reading and self._thread is None:
            self._thread = start_thread(self._work, "checkpoints")
        found = []
        while not self._seen.empty():
            seen = self._seen.get_nowait()
            if not seen.reads_bytes:
                self._reading.discard(Path(seen.path).name)
            found.append(seen.wire())
        first, self._began = not self._began, True
        return found if found or first else None

    def resume(self, payload: Any) -> None:
        """Leave out the checkpoints of a recorded payload: they were verified then."""
        for row in payload if isinstance(payload, list) else []:
            path = row.get("path") if isinstance(row, dict) else None
            if isinstance(path, str) and not row.get("reads_bytes"):
                name = Path(path).name
                self._known[name] = _seal(self._dir.checkpoints / name)

    def owes(self) -> bool:
        """Whether a checkpoint claims to be whole that was not reported yet."""
        try:
            return bool(self._reading or self._claims())
        except OSError:
            return False

    def _claims(self) -> dict[str, _Seal]:
        """Return the folders with a manifest that is not known, oldest first."""
        try:
            names = sorted(path.name for path in self._dir.checkpoints.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        found = {}
        for name in names:
            if name.startswith(".") or name in self._reading or not is_text(name):
                continue
            seal = _seal(self._dir.checkpoints / name)
            if seal is not None and seal != self._known.get(name):
                found[name] = seal
        return found

    def _work(self) -> None:
        """Verify one after the other, for as long as the process lives."""
        while True:
            folder = self._jobs.get()
            try:
                seen = verify(self._dir, folder, self._bytes_per_s, self._seen.put)
            except Exception as error:  # noqa: BLE001 - edge of a thread: the next one still counts
                _log.exception("%s", folder, extra={"action": "checkpoint_unverified"})
                text = f"{type(error).__name__}: {error}"
                seen = _result(self._dir, folder, gone=True, text=text)
            self._seen.put(seen)


def verify(
    run_dir: RunDir,
    folder: Path,
    bytes_per_s: float = BYTES_PER_S,
    report: Callable[[CheckpointSeen], object] = lambda seen: None,
) -> CheckpointSeen:
    """Return whether a checkpoint is whole, or that it is gone.

    `report` is called when the files of a large checkpoint begin to be read.
    """
    attempt = partial(_verify_once, run_dir, folder, bytes_per_s, report)
    try:
        return TransientErrors(_log).retried(folder.name, attempt, AGAIN_FOR_S)
    except _Gone:
        return _result(run_dir, folder, gone=True)
    except (OSError, GonogoError) as error:
        if _seal(folder) is None:
            return _result(run_dir, folder, gone=True)
        return _result(run_dir, folder, text=str(error))


def _verify_once(
    run_dir: RunDir, folder: Path, bytes_per_s: float, report: Callable[[CheckpointSeen], object]
) -> CheckpointSeen:
    """Compare a checkpoint with its manifest."""
    seal, found = _seal(folder), load_sealed(folder / MANIFEST, Manifest)
    if found is None:
        raise _Gone
    manifest, sha256 = found
    size = sum(file.bytes for file in manifest.files.values())
    text = "" if manifest.files else f"{MANIFEST} names no file"
    places = {name: RunDir(folder).inside(name) for name in manifest.files}
    try:
        for name, place in places.items():
            there, owed = place.stat().st_size, manifest.files[name].bytes
            text = text or ("" if there == owed else f"{name} has {there} of {owed} bytes")
        if not text and size > LONG_S * bytes_per_s:
            report(_result(run_dir, folder, reads_bytes=size))
        for name, place in {} if text else places.items():
            if _sha256(place, bytes_per_s) != manifest.files[name].sha256:
                text = f"{name} has another SHA-256 than the manifest says"
                break
    except FileNotFoundError as error:
        text = f"{Path(str(error.filename)).name} is missing"
    if text and _seal(folder) != seal:
        raise _Gone
    return _result(
        run_dir,
        folder,
        step=manifest.step if 0 <= manifest.step < 2**53 else None,
        verified=not text,
        manifest_sha256=sha256,
        bytes=0 if text else size,
        text=text,
    )


def _result(run_dir: RunDir, folder: Path, **fields: Any) -> CheckpointSeen:
    path = str(folder.relative_to(run_dir.path))
    return CheckpointSeen.model_validate({"path": path, "verified": False, **fields})


def _seal(folder: Path) -> _Seal | None:
    """Return the seal of a folder's manifest; None if none can be seen."""
    try:
        seen = (folder / MANIFEST).stat()
    except (OSError, ValueError):
        return None
    return (seen.st_size, seen.st_mtime_ns) if stat.S_ISREG(seen.st_mode) else None


def _sha256(path: Path, bytes_per_s: float) -> str:
    """Return the digest of a file, read at no more than this speed."""
    digest, pause = hashlib.sha256(), threading.Event()
    with read_plain(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            pause.wait(len(chunk) / bytes_per_s)
    return digest.hexdigest()
