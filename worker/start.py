"""How is a keeper started, so that it outlives the worker? In a session of its own, detached.

Only while the launch lock of the home is held: between our start of it and its taking of the
device locks nobody else may find the devices free.
"""

import logging
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from gonogo.contract.resolve import checkout_root
from worker.inventory import living_keeper
from worker.locks import device_lock

KEEPER_MODULE = "worker.keeper"
READY_LIMIT_S = 10.0
_POLL_S = 0.01

_log = logging.getLogger(__name__)


def start_keeper(
    run_dir: Path,
    *,
    home: Path,
    devices: Iterable[str],
    environ: Mapping[str, str],
    module: str = KEEPER_MODULE,
) -> subprocess.Popen[bytes]:
    """Start the keeper of a run and return when it holds its devices (or has failed to).

    Raises:
        OSError: the process cannot be started.
    """
    locks = [part for name in devices for part in ("--lock", str(device_lock(home, name)))]
    with (run_dir / "keeper.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(run_dir), *locks],
            cwd=checkout_root(),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + READY_LIMIT_S
    while living_keeper(run_dir) is None and process.poll() is None:
        if time.monotonic() > deadline:
            _log.warning("%s: its keeper is slow", run_dir.name, extra={"action": "keeper_slow"})
            break
        time.sleep(_POLL_S)
    return process
