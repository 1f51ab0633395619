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
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gonogo.contract.observation import Dump, parse_dump
from gonogo.files import create_plain, read_plain
from gonogo.supervise.keeper.kill import poke

REQUEST_NAME = ".dump_collectives"
LIMIT_S = 3.0
MAX_DUMP_BYTES = 2**20
MAX_RECORD_BYTES = 64 * 2**20
"""A record of 20 000 calls, with the Python stack of each, is smaller."""
_NEWEST = 4_000
"""Entries that are used; the launch asks torch to keep 2 000."""
_POLL_S = 0.05


def gather_dumps(folder: Path, word: str, ranks: Collection[int]) -> dict[int, Dump]:
    """Ask the ranks for their dumps; return rank → dump once all have answered, or LIMIT_S passed.

    Answers in `folder` bear the `word` of the request.
    """
    asked_at, give_up = time.time(), time.monotonic() + LIMIT_S
    draft = folder / f"{REQUEST_NAME}.part"
    with create_plain(draft) as stream:
        stream.write(word.encode())
    draft.replace(folder / REQUEST_NAME)
    for pipe in folder.parent.glob(".nccl_dump_rank_*"):
        poke(pipe)
    found: dict[int, Dump] = {}
    while True:
        for rank in [rank for rank in ranks if rank not in found]:
            dump = _read_answer(folder, word, rank) or _read_torch(folder.parent, rank, asked_at)
            if dump is not None:
                found[rank] = dump
        if len(found) == len(ranks) or time.monotonic() >= give_up:
            return found
        time.sleep(_POLL_S)


def _read_answer(folder: Path, word: str, rank: int) -> Dump | None:
    """Return what the trainer of a rank wrote for this request."""
    try:
        with read_plain(folder / f"collectives_rank{rank}.json") as stream:
            dump = parse_dump(stream.read(MAX_DUMP_BYTES))
    except OSError:
        return None
    return dump if dump is not None and (dump.request, dump.rank) == (word, rank) else None


def _read_torch(run_dir: Path, rank: int, asked_at: float) -> Dump | None:
    """Return what torch wrote for a rank since the request."""
    try:
        with read_plain(run_dir / f"nccl_trace_rank_{rank}") as stream:
            written_at = os.fstat(stream.fileno()).st_mtime
            raw = b"" if written_at < asked_at else stream.read(MAX_RECORD_BYTES + 1)
    except OSError:
        return None
    return read_record(raw, rank, written_at)


def read_record(raw: bytes, rank: int, ts: float = 0.0) -> Dump | None:
    """Return the dump in torch's own record, JSON or a pickle; None if it is none.

    `ts`: Unix seconds at which the file was written; 0: unknown.
    """
    if not raw or len(raw) > MAX_RECORD_BYTES:
        return None
    try:
        is_json = raw[:1] == b"{"
        found = json.loads(raw) if is_json else _PlainUnpickler(io.BytesIO(raw)).load()
        return Dump.model_validate(
            {
                "rank": rank,
                "ts": ts,
                "groups": {name: _ranks(row["ranks"]) for name, row in found["pg_config"].items()},
                "entries": [_entry(row) for row in list(found["entries"] or ())[-_NEWEST:]],
            }
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, MemoryError):
        return None
    except (ValidationError, pickle.UnpicklingError, EOFError, OverflowError):
        return None


class _PlainUnpickler(pickle.Unpickler):
    """Builds plain data only: no class or function is ever looked up."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is refused")


def _entry(row: Any) -> dict[str, Any]:
    """Return an entry in the form of the contract; torch writes tuples, and None for no time."""
    known = {name: item for name, item in row.items() if item is not None and name != "frames"}
    known["process_group"] = list(known.get("process_group", ()))
    return known


def _ranks(text: Any) -> list[int]:
    """Return the ranks of a group: torch writes `"[0, 1]"`."""
    return [int(row) for row in (json.loads(text) if isinstance(text, str) else text)]
