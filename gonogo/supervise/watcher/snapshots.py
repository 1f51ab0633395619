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
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.records import FileSeal
from gonogo.files import create_plain, read_plain, sync_folder
from gonogo.rundir import TICK_BYTES, RunDir
from gonogo.supervise.transient_errors import start_thread
from gonogo.supervise.watcher.pace import Pace
from gonogo.watch import WatchState, dump_state, load_state, tick_digest

FOLD_NAME = ".fold.json"
EVERY_S = 300.0
EVERY_LINES = 10_000
"""Folding so many takes half a second."""

_log = logging.getLogger(__name__)


class Memory(BaseModel):
    """What a watcher knows of a run besides the fold: how far it has come, and what it found."""

    model_config = ConfigDict(extra="forbid")

    watch_bytes: int = 0
    """Bytes of watch.jsonl, lines that wait to be written included."""
    last: str | None = None
    """Digest of the last recorded tick."""
    number: int = 0
    """Number of the next tick."""
    mono: float | None = None
    """Clock of the last recorded tick."""
    offsets: dict[int, int] = {}
    """Rank → bytes of its heartbeat file that were read."""
    found: dict[str, Finding] = {}
    """Every finding by its key."""
    files: dict[str, FileSeal] = {}
    """Records that the ticks have sealed."""
    pace: Pace = Field(default_factory=Pace)


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
            lines: how many heartbeats came since the last question.
        """
        self._lines += lines
        if self._next_at is None:
            self._next_at = now + EVERY_S
        if self._thread is not None and self._thread.is_alive():
            return False
        return now >= self._next_at or self._lines >= EVERY_LINES

    def start(self, state: WatchState, memory: Memory, now: float) -> None:
        """Write both; they may change as soon as this returns."""
        self._lines, self._next_at = 0, now + EVERY_S
        try:
            document = {"memory": memory.model_dump(mode="json"), "state": dump_state(state)}
            self._thread = start_thread(partial(_save, self._path, document), "snapshot")
        except (Corrupt, OSError) as error:  # a plug-in's state, or no thread
            _log.warning("no snapshot: %s", error, extra={"action": "snapshot_unwritten"})

    def join(self) -> None:
        """Wait until what was started is written."""
        if self._thread is not None:
            self._thread.join()


def load_snapshot(run_dir: RunDir, order: Order) -> tuple[WatchState, Memory] | None:
    """Return the snapshot of a run; None if there is none that fits its files."""
    try:
        with read_plain(run_dir.path / FOLD_NAME) as stream:
            sealed, _, body = stream.read().partition(b"\n")
    except OSError:
        return None
    try:
        if hashlib.sha256(body).hexdigest().encode() != sealed:
            raise Corrupt("it is torn")
        document = json.loads(body)
        memory = Memory.model_validate(document["memory"])
        for rank, offset in memory.offsets.items():
            if run_dir.heartbeat(rank).stat().st_size < offset:
                raise Corrupt(f"rank {rank}'s file is shorter than it says")
        if _last_tick(run_dir.watch, memory.watch_bytes) != memory.last:
            raise Corrupt("watch.jsonl is not the one that it was made of")
        return load_state(order, document["state"]), memory
    except (Corrupt, OSError, KeyError, ValidationError) as error:
        _log.warning("no snapshot: %s", error, extra={"action": "snapshot_refused"})
        return None


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
