"""Describe the calls of collectives, and find in what the calls of several ranks disagree. Pure."""

import json
from collections.abc import Collection, Mapping

from gonogo.contract.collectives import Entry

_UNEVEN = ("alltoall", "all_to_all", "gather", "scatter", "_v")
"""Operations whose ranks may bring different shapes; all_gather and reduce_scatter may not."""
_EVEN = ("all_gather", "allgather", "reduce_scatter")
_LISTED_RANKS = 8


def differs(
    calls: Mapping[int, Entry], ranks: Mapping[int, Mapping[int, Entry]], seq: int
) -> str | None:
    """Return in what calls of one collective disagree: op, order, dtype or shape; else None.

    Args:
        calls: rank → its call of the collective.
        ranks: rank → number of a collective → call, for all collectives of the group.
        seq: number of the collective.
    """
    entries = list(calls.values())
    ops = {entry.op for entry in entries}
    if len(ops) > 1:
        following = {of[seq + 1].op for of in ranks.values() if seq + 1 in of}
        return "order" if following == ops else "op"
    if len({json.dumps(entry.input_dtypes) for entry in entries}) > 1:
        return "dtype"
    op = entries[0].op.lower()
    uneven = any(word in op for word in _UNEVEN) and not any(word in op for word in _EVEN)
    if not uneven and len({json.dumps(entry.input_sizes) for entry in entries}) > 1:
        return "shape"
    return None


def call_text(entry: Entry) -> str:
    """Return a call in words: `all_reduce 4×1024 BFloat16`."""
    shapes = " ".join("×".join(map(str, size)) for size in entry.input_sizes if size)
    dtypes = " ".join(sorted({str(dtype) for dtype in entry.input_dtypes}))
    return " ".join(filter(None, (entry.op, shapes, dtypes)))


def ranks_text(ranks: Collection[int]) -> str:
    """Return ranks in words, cut when there are many: `ranks 0, 2 and 3`."""
    listed = [str(rank) for rank in sorted(ranks)]
    if len(listed) == 1:
        return f"rank {listed[0]}"
    if len(listed) > _LISTED_RANKS:
        shown = ", ".join(listed[: _LISTED_RANKS - 1])
        return f"ranks {shown} and {len(listed) - _LISTED_RANKS + 1} more"
    return f"ranks {', '.join(listed[:-1])} and {listed[-1]}"
