"""`.fold.json`, a cache of the fold from which a new watcher continues within a second.

It holds the whole state, the offsets in each file, and the digest of the last tick. A thread writes
it. If it is missing, torn, or of another version or run, the whole run is folded again.
"""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.tick import FileSeal
from gonogo.files import create_plain, read_plain, sync_folder
from gonogo.rundir import TICK_BYTES, RunDir
from gonogo.supervise.transient_errors import start_thread
from gonogo.watch import WatchState, dump_state, load_state, tick_digest

FOLD_NAME = ".fold.json"
EVERY_S = 300.0
EVERY_LINES = 10_000
"""Folding so many takes half a second."""

_log = logging.getLogger(__name__)


class Bookmark(BaseModel):
    """How far a fold has come in the files of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    watch_bytes: int
    """Of watch.jsonl, up to the end of the last tick that is folded."""
    last: str
    """Digest of that tick."""
    number: int
    """Of the next tick."""
    mono: float
    """Clock of the last tick."""
    offsets: dict[int, int]
    """Rank → bytes of its heartbeat file that are folded."""
    findings: list[Finding]
    """All that were found, in their order."""
    files: dict[str, FileSeal]
    """Records that the ticks have sealed."""
    pace: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A fold to continue from."""

    state: WatchState
    place: Bookmark


class Snapshots:
    """Writes snapshots of one run, at most one at a time."""

    def __init__(self, run_dir: RunDir) -> None:
        self._path = run_dir.path / FOLD_NAME
        self._thread: threading.Thread | None = None
        self._lines = 0
        self._next_at: float | None = None

    def is_due(self, now: float, lines: int) -> bool:
        """Return whether it is time for another snapshot.

        Args:
            now: monotonic seconds.
            lines: how many heartbeats came since the last question.
        """
        self._lines += lines
        if self._next_at is None:
            self._next_at = now + EVERY_S
        if self._thread is not None and self._thread.is_alive():
            return False
        return now >= self._next_at or self._lines >= EVERY_LINES

    def start(self, state: WatchState, place: Bookmark, now: float) -> None:
        """Write the state; it may change as soon as this returns."""
        self._lines, self._next_at = 0, now + EVERY_S
        try:
            document = {"place": place.model_dump(mode="json"), "state": dump_state(state)}
            self._thread = start_thread(partial(_save, self._path, document), "snapshot")
        except (Corrupt, OSError) as error:  # a plug-in's state, or no thread
            _log.warning("no snapshot: %s", error, extra={"action": "snapshot_unwritten"})

    def join(self) -> None:
        """Wait until what was started is written."""
        if self._thread is not None:
            self._thread.join()


def load_snapshot(run_dir: RunDir, order: Order) -> Snapshot | None:
    """Return the snapshot of a run; None if there is none that fits its files."""
    try:
        with read_plain(run_dir.path / FOLD_NAME) as stream:
            raw = stream.read()
    except OSError:
        return None
    try:
        return _parse(raw, run_dir, order)
    except (Corrupt, OSError, ValidationError) as error:
        _log.warning("no snapshot: %s", error, extra={"action": "snapshot_refused"})
        return None


def _parse(raw: bytes, run_dir: RunDir, order: Order) -> Snapshot:
    """Return a snapshot.

    Raises:
        Corrupt: it is torn, of another version, or of other files.
    """
    sealed, _, body = raw.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != sealed:
        raise Corrupt("the snapshot is torn")
    document = json.loads(body)
    place = Bookmark.model_validate(document["place"])
    for rank, offset in place.offsets.items():
        if _size_of(run_dir.heartbeat(rank)) < offset:
            raise Corrupt(f"rank {rank}'s file is shorter than the snapshot says")
    if _last_tick(run_dir.watch, place.watch_bytes) != place.last:
        raise Corrupt("watch.jsonl is not the one that the snapshot was made of")
    return Snapshot(state=load_state(order, document["state"]), place=place)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _last_tick(path: Path, end: int) -> str | None:
    """Return the digest of the tick whose line ends at byte `end`."""
    with read_plain(path) as stream:
        stream.seek(max(0, end - TICK_BYTES))
        data = stream.read(min(end, TICK_BYTES))
    if not data.endswith(b"\n"):
        return None
    return tick_digest(data[data.rfind(b"\n", 0, -1) + 1 :])


def _save(path: Path, document: Mapping[str, Any]) -> None:
    """Write a snapshot; a refusal of the disk is logged."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with create_plain(temporary) as stream:
            stream.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        _log.warning("no snapshot: %s", error, extra={"action": "snapshot_unwritten"})
        with suppress(OSError):
            temporary.unlink()
