"""Read a dump of torch's flight recorder: our own answer, torch's JSON, or torch's pickle.

Torch pickles its record into the file that TORCH_NCCL_DEBUG_INFO_TEMP_FILE or
TORCH_FR_DUMP_TEMP_FILE names (`nccl_trace_rank_3`). The debug server of torch answers with the same
record as JSON. Both have `pg_config` (name → ranks as text) and `entries`.

A pickle can name any class and call it. Here only operations that build plain data are accepted,
so nothing of the file is ever called, and its size is bounded before it is used.
"""

import io
import json
import pickle
import pickletools
import re
from typing import Any

from pydantic import ValidationError

from gonogo.contract.collectives import Dump, parse_dump

MAX_BYTES = 64 * 2**20
"""A record of 20 000 calls, with the Python stack of each, is smaller."""
MOST_ENTRIES = 20_000
_NEWEST = 4_000
"""Entries that are used; the launch asks torch to keep 2 000."""
_ACTIVE = 1_000
"""Half of the ring that torch keeps by default."""
_MOST_NODES = 8_000_000
_PLAIN = frozenset(
    re.findall(
        r"\w+",
        """
        PROTO FRAME STOP MARK POP POP_MARK DUP MEMOIZE
        NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
        UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 STRING SHORT_BINSTRING BINSTRING
        EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
        EMPTY_DICT DICT SETITEM SETITEMS GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT
        """,
    )
)
"""Operations of a pickle that build plain data. GLOBAL, REDUCE, BUILD and their like are not."""

_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")


class NotPlain(ValueError):
    """The pickle asks for more than plain data."""


def read_record(raw: bytes, rank: int, ts: float = 0.0) -> Dump | None:
    """Return the dump in a file, or None if the file holds none.

    Args:
        raw: the content of the file.
        rank: the rank that wrote the file, from the name of the file. Torch's formats lack it.
        ts: Unix seconds at which the file was written; 0: not known.
    """
    if len(raw) > MAX_BYTES:
        return None
    if raw[:1] == b"{":
        own = parse_dump(raw)
        if own is not None:
            return own
    try:
        found = json.loads(raw) if raw[:1] == b"{" else load_plain_pickle(raw)
        return _from_torch(found, rank, ts)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, MemoryError):
        return None
    except (ValidationError, pickle.UnpicklingError, EOFError, OverflowError):
        return None


def load_plain_pickle(raw: bytes) -> Any:
    """Return the plain data in a pickle: dict, list, tuple, str, int, float, bool and None.

    Raises:
        NotPlain: the pickle names a class or function, or is larger than its file.
        ValueError: the bytes are no pickle.
    """
    for opcode, argument, _ in pickletools.genops(raw):
        if opcode.name not in _PLAIN:
            raise NotPlain(f"{opcode.name} is refused")
        if opcode.name in _PUTS and isinstance(argument, int) and argument > len(raw):
            raise NotPlain("the memo is larger than the file")
    found = _PlainUnpickler(io.BytesIO(raw)).load()
    _check_size(found)
    return found


class _PlainUnpickler(pickle.Unpickler):
    """A second lock: even if an operation was missed above, no name is looked up."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise NotPlain(f"{module_name}.{global_name} is refused")

    def persistent_load(self, pid: Any) -> Any:
        raise NotPlain("a persistent id is refused")


def _check_size(found: Any) -> None:
    """Refuse data that refer to themselves so often that they fill the memory when walked."""
    open_, seen = [found], 0
    while open_:
        node = open_.pop()
        seen += 1
        if isinstance(node, dict):
            seen += len(node)
            open_ += node.values()
        elif isinstance(node, list | tuple):
            seen += len(node)
            if seen <= _MOST_NODES:
                open_ += [row for row in node if isinstance(row, dict | list | tuple)]
        if seen > _MOST_NODES:
            raise NotPlain("the data are larger than the file")


def _from_torch(found: Any, rank: int, ts: float) -> Dump:
    """Return torch's own record as a dump."""
    config, entries = found["pg_config"], found.get("entries") or []
    if not isinstance(entries, list) or len(entries) > MOST_ENTRIES:
        raise NotPlain("too many entries")
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
        raise NotPlain("no list of ranks")
    return [int(row) for row in found]
