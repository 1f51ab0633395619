"""Prove that the devices of an ended run are free, or quarantine them.

`python -m gonogo.supervise.devices.after_run RUNDIR --home DIR --held UUID=FD … [--limit-s S]` is
started by the keeper when `exit.json` is written. The descriptors hold the locks of the devices.

| device | what happens |
|---|---|
| nothing computes on it, less than 512 MB in use | its lock is released |
| still in use after 50 s | quarantined, then released |
| of a rank that ended the run as `hardware` | quarantined until a reboot or a person's release |
| only held by a run on the CPU, or scripted | released at once |

A driver that hangs is given up. Not covered: a disk that takes no record of a quarantine for two
minutes; then the device is released. Exit code: 0.
"""

import argparse
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from gonogo.contract.errors import Corrupt, GonogoError
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector, OutcomeCode
from gonogo.contract.records import ExitRecord
from gonogo.files import is_there
from gonogo.rundir import RunDir, load_all_lines, load_record
from gonogo.supervise.devices.choice import choose_devices_of, may_use_gpus
from gonogo.supervise.devices.device import DeviceUnreadable, Scripted
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.locks import quarantine
from gonogo.supervise.settings import load_devices_script
from gonogo.supervise.transient_errors import TransientErrors

LIMIT_S = 50.0
RECORD_LIMIT_S = 120.0
"""How long a disk may refuse the record of a device."""
BUSY_MB = 512.0
"""A driver keeps less for itself."""
_POLL_S = 0.5
_HANGS_S = 5.0

_log = logging.getLogger("gonogo.supervise.devices.after_run")
_transient = TransientErrors(_log)


def await_free(
    calls: Nvml | Scripted,
    left: dict[str, str],
    free: Callable[[str], None],
    limit_s: float = LIMIT_S,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Look until every device is free or the time is up.

    Args:
        left: device → why it is not proven free yet; those that are free are removed.
        free: called with each device that is proven free.
    """
    give_up = clock() + limit_s
    while True:
        for device in list(left):
            use = _use_of(calls, device)
            if use is None:
                del left[device]
                free(device)
            else:
                left[device] = use
        if not left or clock() >= give_up:
            return
        sleep(_POLL_S)


def _use_of(calls: Nvml | Scripted, uuid: str) -> str | None:
    """Return what is still on a device; None when it is free."""
    try:
        device = next((row for row in calls.devices() if row.uuid == uuid), None)
    except DeviceUnreadable as error:
        return f"it cannot be read: {error}"
    if device is None:
        return "it is not in the driver's list any more"
    pids = calls.health(device).processes
    used_mb = calls.read(device).mem_used_mb
    if pids is None or used_mb is None:
        return "it cannot be read: the driver does not say what is on it"
    if pids:
        return f"processes {pids} compute on it"
    return None if used_mb < BUSY_MB else f"{used_mb:.0f} MB of its memory are in use"


def faulty_ranks(run_dir: RunDir) -> set[int | None]:
    """Return the ranks whose device ended the run; None among them stands for all."""
    found: set[int | None] = set()
    try:
        record = load_record(run_dir.exit, ExitRecord)
        if record is None or record.reason is not OutcomeCode.HARDWARE:
            return found
        for line in load_all_lines(run_dir.findings):
            row = Finding.model_validate_json(line)
            if row.detector == Detector.HARDWARE and row.severity is Severity.HALT:
                found.add(row.rank)
    except (GonogoError, ValidationError):
        return found
    return found


def _held(text: str) -> tuple[str, int]:
    """Return device and descriptor of `UUID=FD`."""
    name, _, descriptor = text.rpartition("=")
    return name, int(descriptor)


def main(argv: Sequence[str]) -> int:
    """Release every device, free or quarantined."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.devices.after_run")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node", type=int, default=0, metavar="K")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--held", type=_held, action="append", default=[], metavar="UUID=FD")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    asked = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    held: dict[str, int] = dict(asked.held)
    run_dir, limit_s, home = RunDir(asked.run_dir.absolute()), float(asked.limit_s), asked.home
    try:
        order = _transient.retried("the order", partial(load_record, run_dir.order, Order), limit_s)
        if order is None or not may_use_gpus(order):
            return 0
        faulty = _await_end(run_dir, asked.node, limit_s)
        devices = choose_devices_of(order, tuple(held), script=load_devices_script())
    except (OSError, Corrupt) as error:
        for device in held:
            text = f"it is not known if it is free after {run_dir.path.name}: {error}"
            _quarantine(home, device, text)
        return 0
    except (GonogoError, DeviceUnreadable) as error:
        _log.error("%s", error, extra={"action": "no_devices"})
        return 0
    if devices is None or devices.scripted:
        return 0
    first = asked.node * order.ranks_per_node
    for device in [name for rank, name in enumerate(held, first) if {rank, None} & faulty]:
        text = f"{run_dir.path.name} ended as hardware (see its findings)"
        _quarantine(home, device, text, until_reboot=True)
    left = dict.fromkeys(held, "its driver does not answer")
    arguments = (devices.calls, left, lambda device: os.close(held[device]), limit_s)
    thread = threading.Thread(target=await_free, args=arguments, daemon=True)
    thread.start()
    thread.join(limit_s + _HANGS_S)
    for device, use in dict(left).items():
        _quarantine(home, device, f"not free {limit_s:g} s after {run_dir.path.name}: {use}")
    sys.stderr.flush()
    os._exit(0)  # a thread inside a dead driver cannot be waited for


def _await_end(run_dir: RunDir, node: int, limit_s: float) -> set[int | None]:
    """Return the faulty ranks once the run's end is recorded; only node 0 records it."""
    give_up = time.monotonic() + (limit_s if node else 0.0)
    ended = partial(is_there, run_dir.exit)
    while time.monotonic() < give_up and not _transient.retried("exit.json", ended, limit_s):
        time.sleep(_POLL_S)
    return _transient.retried("the findings", partial(faulty_ranks, run_dir), limit_s)


def _quarantine(home: Path, device: str, reason: str, *, until_reboot: bool = False) -> None:
    """Write a record of a device, as soon as the disk takes it."""
    work = partial(quarantine, home, device, reason, until_reboot=until_reboot, now=time.time())
    try:
        _transient.retried(f"the record of {device}", work, RECORD_LIMIT_S)
    except OSError as error:
        _log.error("no record of %s: %s", device, error, extra={"action": "device_unrecorded"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
