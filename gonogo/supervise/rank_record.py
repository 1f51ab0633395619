"""`.rank{N}.json`, which names a rank's process. The rank wrapper writes it. Standard library only.

A command may start its ranks itself (torchrun, accelerate, a shell). Until they are found, the
command's own process stands for rank 0. Then each rank has a record marked `launched`.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.processes import ProcessRef

_NAME = re.compile(r"\.rank(0|[1-9][0-9]{0,5})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """One rank's process."""

    ref: ProcessRef
    wrapper: int
    """Process id of the writer."""
    launched: bool = False
    """Whether the command started it, and may restart it."""
    by_shell: bool = False
    """Whether a shell stands between, which hides exit codes."""


def save_rank_record(folder: Path, rank: int, record: RankRecord, at: float) -> None:
    """Write a rank's record.

    Args:
        folder: the run directory.
        rank: number of the rank.
        record: what to write.
        at: Unix seconds.
    """
    document = {
        "v": 1,
        "pid": record.ref.pid,
        "start_ticks": record.ref.start_ticks,
        "wrapper": record.wrapper,
        "at": at,
        **({"launched": True} if record.launched else {}),
        **({"by_shell": True} if record.by_shell else {}),
    }
    save_json(_path(folder, rank), document)


def load_rank_record(folder: Path, rank: int) -> RankRecord | None:
    """Return a rank's record; None if there is none that can be read."""
    found = load_json(_path(folder, rank)) or {}
    try:
        return RankRecord(
            ref=ProcessRef(pid=int(found["pid"]), start_ticks=int(found["start_ticks"])),
            wrapper=int(found["wrapper"]),
            launched=bool(found.get("launched")),
            by_shell=bool(found.get("by_shell")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def recorded_ranks(folder: Path) -> Iterator[int]:
    """Yield the numbers of the ranks that have a record, in their order."""
    matches = map(_NAME.fullmatch, os.listdir(folder))
    yield from sorted(int(match[1]) for match in matches if match is not None)


class RankRecords:
    """The records of one run; a file is read again only after it has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, tuple[tuple[int, int], RankRecord]] = {}

    def of(self, rank: int) -> RankRecord | None:
        """Return a rank's record, the last one that could be read."""
        _, known = self._known.get(rank, (None, None))
        try:
            found = _path(self._folder, rank).stat()
        except OSError:
            return known
        signature = (found.st_mtime_ns, found.st_ino)
        if known is not None and self._known[rank][0] == signature:
            return known
        record = load_rank_record(self._folder, rank)
        if record is not None:
            self._known[rank] = signature, record
        return record or known


def _path(folder: Path, rank: int) -> Path:
    return folder / f".rank{rank}.json"
