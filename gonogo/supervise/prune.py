"""Choose run directories to prune, and prune them.

The unit of age is the experiment: a decision is derived again from the directories of its runs. A
run that is not known to be over stays. `pruned.json` is durable before anything is removed, and a
pruned directory is not judged again. Nothing outside of the directory is touched, links are not
followed, and the run's keeper lock is held meanwhile.
"""

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from gonogo.contract.errors import Corrupt
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord
from gonogo.contract.wire import Kind, is_id
from gonogo.files import read_small
from gonogo.rundir import (
    NO_SERVICE,
    PRUNED_NAME,
    SHIPPED_NAME,
    RunDir,
    load_pruned,
    load_record,
    save_json,
)
from gonogo.supervise.durable import load_json
from gonogo.supervise.locks import holding, keeper_lock
from gonogo.supervise.process_records import living_keeper

_M = TypeVar("_M", bound=BaseModel)
DAY_S = 86_400.0
_STAYS = frozenset({PRUNED_NAME, SHIPPED_NAME, ".keeper.lock"})


class What(StrEnum):
    """How much of a directory goes."""

    ALL = "all"
    CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts about one run directory."""

    run: str
    experiment: str
    """The run itself, if no service knows it."""
    ended_at: float | None = None
    """Unix seconds in exit.json; None if it cannot be read."""
    bytes: int = 0
    checkpoint_bytes: int = 0
    living: bool = False
    shipped: bool = False
    known: bool = True
    """Whether a service knows it (`gonogo run` needs none)."""
    decided: bool = False
    """Whether this home holds a decision about it."""
    pruned: What | None = None
    """What was pruned before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is kept."""

    keep_days: float = 30.0
    """Experiments that ended within so many days stay."""
    checkpoints_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What the service knows about experiments."""

    finished: Mapping[str, bool]
    """Experiment → whether it is over; missing: unknown."""
    begun_from: Collection[str] = ()
    """Experiments whose checkpoints an unfinished one resumes from."""


