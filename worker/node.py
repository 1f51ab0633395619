"""`python -m worker.node RUN [--token T] [--look | --leave]`: check this host and keep its part.

An engine starts this on every node. The order lies in `GONOGO_HOME/runs/RUN`, which all nodes
share. This process chooses devices, checks the host and *becomes* the keeper, so the engine's TERM
ends the run with a checkpoint. `--leave` only asks for that; `--look` only reports that this node
sees the order. An unfit host writes `exit_node{K}.json`, and no node begins.

Exit codes: those of the keeper · 2 bad settings, no such order, or a disk that takes no request ·
75 this attempt is another's, or has begun before.
"""

import argparse
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar, cast

from gonogo.contract.errors import GonogoError, Rejected, Unavailable
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.records import Check, CheckOutcome, Preflight
from gonogo.device_slots import gpus_of
from gonogo.files import is_there
from gonogo.planning.resolve import checkout_root
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.durable import RESERVE_NAME, Reserve
from gonogo.supervise.end_request import EndRequest, ask_halt, until_after
from gonogo.supervise.keeper.children import open_log
from gonogo.supervise.keeper.nodes import save_refusal
from gonogo.supervise.launch.nodes import NoPlace, Place, told_node
from gonogo.supervise.locks import DeviceLocks, is_locked, keeper_lock, take_lock
from gonogo.supervise.process_records import load_end, load_keeping
from gonogo.supervise.processes import own_python
from gonogo.supervise.transient_errors import TransientErrors
from worker.host.preflight import ProbeStore, run_preflight
from worker.host.slots import (
    Slots,
    choose_devices,
    find_slots,
    quarantine_devices,
    scheduler_slots,
)
from worker.settings import Settings, keeper_environ, load_settings

KEEPER_MODULE = "worker.keeper_process"
SEEN_LIMIT_S = 60.0
"""How long a network file system may take to show what another host has written."""
LEAVE_S = 90.0
"""How long a run has to leave before its keepers end it; Slurm gives two minutes."""
ASK_S = 30.0
"""How long a disk that takes no request is tried."""
JOB = "SLURM_JOB_ID"
"""Set inside a Slurm job, where TERM reaches every process of the job."""
_SCHEDULERS = re.compile(r"SLURM_(?!CONF$)|SLURMD_|SRUN_")
"""Slurm's variables, which no rank may see: a trainer would set itself up by them again."""
_BAD = 2
_BUSY = 75

_log = logging.getLogger("worker.node")
_T = TypeVar("_T")


def main(argv: Sequence[str]) -> int:
    """Become the keeper of one node's part; see the module's text for the exit codes."""
    parser = argparse.ArgumentParser(prog="worker.node")
    parser.add_argument("run")
    parser.add_argument("--token", type=int, default=None)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--leave", action="store_true")
    only.add_argument("--look", action="store_true")
    parser.add_argument("--keeper", default=KEEPER_MODULE, metavar="MODULE")
    asked = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = load_settings()
        run_dir = RunDir(settings.runs / Path(asked.run).name)
        order = wait_for_order(run_dir)
        place = Place.of(order.document(), told_node(order.document(), settings.inherited))
        if asked.token is not None and asked.token != order.token:
            _log.error("%s: token %d, and the order's is %d", order.run, asked.token, order.token)
            return _BUSY
        if asked.look:
            return 0
        if asked.leave:  # looks at no device: a driver may hang just then
            return 0 if ask_to_leave(run_dir, order, place) else _BAD
        begun = find_begun(run_dir, order, place)
        if begun is not None:
            _log.error("%s: %s; this start of it begins nothing", order.run, begun)
            return _BUSY
        slots = find_own_slots(settings)
    except (Rejected, Unavailable) as error:
        _log.error("%s", error.detail)
        return _BAD
    except (GonogoError, NoPlace) as error:
        _log.error("%s", error)
        return _BAD
    devices = check_host(settings, slots, order, run_dir, place)
    if devices is None:
        return 0
    become_keeper(settings, slots, run_dir, place, devices, module=asked.keeper)


def ask_to_leave(run_dir: RunDir, order: Order, place: Place) -> bool:
    """Ask the run to leave with a checkpoint, on all its nodes; False where the disk refuses."""
    request = EndRequest(
        reason=OutcomeCode.PREEMPTED.value,
        ended_by=Actor.INFRA.value,
        at=time.time(),
        text="the scheduler asked the job to end: its time limit, or a preemption",
        until_mono=until_after(LEAVE_S),
        leave_s=LEAVE_S,
        grace_s=order.halt.grace_s,
    )
    reserve = Reserve(run_dir.path, place.own(RESERVE_NAME))

    def ask() -> bool | None:
        reserve.write(partial(ask_halt, run_dir.path, request))
        return True

    return bool(_wait_for("a request to leave", ask, ASK_S))


def find_begun(run_dir: RunDir, order: Order, place: Place) -> str | None:
    """Return why this node's part has begun before, or is over; None: this start counts."""
    path = run_dir.path
    try:
        part_ended = not place.is_whole and load_end(path, place.node, order.token) is not None
        if is_there(run_dir.exit) or part_ended:
            return "it has ended"
        if is_locked(path / place.own(keeper_lock(path).name)):
            return "its keeper lives"
        if place.is_whole:
            return "its keeper has begun it" if is_there(path / "keeper.json") else None
        keeping = load_keeping(path, place.node)
    except OSError as error:  # the keeper looks again
        _log.warning("%s: %s", order.run, error, extra={"action": "unread"})
        return None
    if keeping is None or keeping.token < order.token:
        return None
    return f"node {place.node} has begun it on {keeping.host}"


