"""Is a run's device free again after its end? Proven with its lock in hand, else quarantined.

`python -m gonogo.supervise.devices.drained RUNDIR --home DIR --held UUID=FD … [--limit-s S]`,
started by the keeper when `exit.json` is written; the descriptors hold the devices' locks, and each
is let go when nothing computes on its device and less than 512 MB of its memory are in use, after
50 s at the latest: then the device is quarantined, with the reason. So is, until a reboot or a
person's word, the device of a rank that ended its run as `hardware`. A device whose run failed, or
that told an Xid, is to hold up anew before its next run (`gonogo.supervise.proven`). A GPU that was
but the place of a run on the CPU is free at once: the run says nothing of it, and it nothing of the
run.

A driver that hangs is given up, too. Made-up devices are free at once. What the disk refuses to
take or to tell is tried again, with the lock in hand: a device is let go when its record stands, or
when the time that it would have held is over. Exit code: 0.
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
from typing import TypeVar

from pydantic import ValidationError

from gonogo.contract.errors import Corrupt, GonogoError
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import CLASS_OF, Detector, OutcomeClass, OutcomeCode
from gonogo.contract.records import ExitRecord
from gonogo.files import is_there
from gonogo.rundir import RunDir, load_all_lines, load_record
from gonogo.supervise.devices.choice import RunDevices, choose_devices_of, may_use_gpus
from gonogo.supervise.devices.lines import parse_sample
from gonogo.supervise.devices.protocol import DeviceCalls, DeviceUnreadable
from gonogo.supervise.devices.scripted import BEFORE_THE_RUN
from gonogo.supervise.proven import disprove
from gonogo.supervise.quarantine import FIRST_S, LONGEST_S, quarantine
from gonogo.supervise.settings import load_devices_script
from gonogo.supervise.weather import Weather

LIMIT_S = 50.0
_WELL = frozenset({OutcomeCode.PREEMPTED})
_WELL_CLASSES = frozenset({OutcomeClass.SUCCESS, OutcomeClass.OPERATOR})
"""Ends that say nothing against a device."""
BUSY_MB = 512.0
"""What a driver keeps for itself is less."""
_POLL_S = 0.5
_HANGS_S = 5.0

_RECORD_S = 2.0
"""How often a record that no disk took is tried again."""

_log = logging.getLogger("gonogo.supervise.devices.drained")
_T = TypeVar("_T")


class Draining:
    """Waits until devices are free, and says of each what became of it.

    Args:
        calls: what the driver says.
        free: called with each device that is proven free.
        clock: returns monotonic seconds.
        sleep: waits.
    """

    def __init__(
        self,
        calls: DeviceCalls,
        free: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._calls, self._free = calls, free
        self._clock, self._sleep = clock, sleep
        self.left: dict[str, str] = {}
        """Device → why it is not proven free yet."""

    def wait(self, devices: Sequence[str], limit_s: float = LIMIT_S) -> None:
        """Look until every device is free or the time is up."""
        self.left = dict.fromkeys(devices, "its driver does not answer")
        give_up = self._clock() + limit_s
        while True:
            for device in list(self.left):
                said = self._what_holds(device)
                if said is None:
                    del self.left[device]
                    self._free(device)
                else:
                    self.left[device] = said
            if not self.left or self._clock() >= give_up:
                return
            self._sleep(_POLL_S)

    def _what_holds(self, uuid: str) -> str | None:
        """Say what is still on a device; None when it is free."""
        try:
            device = next((row for row in self._calls.devices() if row.uuid == uuid), None)
            if device is None:
                return "it is not in the driver's list any more"
            pids = self._calls.processes(device)
            used_mb, _ = self._calls.memory_mb(device)
        except DeviceUnreadable as error:
            return f"it cannot be read: {error}"
        if pids:
            return f"processes {pids} compute on it"
        if not used_mb < BUSY_MB:
            return f"{used_mb:.0f} MB of its memory are in use"
        return None


class Records:
    """What is to be recorded of devices before they are let go; used from one thread.

    Args:
        home: GONOGO_HOME.
    """

    def __init__(self, home: Path) -> None:
        self._home, self._weather = home, Weather(_log)
        self._owed: list[tuple[str, float, Callable[[], object]]] = []

    def owes(self, device: str) -> bool:
        """Say whether something of a device could not be recorded yet."""
        return any(name == device for name, _, _ in self._owed)

    def quarantine(self, device: str, reason: str, *, until_reboot: bool = False) -> None:
        """Keep a device away."""
        made = partial(quarantine, self._home, device, reason, until_reboot=until_reboot)
        lasts_s = LONGEST_S if until_reboot else FIRST_S
        self._do(device, lasts_s, lambda: made(now=time.time()))

    def disprove(self, device: str, reason: str) -> None:
        """Have a device checked again before its next run."""
        self._do(device, FIRST_S, partial(disprove, self._home, device, reason))

    def settle(self, held: dict[str, int], clock: Callable[[], float] = time.monotonic) -> None:
        """Record what is owed, as soon as the disk takes it, or its time is over.

        Args:
            held: device → descriptor of its lock, which is closed when nothing of it is owed.
            clock: returns monotonic seconds.
        """
        began = clock()
        while owed := self._owed:
            for device in [name for name in list(held) if not self.owes(name)]:
                _let_go(held, device)
            time.sleep(_RECORD_S)
            self._owed = []
            for device, lasts_s, work in owed:
                if clock() - began < lasts_s:
                    self._do(device, lasts_s, work)

    def _do(self, device: str, lasts_s: float, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            self._weather.note(f"the record of {device}", error)
            self._owed.append((device, lasts_s, work))


def faulty_ranks(run_dir: RunDir) -> set[int | None]:
    """Return the ranks whose device ended the run; None among them stands for all.

    Raises:
        OSError: the disk does not say.
    """
    try:
        record = load_record(run_dir.exit, ExitRecord)
        if record is None or record.reason is not OutcomeCode.HARDWARE:
            return set()
        lines = load_all_lines(run_dir.findings)
    except GonogoError:
        return set()
    found = [row for line in lines if (row := _finding(line)) is not None]
    return {
        row.rank
        for row in found
        if row.detector == Detector.HARDWARE and row.severity is Severity.HALT
    }


def shaken(run_dir: RunDir, devices: Sequence[str]) -> dict[str, str]:
    """Return device → why it is to be checked under load before its next run.

    Args:
        run_dir: of the run that ended.
        devices: those that it had.
    """
    try:
        record = load_record(run_dir.exit, ExitRecord)
        samples = load_all_lines(run_dir.devices)
    except (OSError, GonogoError) as error:
        return dict.fromkeys(devices, f"{run_dir.path.name}: {error}")
    if record is None:
        return dict.fromkeys(devices, f"{run_dir.path.name} left no exit.json")
    if not (record.reason in _WELL or CLASS_OF[record.reason] in _WELL_CLASSES):
        return dict.fromkeys(devices, f"{run_dir.path.name} ended as {record.reason}")
    told = [row for line in samples if b"xids" in line and (row := parse_sample(line)) is not None]
    return {row.uuid: f"it told Xid {row.xids}" for row in told if row.xids and row.uuid in devices}


def _finding(line: bytes) -> Finding | None:
    try:
        return Finding.model_validate_json(line)
    except ValidationError:
        return None


def _held(text: str) -> tuple[str, int]:
    """Return device and descriptor of `UUID=FD`."""
    name, _, descriptor = text.rpartition("=")
    return name, int(descriptor)


def main(argv: Sequence[str]) -> int:
    """Let go of every device, free or quarantined."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.devices.drained")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node", type=int, default=0, metavar="K")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--held", type=_held, action="append", default=[], metavar="UUID=FD")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    asked = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    held: dict[str, int] = dict(asked.held)
    run_dir = RunDir(asked.run_dir.absolute())
    limit_s: float = asked.limit_s
    records = Records(asked.home)
    try:
        order, faulty = _look(run_dir, asked.node, limit_s)
    except (OSError, Corrupt) as error:
        for device in held:
            text = f"nobody could look whether it is free after {run_dir.path.name}: {error}"
            records.quarantine(device, text)
        records.settle(held)
        return 0
    if order is not None and not may_use_gpus(order):
        return 0
    for device, why in shaken(run_dir, tuple(held)).items():
        records.disprove(device, why)
    devices = None if order is None else _devices_of(order, tuple(held))
    if devices is None or devices.scripted:
        records.settle(held)
        return 0
    text = f"{run_dir.path.name} ended as hardware (see its findings)"
    first = 0 if order is None else asked.node * (order.world_size // order.nodes)
    for device in [name for rank, name in enumerate(held, first) if {rank, None} & faulty]:
        records.quarantine(device, text, until_reboot=True)
    owing = frozenset(filter(records.owes, held))

    def free(device: str) -> None:
        if device not in owing:
            _let_go(held, device)

    draining = Draining(devices.calls, free)
    thread = threading.Thread(target=draining.wait, args=(tuple(held), limit_s), daemon=True)
    thread.start()
    thread.join(limit_s + _HANGS_S)
    for device, said in dict(draining.left).items():
        records.quarantine(device, f"not free {limit_s:g} s after {run_dir.path.name}: {said}")
    records.settle(held)
    sys.stderr.flush()
    os._exit(0)  # a thread inside a dead driver cannot be waited for


def _look(run_dir: RunDir, node: int, limit_s: float) -> tuple[Order | None, set[int | None]]:
    """Return the order of a run, None where there is none, and the ranks whose device ended it.

    That is told by node 0 once every node has ended; another one waits for it, as long as for what
    a device holds.

    Raises:
        Corrupt: its program has made something else of the order.
        OSError: the disk refuses still.
    """
    order = _at_length(partial(load_record, run_dir.order, Order), limit_s)
    if order is not None and not may_use_gpus(order):
        return order, set()
    give_up = time.monotonic() + (limit_s if node else 0.0)
    while time.monotonic() < give_up and not _at_length(partial(is_there, run_dir.exit), limit_s):
        time.sleep(_POLL_S)
    return order, _at_length(partial(faulty_ranks, run_dir), limit_s)


def _let_go(held: dict[str, int], device: str) -> None:
    descriptor = held.pop(device, None)
    if descriptor is not None:
        os.close(descriptor)


def _at_length(look: Callable[[], _T], limit_s: float) -> _T:
    """Return what a look brings; a disk that refuses is asked for so long.

    Raises:
        OSError: it refuses still.
    """
    give_up = time.monotonic() + limit_s
    while True:
        try:
            return look()
        except OSError:
            if time.monotonic() >= give_up:
                raise
            time.sleep(_POLL_S)


def _devices_of(order: Order, held: Sequence[str]) -> RunDevices | None:
    """Return the devices of the run, which has ended."""
    try:
        return choose_devices_of(
            order,
            held,
            script=load_devices_script(),
            elapsed_s=lambda: BEFORE_THE_RUN,
            step=lambda: 0,
        )
    except (GonogoError, DeviceUnreadable) as error:
        _log.error("%s", error, extra={"action": "no_devices"})
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
