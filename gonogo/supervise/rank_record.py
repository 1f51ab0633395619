"""Which process is a rank? `.rank{N}.json` names it: the wrapper writes it, who looks reads it.

A command may start its ranks itself (torchrun, accelerate, a shell). Until they are known the
command's own process stands for rank 0; then each rank has a record of its own, marked `launched`,
which is written anew where a launcher starts a rank again. Ranks beyond those that were ordered
(rank 0 prints for all) are kept in `.beyond.json`: only their stacks are asked for. Standard
library only.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.processes import ProcessRef

_NAME = re.compile(r"\.rank(0|[1-9][0-9]{0,5})\.json")
_BEYOND_NAME = ".beyond.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """One rank's process."""

    ref: ProcessRef
    wrapper: int
    """Process that wrote this."""
    launched: bool = False
    """Whether the command started it: how it ended, and whether it begins anew, is the command's
    business as long as that lives."""
    by_shell: bool = False
    """Whether a shell stands between: that leaves with 0 whatever became of what it started."""


def save_rank_record(folder: Path, rank: int, record: RankRecord, at: float) -> None:
    """Write a rank's record.

    Args:
        folder: the run directory.
        rank: number of the rank.
        record: what to write.
        at: Unix seconds.

    Raises:
        OSError: the disk refuses.
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
    """Return a rank's record; None where there is none that can be read."""
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


def save_beyond(folder: Path, refs: Mapping[int, ProcessRef]) -> None:
    """Write which processes are ranks beyond those that were ordered.

    Raises:
        OSError: the disk refuses.
    """
    ranks = {str(rank): [ref.pid, ref.start_ticks] for rank, ref in refs.items()}
    save_json(folder / _BEYOND_NAME, {"v": 1, "ranks": ranks})


def load_beyond(folder: Path) -> dict[int, ProcessRef]:
    """Return those of them that live; none where the file cannot be read: a halt waits for none."""
    with suppress(ArithmeticError, AttributeError, OSError, TypeError, ValueError):
        rows = ((load_json(folder / _BEYOND_NAME) or {}).get("ranks") or {}).items()
        refs = {
            int(rank): ProcessRef(pid=int(pid), start_ticks=int(ticks))
            for rank, (pid, ticks) in rows
        }
        return {rank: ref for rank, ref in sorted(refs.items()) if ref.is_alive()}
    return {}


class RankRecords:
    """The records of one run, each read again only when its file has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, tuple[tuple[int, int], RankRecord]] = {}

    def of(self, rank: int) -> RankRecord | None:
        """Return a rank's record as it is now; one that was read is not forgotten."""
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
