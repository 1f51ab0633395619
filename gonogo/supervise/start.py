"""How is a keeper started, so that it outlives its starter? In a session of its own, detached.

Only while the launch lock of the home is held: between our start of it and its taking of the
device locks nobody else may find the devices free.
"""

import logging
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gonogo.supervise.keeper.living import living_keeper
from gonogo.supervise.locks import device_lock

KEEPER_MODULE = "gonogo.supervise.keeper"
READY_LIMIT_S = 10.0
_POLL_S = 0.01

_log = logging.getLogger(__name__)


def start_keeper(
    run_dir: Path,
    *,
    home: Path,
    devices: Iterable[str],
    environ: Mapping[str, str],
    cwd: Path,
    module: str = KEEPER_MODULE,
    options: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start the keeper of a run and return when it holds its devices (or has failed to).

    Args:
        run_dir: the run's directory, with its order.
        home: where the devices' locks lie.
        devices: slots that the run gets.
        environ: the keeper's environment.
        cwd: the folder in which the keeper, and all that it starts, runs.
        module: the keeper.
        options: further arguments of the keeper.

    Raises:
        OSError: the process cannot be started.
    """
    locks = [part for name in devices for part in ("--lock", str(device_lock(home, name)))]
    with (run_dir / "keeper.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(run_dir), *locks, *options],
            cwd=cwd,
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
