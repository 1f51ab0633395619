"""Which collectives do the ranks stand in? Asked of the trainers themselves, beside the watching.

A word in `evidence/.dump_collectives` makes each rank write what it has entered
(`collectives_rank{N}.json`, docs/reference/heartbeats.md). Programs with NCCL need no trainer
for this: one byte in the pipe `.nccl_dump_rank_{N}.pipe` makes torch write `nccl_trace_rank_{N}`.
A rank that does not answer within LIMIT_S, because it is stopped, holds its GIL or never learnt to,
is an outcome. Nothing here blocks a tick.
"""

import os
import threading
import time
from collections.abc import Collection
from pathlib import Path

from gonogo.contract.collectives import Dump, Standing, parse_dump
from gonogo.files import create_plain, read_plain
from gonogo.supervise.evidence.flight_record import MAX_BYTES, read_record
from gonogo.supervise.evidence.standing import analyse
from gonogo.supervise.keeper.kill import poke

REQUEST_NAME = ".dump_collectives"
LIMIT_S = 3.0
MAX_DUMP_BYTES = 2**20
_POLL_S = 0.05


def ask_ranks(folder: Path, word: str) -> None:
    """Ask every rank for a dump, which will bear `word`.

    Raises:
        OSError: the disk refuses.
    """
    draft = folder / f"{REQUEST_NAME}.part"
    with create_plain(draft) as stream:
        stream.write(word.encode())
    draft.replace(folder / REQUEST_NAME)
    for pipe in find_pipes(folder.parent):
        poke(pipe)


def find_pipes(run_dir: Path) -> list[Path]:
    """Return the pipes at which ranks with NCCL wait to be asked for their flight record."""
    return sorted(run_dir.glob(".nccl_dump_rank_*"))


class Answers:
    """The answers to one request, as they come in; one thread a rank, and one that analyses.

    Args:
        folder: where ranks write.
        word: what the request says.
        ranks: who was asked.
        world_size: ranks of the run.
        asked_mono: the watcher's clock when it asked.
    """

    def __init__(
        self, folder: Path, word: str, ranks: Collection[int], world_size: int, asked_mono: float
    ) -> None:
        self._folder, self._word, self._world_size = folder, word, world_size
        self._asked_mono, self._asked_at = asked_mono, time.time()
        self._deadline = time.monotonic() + LIMIT_S
        self._open = set(ranks)
        self._dumps: dict[int, Dump] = {}
        self._changed = threading.Condition()

    def collect(self, rank: int) -> str:
        """Return a rank's dump as it wrote it.

        Raises:
            TimeoutError: it did not answer.
        """
        raw: str | None = None
        try:
            while (raw := self._read(rank)) is None:
                if time.monotonic() >= self._deadline:
                    raise TimeoutError(f"rank {rank} did not answer within {LIMIT_S:g} s")
                time.sleep(_POLL_S)
        finally:
            with self._changed:
                self._open.discard(rank)
                self._changed.notify_all()
        return raw

    def analyse(self) -> Standing | None:
        """Return what all answers say, once they are there or their time is up."""
        with self._changed:
            left_s = max(0.0, self._deadline - time.monotonic()) + _POLL_S
            self._changed.wait_for(lambda: not self._open, left_s)
            found = analyse(self._dumps, self._world_size)
        return found and found.model_copy(update={"asked_mono": self._asked_mono})

    def _read(self, rank: int) -> str | None:
        """Return the answer to this request, None while there is none."""
        return self._read_answer(rank) or self._read_torch(rank)

    def _read_answer(self, rank: int) -> str | None:
        """Return what the trainer of a rank wrote for this request."""
        try:
            with read_plain(self._folder / f"collectives_rank{rank}.json") as stream:
                raw = stream.read(MAX_DUMP_BYTES)
        except OSError:
            return None
        dump = parse_dump(raw)
        if dump is None or dump.request != self._word or dump.rank != rank:
            return None
        with self._changed:
            self._dumps[rank] = dump
        return raw.decode("utf-8", "replace")

    def _read_torch(self, rank: int) -> str | None:
        """Return what torch wrote for a rank since the request, in the form of an answer."""
        try:
            with read_plain(self._folder.parent / f"nccl_trace_rank_{rank}") as stream:
                written_at = os.fstat(stream.fileno()).st_mtime
                raw = b"" if written_at < self._asked_at else stream.read(MAX_BYTES + 1)
        except OSError:
            return None
        dump = (
            read_record(raw, rank, written_at) if raw else None
        )  # None: it is still being written
        if dump is None or dump.rank != rank:
            return None
        with self._changed:
            self._dumps[rank] = dump
        return dump.model_copy(update={"request": self._word}).model_dump_json()