def find_own_slots(settings: Settings) -> Slots:
    """Return the slots of this node: without a GPU, as many as a scheduler may send runs."""
    slots = find_slots(
        settings.home,
        wanted=settings.devices,
        environ=settings.inherited,
        script=settings.devices_script,
        locks=settings.locks,
    )
    if settings.devices is None and not gpus_of(slots.names):
        slots = scheduler_slots(settings.home, None)
    own = settings.home / "hosts" / os.uname().nodename  # nodes share the home, and no CPU slots
    return replace(slots, locks=DeviceLocks(home=own, shared=slots.locks.shared))


def wait_for_order(run_dir: RunDir) -> Order:
    """Return the order of a run, as soon as this host sees it; else raise Rejected."""
    order = _wait_for(str(run_dir.order), partial(load_record, run_dir.order, Order))
    if order is None:
        raise Rejected(f"{run_dir.order} is not to be seen from {os.uname().nodename}")
    return order


def _wait_for(what: str, read: Callable[[], _T | None], limit_s: float | None = None) -> _T | None:
    """Return what `read` returns, as soon as that is possible here; None: never."""
    transient, nothing = TransientErrors(_log), cast("_T | None", None)
    give_up = time.monotonic() + (SEEN_LIMIT_S if limit_s is None else limit_s)
    while (found := transient.tried(what, read, nothing)) is None:
        if time.monotonic() >= give_up:
            return None
        time.sleep(0.2)
    return found


def check_host(
    settings: Settings, slots: Slots, order: Order, run_dir: RunDir, place: Place
) -> tuple[str, ...] | None:
    """Return the devices for this node's part; None where the host is not fit (it is recorded)."""
    devices = choose_devices(order, _wait_for("the devices", slots.free) or ())
    host = os.uname().nodename
    store = ProbeStore(settings.home, checkout_root(), settings.inherited, host=host)
    check = partial(
        run_preflight,
        order,
        run_dir,
        devices=devices,
        store=store,
        script=settings.devices_script,
        node=place.node,
    )
    record = _wait_for("the preflight", check) or _no_preflight()
    if record.passed and devices is not None:
        return devices
    # slots without a GPU have the same names on every node that shares the home
    gpus = {name: reason for name, reason in record.unfit.items() if gpus_of([name])}
    quarantine_devices(settings.home, gpus, time.time())
    failed = [row for row in record.checks if row.outcome is CheckOutcome.FAIL]
    text = "; ".join(f"{row.id}: {row.text}" for row in failed)
    _log.error("%s: %s", order.run, text, extra={"action": "preflight_failed"})
    if find_begun(run_dir, order, place) is None:  # else another start was faster
        _wait_for("the refusal", partial(_refuse, run_dir, order, place, text))
    return None


def _no_preflight() -> Preflight:
    text = f"the run's directory took no preflight for {SEEN_LIMIT_S:g} s"
    return Preflight(passed=False, checks=[Check(id="disk", outcome=CheckOutcome.FAIL, text=text)])


def _refuse(run_dir: RunDir, order: Order, place: Place, text: str) -> bool:
    reason, actor = OutcomeCode.PREFLIGHT_FAILED.value, Actor.INFRA.value
    save_refusal(run_dir.path, order.document(), place, reason, actor, text)
    return True


def hold_slot(slots: Slots, devices: Sequence[str]) -> dict[str, int]:
    """Take a slot without a GPU, and name its lock's descriptor; runs may begin at once."""
    if gpus_of(devices):
        return {}
    for name in dict.fromkeys((*devices, *slots.free())):
        descriptor = take_lock(slots.locks.path(name))
        if descriptor is not None:
            os.set_inheritable(descriptor, True)
            return {name: descriptor}
    return {}


def become_keeper(
    settings: Settings,
    slots: Slots,
    run_dir: RunDir,
    place: Place,
    devices: Sequence[str],
    *,
    module: str = KEEPER_MODULE,
) -> NoReturn:
    """Turn this process into the keeper; its output goes to keeper.log from here on."""
    with open_log(run_dir.path / place.own("keeper.log")) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    held = _wait_for("a slot", partial(hold_slot, slots, devices)) or {}
    asked = () if held else devices
    command = [
        own_python(), "-m", module, str(run_dir.path),
        "--home", str(settings.home),
        "--node", str(place.node),
        *(["--shield"] if JOB in settings.inherited else []),
        *(part for name, number in held.items() for part in ("--held", f"{name}={number}")),
        *(part for name in asked for part in ("--lock", str(slots.locks.path(name)))),
        *(part for name in settings.allow for part in ("--allow", name)),
        *(part for name in settings.allow_env for part in ("--allow-env", name)),
    ]  # fmt: skip
    kept = {
        name: value
        for name, value in keeper_environ(settings, settings.key()).items()
        if _SCHEDULERS.match(name) is None
    }
    os.chdir(checkout_root())
    os.execve(command[0], command, kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
