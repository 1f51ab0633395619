"""What stands in the run directories of a home, and how is one pruned? The disk's side of it.

Guarantees: `pruned.json` is durable before anything is removed, and whoever judges or replays such
a directory is told so; nothing outside of the directory is touched, links are not followed, and the
run's keeper lock is held meanwhile.
"""

import json
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from gonogo.contract.errors import Corrupt
from gonogo.contract.ids import Kind, is_id
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord
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
from gonogo.supervise.keeper.living import living_keeper
from gonogo.supervise.locks import holding, keeper_lock
from gonogo.supervise.prune.decide import RunFacts, What

_STAYS = frozenset({PRUNED_NAME, SHIPPED_NAME, ".keeper.lock"})


def load_facts(home: Path) -> list[RunFacts]:
    """Return the facts about every run directory of a home, oldest id first."""
    quarantines = [_text(path) for path in (home / "quarantine").glob("*.json")]
    decided = _decided(home / "decisions")
    return [_facts_of(path, quarantines, decided) for path in _run_dirs(home)]


def find_undecided(home: Path) -> list[str]:
    """Return the ended runs of a home that no service knows and no decision in it is about."""
    ended = [path for path in _run_dirs(home) if not _known(path) and RunDir(path).exit.exists()]
    decided = _decided(home / "decisions") if ended else ()
    return [path.name for path in ended if path.name not in decided]


def prune(path: Path, what: What, *, policy: str, now: float) -> bool:
    """Take a run directory, or its checkpoints, away; False where its keeper has it after all.

    Args:
        path: the run directory; of what goes as a whole a folder with `pruned.json` stays.
        what: how much goes.
        policy: by what it goes, for people.
        now: Unix seconds.

    Raises:
        OSError: something could not be removed; `pruned.json` stands all the same.
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


def _facts_of(path: Path, quarantines: Collection[str], decided: Collection[str]) -> RunFacts:
    run_dir, run = RunDir(path), path.name
    order, ended = _order(run_dir), _exit(run_dir)
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
        left=ended is not None and bool(ended.left),
        quarantined=any(run in text for text in quarantines),
        begins_from=None if order is None else _begins_from(order),
        pruned=None if pruned is None else _what(pruned.get("what")),
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
    """Say whether a service knows of a run."""
    shipped = path / SHIPPED_NAME
    return bool(_load_json(shipped)) or NO_SERVICE not in _text(shipped)  # a person's reason may


def _what(said: object) -> What:
    return What.CHECKPOINTS if said == What.CHECKPOINTS else What.ALL


def _order(run_dir: RunDir) -> Order | None:
    try:
        return load_record(run_dir.order, Order)
    except (OSError, Corrupt):
        return None


def _exit(run_dir: RunDir) -> ExitRecord | None:
    try:
        return load_record(run_dir.exit, ExitRecord)
    except (OSError, Corrupt):
        return None


def _begins_from(order: Order) -> str | None:
    """Return the run in whose directory the checkpoint lies that an order begins with."""
    if order.resume_from is None:
        return None
    parts = Path(order.resume_from.path).parts
    return next((part for part in reversed(parts) if is_id(part, Kind.RUN)), None)


def _decided(decisions: Path) -> set[str]:
    """Return the runs that a decision in this home is about."""
    found = (_load_json(path) for path in decisions.glob("dec_*.json"))
    return {row["run"] for row in found if isinstance(row.get("run"), str)}


def _size(path: Path) -> int:
    """Return what a folder's files take on the disk, but for those that stay."""
    return sum(_sizes(path))


def _sizes(path: Path) -> Iterator[int]:
    for folder, _, names in os.walk(path):
        for name in names:
            if name in _STAYS and Path(folder) == path:
                continue
            try:
                found = (Path(folder) / name).lstat()
            except OSError:
                continue
            yield min(found.st_size, found.st_blocks * 512) if found.st_blocks else found.st_size


def _load_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one where there is none that can be read."""
    try:
        found = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError):  # a trainer may write here, too
        return {}
    return found if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    try:
        return read_small(path).decode(errors="replace")
    except OSError:
        return ""
