"""Does a run's keeper live? The process that `keeper.json` names: pid, start time and boot."""

from pathlib import Path

from gonogo.supervise.durable import load_json
from gonogo.supervise.processes import ProcessRef, boot_id


def living_keeper(run_dir: Path) -> ProcessRef | None:
    """Return the keeper of a run, when it lives."""
    record = load_json(run_dir / "keeper.json") or {}
    pid, start_ticks = record.get("pid"), record.get("start_ticks")
    if not isinstance(pid, int) or not isinstance(start_ticks, int):
        return None
    if record.get("boot_id") != boot_id():
        return None
    keeper = ProcessRef(pid=pid, start_ticks=start_ticks)
    return keeper if keeper.is_alive() else None
