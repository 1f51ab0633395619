"""Start a keeper in a session of its own, so that it outlives its starter.

The caller holds the launch lock of the home, since the keeper takes the device locks only later.
"""

import logging
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gonogo.device_slots import gpus_of
from gonogo.files import append_plain
from gonogo.supervise.durable import load_json
from gonogo.supervise.keeper.children import build_drain_command, start_heir
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.locks import DeviceLocks, take_lock
from gonogo.supervise.process_records import living_keeper
from gonogo.supervise.processes import own_module

KEEPER_MODULE = "gonogo.supervise.keeper"
READY_LIMIT_S = 60.0  # How long a keeper may take to start from a slow disk.
_POLL_S = 0.01

_log = logging.getLogger(__name__)


def start_keeper(
    run_dir: Path,
    *,
    home: Path,
    locks: DeviceLocks,
    devices: Iterable[str],
    environ: Mapping[str, str],
    cwd: Path,
    module: str = KEEPER_MODULE,
    place: Place | None = None,
    options: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start the keeper of a run, and return when it holds its devices or has failed."""
    taken = [part for name in devices for part in ("--lock", str(locks.path(name)))]
    log_name, record = "keeper.log", "keeper.json"
    if place is not None:
        log_name, record = place.own(log_name), place.own(record)
    with append_plain(run_dir / log_name) as log:
        process = subprocess.Popen(
            [*own_module(module), str(run_dir), "--home", str(home), *taken, *options],
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + READY_LIMIT_S
    while not _is_ready(run_dir, record) and process.poll() is None:
        if time.monotonic() > deadline:
            _log.warning("%s: its keeper is slow", run_dir.name, extra={"action": "keeper_slow"})
            break
        time.sleep(_POLL_S)
    return process


def _is_ready(run_dir: Path, name: str) -> bool:
    try:
        return living_keeper(run_dir, name) is not None
    except OSError:
        return False


def start_draining(
    run_dir: Path, *, home: Path, locks: DeviceLocks, environ: Mapping[str, str]
) -> subprocess.Popen[bytes] | None:
    """Start the proof that the GPUs of a lost run are free; None when there is nothing to do.

    They stay locked meanwhile. Call it before anyone else may claim them.
    """
    slots = (load_json(run_dir / "keeper.json") or {}).get("locks") or []
    held: dict[str, int] = {}
    try:
        for slot in gpus_of(slots):
            descriptor = take_lock(locks.path(slot))
            if descriptor is not None:
                held[slot] = descriptor
        if not held:
            return None
        command, log = build_drain_command(run_dir, home, held), run_dir / "drained.log"
        return start_heir(command, env=environ, log=log, descriptors=held.values())
    except OSError as error:
        text = "%s: its devices are not checked: %s"
        _log.warning(text, run_dir.name, error, extra={"action": "undrained"})
        return None
    finally:
        for descriptor in held.values():
            os.close(descriptor)
