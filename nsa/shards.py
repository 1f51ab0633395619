"""How do sharded ranks write one checkpoint? Each its own part, side by side, rank 0 the rest.

Nothing is gathered: `model.pt` and `optimizer.pt` become `model_rank0.pt`, `model_rank1.pt`, …, and
no rank ever holds the whole. Rank 0 makes the draft before the others write; each leaves the size
and digest of its files in `.seal_rank{N}.json`, and rank 0, which waits for these, writes the
manifest over all of them. Whoever loads puts the parts together again (`merged`), so that any
number of ranks goes on from any other.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_POLL_S = 0.02
PEERS_LIMIT_S = 600.0


def shard_name(kind: str, rank: int) -> str:
    """The file of one rank's part: `model_rank0.pt`."""
    return f"{kind}_rank{rank}.pt"


def leave_seal(
    draft: Path, rank: int, files: dict[str, Any], refused: Exception | None = None
) -> None:
    """Say that this rank's files are there, and what they are; or why they are not."""
    place = _seal_place(draft, rank)
    beside = place.with_suffix(".draft")
    why: list[Any] | None = None
    if isinstance(refused, OSError) and refused.errno is not None:
        why = [refused.errno, refused.strerror]
    elif refused is not None:
        why = [f"rank {rank}: {refused!r}"]
    beside.write_text(json.dumps({"files": files, "refused": why}), encoding="utf-8")
    beside.replace(place)


def await_seals(
    draft: Path, ranks: Sequence[int], *, limit_s: float, now: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """The files of other ranks, once all are there.

    Raises:
        OSError: they do not come in time, or the file system has refused one.
    """
    files: dict[str, Any] = {}
    deadline = now() + limit_s
    for rank in ranks:
        place = _seal_place(draft, rank)
        while not place.exists():
            if now() > deadline:
                raise OSError(f"rank {rank} has not written its part within {limit_s:g} s")
            time.sleep(_POLL_S)
        seal = json.loads(place.read_text(encoding="utf-8"))
        if seal["refused"]:
            raise OSError(*seal["refused"])
        files |= seal["files"]
        place.unlink()
    return files


def merged(parts: Sequence[dict[str, Any]], shapes: dict[str, list[int]]) -> dict[str, Any]:
    """One state of the parts of all ranks, in order of rank.

    Args:
        parts: equally built; tensors are cut along their first dimension, or on every rank alike.
        shapes: of the whole tensors that are cut, by path (`moments/3/exp_avg`).
    """
    whole: dict[str, Any] = _merged(list(parts), (), shapes)
    return whole


def whole_shapes(state: Any, path: tuple[str, ...] = ()) -> dict[str, list[int]]:
    """The shapes of all tensors of a state that are cut, by path."""
    if isinstance(state, dict):
        rows = [whole_shapes(item, (*path, str(key))) for key, item in state.items()]
        return {name: shape for row in rows for name, shape in row.items()}
    cut = isinstance(state, Tensor) and hasattr(state, "to_local")
    return {"/".join(path): list(state.shape)} if cut else {}


def _merged(parts: list[Any], path: tuple[str, ...], shapes: dict[str, list[int]]) -> Any:
    first = parts[0]
    if isinstance(first, dict):
        return {
            key: _merged([part[key] for part in parts], (*path, str(key)), shapes) for key in first
        }
    shape = shapes.get("/".join(path))
    return first if shape is None else torch.cat(parts).reshape(shape)


def _seal_place(draft: Path, rank: int) -> Path:
    return draft / f".seal_rank{rank}.json"