NOBODY_SAYS = Course(finished={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What happens to one run directory."""

    run: str
    experiment: str
    what: What | None
    """None: it stays."""
    bytes: int = 0
    why: str = ""
    """Why it stays."""


def old_enough(facts: Sequence[RunFacts], policy: Policy, now: float) -> list[RunFacts]:
    """Return the runs that nothing in the home keeps; `now` in Unix seconds, as below."""
    kept = _kept(facts, policy, now)
    return [row for row in facts if not _held_here(row, policy, kept)]


def decide(facts: Sequence[RunFacts], policy: Policy, course: Course, now: float) -> list[Choice]:
    """Return what happens to every run directory; `course` is of the runs of `old_enough`."""
    kept, only = _kept(facts, policy, now), policy.checkpoints_only
    found = []
    for row in facts:
        why = _held_here(row, policy, kept) or _held_by_course(row, course)
        if only and not row.checkpoint_bytes:
            why = why or "it has no checkpoints"
        what = None if why else What.CHECKPOINTS if only else What.ALL
        size = row.checkpoint_bytes if only else row.bytes
        found.append(Choice(run=row.run, experiment=row.experiment, what=what, bytes=size, why=why))
    return found


def _kept(facts: Sequence[RunFacts], policy: Policy, now: float) -> dict[str, str]:
    """Return the experiments that the policy keeps, and why."""
    ends: dict[str, float] = {}
    for row in facts:
        if row.pruned is not What.ALL:
            ended = inf if row.ended_at is None or not isfinite(row.ended_at) else row.ended_at
            ends[row.experiment] = max(ended, ends.get(row.experiment, ended))
    recent = f"its experiment ended within {policy.keep_days:g} days"
    return {name: recent for name, at in ends.items() if not now - at >= policy.keep_days * DAY_S}


def _held_here(row: RunFacts, policy: Policy, kept: Mapping[str, str]) -> str:
    """Return why a run stays, by its own home; empty: it may go."""
    if row.living:
        return "its keeper lives"
    if row.pruned is What.ALL:  # perhaps cut short
        return "" if row.bytes and not policy.checkpoints_only else "it was pruned before"
    if row.ended_at is None:
        return "it has no exit.json that can be read"
    if not row.shipped:
        return "it is not shipped"
    return kept.get(row.experiment, "")


def _held_by_course(row: RunFacts, course: Course) -> str:
    """Return why a run stays, by its experiment; empty: it may go."""
    if row.pruned is What.ALL:
        return ""
    if not row.known:
        return "" if row.decided else "it is not decided"
    finished = course.finished.get(row.experiment)
    if finished is None:
        return "no service says that its experiment is over"
    if not finished:
        return "its experiment is not over"
    if row.experiment in course.begun_from:
        return "an unfinished experiment resumes from its experiment"
    return ""


def load_facts(home: Path) -> list[RunFacts]:
    """Return the facts about every run directory of a home, oldest id first."""
    decided = _decided(home / "decisions")
    return [_facts_of(path, decided) for path in _run_dirs(home)]


def find_undecided(home: Path) -> list[str]:
    """Return the ended runs of a home that neither a service nor a decision knows."""
    ended = [path for path in _run_dirs(home) if not _known(path) and RunDir(path).exit.exists()]
    decided = _decided(home / "decisions") if ended else ()
    return [path.name for path in ended if path.name not in decided]


def prune(path: Path, what: What, *, policy: str, now: float) -> bool:
    """Remove a run directory, or its checkpoints; return False if its keeper lives.

    A folder with `pruned.json` and the reason, `policy`, stays.
    """
    with holding(keeper_lock(path)) as free:
        if not free or living_keeper(path) is not None:
            return False
        before = load_pruned(path)
        if before is None or before.get("what") != What.ALL:
            record = {"v": 1, "what": what, "at": now, "policy": policy}
            save_json(path / PRUNED_NAME, record)
        if what is What.CHECKPOINTS:
            _remove(RunDir(path).checkpoints)
            return True
        for entry in list(path.iterdir()):
            if entry.name not in _STAYS:
                _remove(entry)
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _facts_of(path: Path, decided: Collection[str]) -> RunFacts:
    run_dir, run = RunDir(path), path.name
    order, ended = _record(run_dir.order, Order), _record(run_dir.exit, ExitRecord)
    pruned = load_pruned(path)
    known = _known(path)
    return RunFacts(
        run=run,
        experiment=order.experiment if known and order is not None else run,
        ended_at=None if ended is None or order is None else ended.ended_at,
        bytes=_size(path),
        checkpoint_bytes=_size(run_dir.checkpoints),
        living=living_keeper(path) is not None,
        shipped=(path / SHIPPED_NAME).is_file(),
        known=known,
        decided=run in decided,
        pruned=None if pruned is None else What(pruned.get("what") or What.ALL),
    )


def _run_dirs(home: Path) -> list[Path]:
    try:
        paths = sorted((home / "runs").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        path
        for path in paths
        if is_id(path.name, Kind.RUN) and path.is_dir() and not path.is_symlink()
    ]


def _known(path: Path) -> bool:
    """Whether a service knows a run."""
    try:
        return NO_SERVICE.encode() not in read_small(path / SHIPPED_NAME)
    except OSError:
        return True


def _record(path: Path, model: type[_M]) -> _M | None:
    try:
        return load_record(path, model)
    except (OSError, Corrupt):
        return None


def _decided(decisions: Path) -> set[str]:
    """Return the runs with a decision in this home."""
    found = set()
    for path in decisions.glob("dec_*.json"):
        with suppress(OSError):
            found.add(str((load_json(path) or {}).get("run")))
    return found


def _size(path: Path) -> int:
    """Return what a folder's files take on the disk, without those that stay."""
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            if name in _STAYS and Path(folder) == path:
                continue
            with suppress(OSError):
                found = (Path(folder) / name).lstat()
                size += min(found.st_size, found.st_blocks * 512 or found.st_size)
    return size
