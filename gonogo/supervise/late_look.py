"""What if keeper and watcher die between exit.json and the watcher's last look? Another one looks.

The run has ended by then, and what it did lies there: only that nobody saw its end is missing, so
that it could never pass. One more watcher sees it, as one does that a keeper has replaced: it goes
on from what was recorded, its first tick says how late it comes, and its last one seals the end.
How long nobody may have watched is for the judge to say. It dies with whoever started it: that
one's lock is free then, and another looks.

It looks only at what nobody can have written since: the heartbeat lines have to be those, byte by
byte, that the keeper sealed in exit.json when nothing of the run lived any more. An end that the
keeper did not write, a clock of another boot, a watcher that still lives: nobody looks.
"""

import logging
import os
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress

from gonogo.contract.errors import Corrupt
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import ExitRecord
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.durable import load_json
from gonogo.supervise.exit_record import count_heartbeats
from gonogo.supervise.keeper.children import open_log
from gonogo.supervise.processes import ProcessRef, boot_id
from gonogo.supervise.release import own_module
from gonogo.supervise.watcher.recording import WATCHED_NAME

WATCHER_MODULE = "gonogo.supervise.watcher"
LOOK_LIMIT_S = 60.0
"""How long the look may take: whoever waits for it has other runs to see to."""
GONE_S = 5.0
"""How long a watcher that dies with its keeper is waited for."""
_POLL_S = 0.02

_log = logging.getLogger(__name__)


def look_late(run_dir: RunDir, environ: Mapping[str, str]) -> None:
    """Have a watcher see the end of a run whose keeper is dead, once, where that is owed.

    Whoever calls it holds the run's keeper lock.

    Args:
        run_dir: its directory, with an exit.json.
        environ: of the watcher, which tells nobody: whoever ships sends what it records.
    """
    if not _is_owed(run_dir):
        return
    name = run_dir.path.name
    _log.warning("%s: its end was not seen: one more watcher looks", name)
    try:
        with open_log(run_dir.path / "watcher.log") as log:
            subprocess.run(
                [*own_module(WATCHER_MODULE), str(run_dir.path), "--parent", str(os.getpid())],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                timeout=LOOK_LIMIT_S,
                check=True,
            )
    except (OSError, subprocess.SubprocessError) as error:  # it is judged by what is there
        _log.error("%s: nobody saw its end: %s", name, error, extra={"action": "end_unseen"})
    with suppress(OSError):
        (run_dir.path / WATCHED_NAME).touch()


def _is_owed(run_dir: RunDir) -> bool:
    """Say whether a watch stopped before its last look, and nothing can have changed since."""
    if (run_dir.path / WATCHED_NAME).exists():
        return False
    try:
        record = load_record(run_dir.exit, ExitRecord)
    except Corrupt:
        return False
    if record is None or record.reason is OutcomeCode.KEEPER_LOST:
        return False
    if record.watch is None or not record.watch.bytes:
        return False  # nobody had begun to watch
    keeper = load_json(run_dir.path / "keeper.json") or {}
    return keeper.get("boot_id") == boot_id() and _is_gone(keeper) and _is_sealed(run_dir, record)


def _is_gone(keeper: Mapping[str, object]) -> bool:
    """Say whether the watcher that the keeper had is gone: one at a time writes."""
    said = keeper.get("watcher")
    row = said if isinstance(said, dict) else {}
    pid, start_ticks = row.get("pid"), row.get("start_ticks")
    if not isinstance(pid, int) or not isinstance(start_ticks, int):
        return True
    watcher, give_up = ProcessRef(pid=pid, start_ticks=start_ticks), time.monotonic() + GONE_S
    while watcher.is_alive():  # it dies with its keeper
        if time.monotonic() >= give_up:
            return False
        time.sleep(_POLL_S)
    return True


def _is_sealed(run_dir: RunDir, record: ExitRecord) -> bool:
    """Say whether the heartbeat files are, byte by byte, those that exit.json seals."""
    said = {name: row.wire() for name, row in (record.heartbeats or {}).items()}
    sealed = all(row.get("sha256") for row in said.values())
    return sealed and said == count_heartbeats(run_dir.path)
