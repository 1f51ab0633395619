"""Ask the ranks for the collectives that they have entered, and read torch's flight records.

Ranks with our library answer `evidence/.dump_collectives` by `collectives_rank{N}.json`. With NCCL,
a byte in the pipe `.nccl_dump_rank_{N}.pipe` makes torch write `nccl_trace_rank_{N}`. A rank that
is silent for LIMIT_S counts as unanswered. Torch pickles its record; here every class in a pickle
is refused.
"""

import io
import json
import os
import pickle
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gonogo.contract.collectives import Dump, Standing, parse_dump
from gonogo.files import create_plain, read_plain
from gonogo.supervise.evidence.collectives import analyse
from gonogo.supervise.keeper.kill import poke

REQUEST_NAME = ".dump_collectives"
LIMIT_S = 3.0
MAX_DUMP_BYTES = 2**20
MAX_RECORD_BYTES = 64 * 2**20
"""A record of 20 000 calls, with the Python stack of each, is smaller."""
MOST_ENTRIES = 20_000
_NEWEST = 4_000
"""Entries that are used; the launch asks torch to keep 2 000."""
_ACTIVE = 1_000
"""Half of the ring that torch keeps by default."""
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
    """The answers to one request; one thread a rank collects, and one analyses.

    Args:
        folder: where ranks write.
        word: of the request.
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
        try:
            while (raw := self._read_answer(rank) or self._read_torch(rank)) is None:
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
                raw = b"" if written_at < self._asked_at else stream.read(MAX_RECORD_BYTES + 1)
        except OSError:
            return None
        dump = read_record(raw, rank, written_at)
        if dump is None or dump.rank != rank:
            return None
        with self._changed:
            self._dumps[rank] = dump
        return dump.model_copy(update={"request": self._word}).model_dump_json()


def read_record(raw: bytes, rank: int, ts: float = 0.0) -> Dump | None:
    """Return the dump in a file: our answer, torch's JSON or torch's pickle; None for none.

    Args:
        raw: the content of the file.
        rank: the rank of the file's name, which torch's formats lack.
        ts: Unix seconds at which the file was written; 0: unknown.
    """
    if not raw or len(raw) > MAX_RECORD_BYTES:
        return None
    is_json = raw[:1] == b"{"
    if is_json and (own := parse_dump(raw)) is not None:
        return own
    try:
        found = json.loads(raw) if is_json else _PlainUnpickler(io.BytesIO(raw)).load()
        return _from_torch(found, rank, ts)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, MemoryError):
        return None
    except (ValidationError, pickle.UnpicklingError, EOFError, OverflowError):
        return None


class _PlainUnpickler(pickle.Unpickler):
    """Builds plain data only: no class or function is ever looked up."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is refused")


def _from_torch(found: Any, rank: int, ts: float) -> Dump:
    """Return torch's own record as a dump: `pg_config` (name → ranks as text) and `entries`."""
    config, entries = found["pg_config"], found.get("entries") or []
    if not isinstance(entries, list) or len(entries) > MOST_ENTRIES:
        raise ValueError("too many entries")
    return Dump.model_validate(
        {
            "rank": rank,
            "ts": ts,
            "kept": _kept(entries[-_NEWEST:]),
            "groups": {str(name): _ranks(row["ranks"]) for name, row in config.items()},
            "entries": [_entry(row) for row in entries[-_NEWEST:]],
        }
    )


def _kept(entries: list[Any]) -> int:
    """Return the number of entries of a group from which on older ones may be missing.

    The record is a ring. Its first entry has the number 0 until the ring is full. A record of
    active calls alone is far from full, or it may lack some.
    """
    ended = any(row.get("retired") or row.get("state") == "completed" for row in entries)
    first = entries[0].get("record_id") if entries else 0
    return MOST_ENTRIES if first == 0 or (not ended and len(entries) < _ACTIVE) else 0


def _entry(row: Any) -> dict[str, Any]:
    """Return an entry in the form of the contract; torch writes tuples, and None for no time."""
    known = {name: item for name, item in row.items() if item is not None and name != "frames"}
    known["process_group"] = list(known.get("process_group", ()))
    return known


def _ranks(text: Any) -> list[int]:
    """Return the ranks of a group: torch writes `"[0, 1]"`."""
    found = json.loads(text) if isinstance(text, str) else text
    if not isinstance(found, list | tuple) or not all(isinstance(row, int) for row in found):
        raise ValueError("no list of ranks")
    return [int(row) for row in found]
