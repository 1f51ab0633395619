"""Write and check the files of a checkpoint: sealed by size and SHA-256, in parts where sharded.

Digests are taken while writing. Sharded ranks write a part each (`model_rank0.pt`, …) and gather
nothing: each leaves its seals in `.seal_rank{N}.json`, rank 0 waits for them and
writes the manifest. `merged` puts the parts together, so any number of ranks can resume.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

_POLL_S = 0.02
PEERS_LIMIT_S = 600.0


def write_sealed(
    folder: Path,
    writers: Mapping[str, Callable[[BinaryIO], Any]],
    after_file: Callable[[Path], None],
) -> dict[str, Any]:
    """Write files, durably, and return their seals by name.

    Args:
        folder: where they go.
        writers: what fills each, by name.
        after_file: called with each once it is written and its digest is taken.

    Raises:
        OSError: the file system refused.
    """
    files = {}
    for name, write in writers.items():
        files[name] = _write(folder / name, write)
        after_file(folder / name)
    return files


def _write(file: Path, write: Callable[[BinaryIO], Any]) -> dict[str, Any]:
    """Write one file through Python's, and raise what the file system says.

    torch reports a full disk as an unexpected position, because it still closes its archive.
    """
    with file.open("wb") as opened:
        digested = _Digested(opened)
        try:
            write(cast(BinaryIO, digested))
        except RuntimeError:
            if digested.refused is not None:
                raise digested.refused from None
            raise
        opened.flush()
        os.fsync(opened.fileno())
    return {"bytes": digested.bytes_written, "sha256": digested.digest.hexdigest()}


class _Digested:
    """A file that is written from its beginning to its end, and known when it is."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.bytes_written = 0
        self.refused: OSError | None = None

    def write(self, data: Any) -> int:
        """Write and take note."""
        self.digest.update(data)
        try:
            written = self._file.write(data)
        except OSError as refused:
            self.refused = refused
            raise
        self.bytes_written += written
        return written

    def flush(self) -> None:
        """Hand on."""
        self._file.flush()


def seal_of(file: Path) -> dict[str, Any]:
    """The seal of a file as it is now."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
