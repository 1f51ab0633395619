"""Answer requests for torch's record of collectives, while the trainer hangs.

A word in `evidence/.dump_collectives` asks. A thread writes `collectives_rank{N}.json` with that
word and the newest collectives of each group. A process whose GIL is held cannot answer.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

REQUEST = ".dump_collectives"
_POLL_S = 0.2
_NEWEST_PER_GROUP = 256
_LIMIT_BYTES = 512 * 1024
_TORCH_S_INNARDS = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, ImportError)
_FORGOTTEN = ("thread_id", "thread_name", "p2p_seq_id", "pg_id", "timeout_ms")


class FlightRecorder:
    """Answers requests for one rank until it is closed; `read` returns the recorder's JSON."""

    def __init__(self, run_dir: Path, rank: int, read: Callable[[], bytes] | None = None) -> None:
        self._folder, self._rank = run_dir / "evidence", rank
        self._read = read or read_recorder
        self._answered: str | None = self._asked()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="collectives", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._closing.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._closing.wait(_POLL_S):
            asked = self._asked()
            if asked is not None and asked != self._answered:
                self._answered = asked
                self._answer(asked)

    def _asked(self) -> str | None:
        try:
            return (self._folder / REQUEST).read_text(encoding="utf-8", errors="replace") or None
        except OSError:
            return None

    def _answer(self, asked: str) -> None:
        file = self._folder / f"collectives_rank{self._rank}.json"
        draft = file.with_name(f".{file.name}.{os.getpid()}.draft")
        try:
            draft.write_bytes(self._dump(asked))
            draft.replace(file)
        except OSError:
            return  # a full disk: there is no answer

    def _dump(self, asked: str) -> bytes:
        said: dict[str, Any] = {
            "v": 1,
            "request": asked,
            "rank": self._rank,
            "pid": os.getpid(),
            "ts": time.time(),
        }
        try:
            found = json.loads(self._read())
            entries = found.get("entries") or []
            said |= {"version": found.get("version"), "groups": _members()}
        except _TORCH_S_INNARDS as error:
            entries = []
            said["error"] = f"{type(error).__name__}: {error}"
        kept = _NEWEST_PER_GROUP
        while True:
            said["kept"] = kept
            said["entries"] = _newest(entries, kept)
            data = json.dumps(said, separators=(",", ":")).encode()
            if len(data) <= _LIMIT_BYTES or kept == 1:
                return data
            kept //= 2


def read_recorder() -> bytes:
    """What torch has recorded, as JSON: NCCL's recorder where that backend runs, else the common.

    Raises:
        RuntimeError: this torch has no recorder.
    """
    from torch._C import _distributed_c10d as c10d

    names = ["_dump_fr_trace_json"]
    if dist.is_initialized() and dist.get_backend() == "nccl":
        names.insert(0, "_dump_nccl_trace_json")
    dump = next((getattr(c10d, name) for name in names if hasattr(c10d, name)), None)
    if dump is None:
        raise RuntimeError("this torch has no flight recorder that can be read")
    data = dump()
    return data if isinstance(data, bytes) else str(data).encode()


def _newest(entries: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The newest `count` entries of every group, in order of entry."""
    groups: dict[str, int] = {}
    kept = []
    for entry in reversed(entries):
        group = str(entry.get("process_group"))
        groups[group] = groups.get(group, 0) + 1
        if groups[group] <= count:
            kept.append({name: item for name, item in entry.items() if name not in _FORGOTTEN})
    return kept[::-1]


def _members() -> dict[str, list[int]]:
    """Name of every group → its ranks; the recorder itself does not say for gloo."""
    world = dist.distributed_c10d._world
    return {
        str(world.pg_names[group]): sorted(ranks)
        for group, ranks in list(world.pg_group_ranks.items())
        if group in world.pg_names
    }
