"""Does a run's keeper live? The process that its state names: pid, start time and boot."""

from pathlib import Path

from gonogo.supervise.durable import load_json
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.processes import ProcessRef, boot_id


def living_keeper(run_dir: Path, place: Place | None = None) -> ProcessRef | None:
    """Return the keeper of a run, when it lives on this host.

    Args:
        run_dir: the run's directory.
        place: which part of a run on several nodes it keeps; None: node 0's.
    """
    return _living(run_dir / (place.own("keeper.json") if place is not None else "keeper.json"))


def is_kept_here(run_dir: Path) -> bool:
    """Say whether a keeper of a run, of whichever of its nodes, lives on this host."""
    return any(_living(path) is not None for path in run_dir.glob("keeper*.json"))


def is_kept_elsewhere(run_dir: Path) -> bool:
    """Say whether a run has keepers, and all that is told of them is told of other hosts.

    A record that is empty, torn or a program's own tells of none.
    """
    records = (load_json(path) or {} for path in run_dir.glob("keeper*.json"))
    told = {row.get("boot_id") for row in records} - {None}
    return bool(told) and boot_id() not in told


def _living(state: Path) -> ProcessRef | None:
    record = load_json(state) or {}
    pid, start_ticks = record.get("pid"), record.get("start_ticks")
    if not isinstance(pid, int) or not isinstance(start_ticks, int):
        return None
    if record.get("boot_id") != boot_id():
        return None
    keeper = ProcessRef(pid=pid, start_ticks=start_ticks)
    return keeper if keeper.is_alive() else None
