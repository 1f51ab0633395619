"""keeper.json, which names the processes of a run's keeper. Standard library only."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import load_json
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.processes import ProcessRef, boot_id


def living_keeper(run_dir: Path, place: Place | None = None) -> ProcessRef | None:
    """Return the keeper of a run if it lives on this host.

    Args:
        run_dir: the run's directory.
        place: the node whose keeper is meant; None: node 0.
    """
    return _living(run_dir / (place.own("keeper.json") if place is not None else "keeper.json"))


def is_kept_here(run_dir: Path) -> bool:
    """Return whether a keeper of any node of a run lives on this host."""
    return any(_living(path) is not None for path in run_dir.glob("keeper*.json"))


def is_kept_elsewhere(run_dir: Path) -> bool:
    """Return whether all keepers of a run are recorded on other hosts."""
    records = (load_json(path) or {} for path in run_dir.glob("keeper*.json"))
    boots = {row.get("boot_id") for row in records} - {None}
    return bool(boots) and boot_id() not in boots


def process_of(record: Mapping[str, Any] | None) -> ProcessRef | None:
    """Return the process that a record names by `pid` and `start_ticks`."""
    row = record if isinstance(record, dict) else {}
    pid, start_ticks = row.get("pid"), row.get("start_ticks")
    if not isinstance(pid, int) or not isinstance(start_ticks, int):
        return None
    return ProcessRef(pid=pid, start_ticks=start_ticks)


def _living(path: Path) -> ProcessRef | None:
    record = load_json(path) or {}
    keeper = process_of(record)
    if keeper is None or record.get("boot_id") != boot_id() or not keeper.is_alive():
        return None
    return keeper
