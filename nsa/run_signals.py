"""What a supervisor asks by files: `.GO`, `.HALT`, and the record of collectives.

Rank 0 alone reads the two words and shares the answer, so that all ranks act together. A process
whose GIL is held cannot answer about its collectives.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from nsa.errors import BadConfig, Halted
from nsa.heartbeat import Heartbeat
from nsa.ranks import Ranks

_LIMIT_S = 120.0
_POLL_S = 0.05


def told(run_dir: Path, word: str) -> bool:
    """Whether `.GO` or `.HALT` is there, whatever it is; a silent disk says no."""
    return os.path.lexists(run_dir / f".{word}")


def forget(run_dir: Path, word: str) -> None:
    """Take a word back that was meant for an earlier run in the same directory."""
    (run_dir / f".{word}").unlink(missing_ok=True)


def wait_for_go(run_dir: Path, ranks: Ranks, heart: Heartbeat) -> None:
    """Return when `.GO` is there; Halted: `.HALT` came; BadConfig: neither, 120 s long."""
    ranks.choose(0)
    deadline, halt = time.monotonic() + _LIMIT_S, False
    while not (go := told(run_dir, "GO")) and not (halt := told(run_dir, "HALT")):
        if ranks.rank != 0 or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    if ranks.choose(int(go)):
        return
    halted = ranks.choose(int(halt))
    if halted:
        heart.beat("halt_seen")
    ranks.leave_together()
    if halted:
        raise Halted("halted before the first step")
    raise BadConfig(f"no .GO within {_LIMIT_S:.0f} s")


REQUEST = ".dump_collectives"
_LOOK_EVERY_S = 0.2
_NEWEST_PER_GROUP = 256
_LIMIT_BYTES = 512 * 1024
_TORCH_S_INNARDS = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, ImportError)
_FORGOTTEN = ("thread_id", "thread_name", "p2p_seq_id", "pg_id", "timeout_ms")


class FlightRecorder:
    """Answers `evidence/.dump_collectives` for one rank, in a thread, while the trainer hangs.

    `collectives_rank{N}.json` holds the word of the request and the newest collectives of each
    group. `read` returns the recorder's JSON.
    """

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
        while not self._closing.wait(_LOOK_EVERY_S):
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
    """What torch has recorded, as JSON: NCCL's recorder where that runs, else the common."""
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
