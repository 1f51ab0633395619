"""Answer requests for evidence while the script hangs: stacks, and entered collectives.

SIGUSR1 writes the stacks of all threads into a hidden open file, in C, so a stuck Python does not
matter. `StackDumps.look` names the file `stackdump_rank{N}_{ms}.txt`. The file
`evidence/.dump_collectives` asks `Collectives.look` for `evidence/collectives_rank{N}.json`: the
newest collectives of each group, from torch's flight recorder.
"""

import faulthandler
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

REQUEST = ".dump_collectives"
_NEWEST_PER_GROUP = 256
_LIMIT_BYTES = 512 * 1024
_RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
_TORCH_S_INNARDS = (RuntimeError, ValueError, TypeError, AttributeError, LookupError)
_LEFT_OUT = ("thread_id", "thread_name", "p2p_seq_id", "pg_id", "timeout_ms")


class StackDumps:
    """Stacks of one rank, unless the script handles SIGUSR1 itself."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._hidden = folder / f".stackdump_rank{rank}.txt"
        self._fd: int | None = None
        self._previous: int | None = None
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            self._register()

    def look(self) -> str | None:
        """Name a dump that was written since the last call; return the name."""
        if self._fd is None:
            return None
        try:
            if self._hidden.stat().st_size == 0:
                return None
            name = f"stackdump_rank{self._rank}_{time.time_ns() // 1_000_000}.txt"
            self._hidden.rename(self._folder / name)
        except OSError:
            return None
        if self._previous is not None:
            os.close(self._previous)
        # The dump may still be written: its file stays open until the next one.
        self._previous = self._fd
        self._register()
        return name

    def close(self) -> None:
        """Give SIGUSR1 back and remove the hidden file."""
        if self._fd is None:
            return
        faulthandler.unregister(signal.SIGUSR1)
        for fd in (self._fd, self._previous):
            if fd is not None:
                os.close(fd)
        self._fd = None
        with suppress(OSError):
            self._hidden.unlink(missing_ok=True)

    def _register(self) -> None:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._fd = os.open(self._hidden, flags, 0o644)
        except OSError:
            return  # the file before it continues to serve
        faulthandler.register(signal.SIGUSR1, file=self._fd, all_threads=True, chain=False)


class Collectives:
    """The entered collectives of one rank."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        self._folder, self._rank = run_dir / "evidence", rank
        self._answered = self._asked()

    def look(self) -> None:
        """Answer a request that has come since the last look."""
        asked = self._asked()
        if asked is None or asked == self._answered or "torch.distributed" not in sys.modules:
            return
        self._answered = asked
        file = self._folder / f"collectives_rank{self._rank}.json"
        draft = file.with_name(f".{file.name}.{os.getpid()}.draft")
        try:
            draft.write_bytes(self._answer(asked))
            draft.replace(file)
        except OSError:
            return

    def _asked(self) -> str | None:
        try:
            return (self._folder / REQUEST).read_text(encoding="utf-8", errors="replace") or None
        except OSError:
            return None

    def _answer(self, asked: str) -> bytes:
        said: dict[str, Any] = {"v": 1, "request": asked, "rank": self._rank, "pid": os.getpid()}
        said["ts"] = time.time()
        entries: list[dict[str, Any]] = []
        try:
            found = json.loads(_read_recorder())
            entries = found.get("entries") or []
            said |= {"version": found.get("version"), "groups": _members()}
        except _TORCH_S_INNARDS as error:
            said["error"] = f"{type(error).__name__}: {error}"
        kept = _NEWEST_PER_GROUP
        while True:
            said["entries"] = _newest(entries, kept)
            data = json.dumps(said, separators=(",", ":")).encode()
            if len(data) <= _LIMIT_BYTES or kept == 1:
                return data
            kept //= 2


def _read_recorder() -> bytes:
    """Return the content of torch's recorder: NCCL's if that backend runs, else the common one."""
    torch_c = sys.modules["torch._C"]._distributed_c10d
    distributed = sys.modules["torch.distributed"]
    nccl = distributed.is_initialized() and distributed.get_backend() == "nccl"
    names = _RECORDERS if nccl else _RECORDERS[1:]
    dump = next((getattr(torch_c, name) for name in names if hasattr(torch_c, name)), None)
    if dump is None:
        raise RuntimeError("this torch has no flight recorder that can be read")
    data = dump()
    return data if isinstance(data, bytes) else str(data).encode()


def _newest(entries: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the newest `count` entries of every group, in order of entry."""
    groups: dict[str, int] = {}
    kept = []
    for entry in reversed(entries):
        group = str(entry.get("process_group"))
        groups[group] = groups.get(group, 0) + 1
        if groups[group] <= count:
            kept.append({name: item for name, item in entry.items() if name not in _LEFT_OUT})
    return kept[::-1]


def _members() -> dict[str, list[int]]:
    """Return name of every group → its ranks, which the recorder lacks for gloo."""
    world = sys.modules["torch.distributed"].distributed_c10d._world
    return {
        str(world.pg_names[group]): sorted(ranks)
        for group, ranks in list(world.pg_group_ranks.items())
        if group in world.pg_names
    }
