"""Sample the devices of a running run: one line a device and sample in devices.jsonl.

`python -m gonogo.supervise.devices.sampler RUNDIR [--node K] [--held GPU-… …]` is a child of the
keeper and ends with it. It may hang or die without harm to the run; the keeper starts it again.
A line is written every `EVERY_S`, or more often if the plan's rules average over less than 20 s. A
new Xid, error or reason for throttling is written at once (for scripted devices: any new reading).

A line is one write, without fsync. Lines that a full disk refuses are counted, and their Xids are
repeated in the next line. Each round gives the keeper a sign of life.
On several nodes each has a sampler, and node 0's copies the lines of the others (`samples`).

Exit codes: 0 the run has no devices · 2 bad order or settings.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gonogo.contract.canonical import wire_line
from gonogo.contract.errors import GonogoError
from gonogo.contract.observation import DeviceReadings, DeviceSample
from gonogo.contract.order import Order
from gonogo.files import append_line
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.devices.choice import RunDevices, choose_devices_of
from gonogo.supervise.devices.device import Device, DeviceUnreadable
from gonogo.supervise.devices.device_script import reached_step
from gonogo.supervise.devices.samples import OtherNodes
from gonogo.supervise.durable import load_json
from gonogo.supervise.launch.nodes import NoPlace, Place
from gonogo.supervise.processes import LifeSigns, die_with_parent
from gonogo.supervise.settings import load_devices_script

EVERY_S = 5.0
LEAST_S = 0.25
LINES_A_RULE = 4
"""Least number of lines a device within the shortest time over which a rule averages."""
POLL_S = 1.0
POLL_SCRIPTED_S = 0.1
_EVENTS = ("throttle", "ecc_uncorrected", "remap_pending", "nvlink_errors")

_log = logging.getLogger("gonogo.supervise.devices.sampler")


class Sampler:
    """Samples the devices of one run, or of one node's part of it.

    Args:
        others: samples of the other nodes, on node 0.
        every_s: longest time between two lines of a device.
    """

    def __init__(
        self,
        run_dir: RunDir,
        devices: RunDevices,
        place: Place,
        others: OtherNodes,
        *,
        every_s: float = EVERY_S,
        signs: LifeSigns | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = run_dir.path / place.own("devices.jsonl")
        self._signs = signs or LifeSigns()
        self._devices, self._place, self._others = devices, place, others
        self._every_s, self._clock, self._wall = every_s, clock, wall
        self._found: dict[int, Device] | None = None
        self._last: dict[str, tuple[float, DeviceReadings]] = {}
        self._unwritten_xids: dict[str, list[int]] = {}
        self.unwritten = 0
        """Lines that the disk refused."""

    def poll(self) -> int:
        """Ask every device once and write what is due; returns the lines written."""
        written = 0
        for rank, device in self._ranks().items():
            readings, now = self._read(device), self._clock()
            if self._is_due(device.uuid, readings, now) and self._write(
                rank, device, readings, now
            ):
                written += 1
                self._last[device.uuid] = (now, readings)
                self._unwritten_xids.pop(device.uuid, None)
        self._others.look()
        waiting = self._others.waiting
        while waiting:  # copied from the other nodes
            clocks = {"mono": self._clock(), "own_mono": waiting[0].mono}
            if not self._put(waiting[0].model_copy(update=clocks)):
                break
            waiting.pop(0)
            written += 1
        self._signs.give(self._clock())
        return written

    def _ranks(self) -> dict[int, Device]:
        """Return rank → device; asked again until the driver answers."""
        if not self._found:
            try:
                self._found = self._devices.by_rank(self._place.ranks)
            except DeviceUnreadable as error:
                if self._found is None:
                    _log.warning("no devices: %s", error, extra={"action": "no_devices"})
                self._found = {}
        return self._found

    def _read(self, device: Device) -> DeviceReadings:
        """Return a device's readings, with the Xids that are in no line yet."""
        readings = self._devices.calls.read(device)
        xids = [*self._unwritten_xids.get(device.uuid, ()), *(readings.xids or ())]
        if not xids:
            return readings
        self._unwritten_xids[device.uuid] = xids
        return readings.model_copy(update={"xids": xids})

    def _is_due(self, uuid: str, readings: DeviceReadings, now: float) -> bool:
        if uuid not in self._last or readings.xids:
            return True
        at, before = self._last[uuid]
        if now - at >= self._every_s:
            return True
        if self._devices.scripted:
            return readings.model_copy(update={"xids": before.xids}) != before
        return any(getattr(readings, name) != getattr(before, name) for name in _EVENTS)

    def _write(self, rank: int, device: Device, readings: DeviceReadings, now: float) -> bool:
        sample = DeviceSample(
            ts=self._wall(),
            mono=now,
            uuid=device.uuid,
            index=device.index,
            rank=rank,
            **readings.model_dump(),
        )
        return self._put(sample)

    def _put(self, sample: DeviceSample) -> bool:
        """Write a line; False if the disk refuses it."""
        document = sample.wire()
        if sample.own_mono is None:
            del document["own_mono"]  # only in lines of other nodes
        try:
            append_line(self._path, wire_line(document))
        except OSError as error:
            self.unwritten += 1
            if self.unwritten == 1:
                _log.warning("devices.jsonl: %s", error, extra={"action": "unwritten"})
            return False
        return True


def main(argv: Sequence[str]) -> int:
    """Sample until the keeper dies."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.devices.sampler")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node", type=int, default=0, metavar="K")
    parser.add_argument("--held", action="append", default=[], metavar="SLOT")
    parser.add_argument("--signs", type=int, default=None, metavar="FD")
    asked = parser.parse_args(argv)
    die_with_parent()
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    run_dir = RunDir(asked.run_dir.absolute())
    try:
        order = load_record(run_dir.order, Order)
        script = load_devices_script()
    except GonogoError as error:
        _log.error("%s", error, extra={"action": "bad_order"})
        return 2
    if order is None:
        return 2
    try:
        place = Place.of(order.document(), asked.node)
        devices = choose_devices_of(
            order,
            asked.held,
            script=script,
            elapsed_s=_since_start(run_dir),
            step=lambda: reached_step(run_dir),
        )
    except (DeviceUnreadable, NoPlace) as error:
        _log.error("%s", error, extra={"action": "no_devices"})
        return 2
    if devices is None:
        return 0
    every_s = cadence_s(order)
    others = OtherNodes(run_dir, order, place)
    sampler = Sampler(
        run_dir, devices, place, others, every_s=every_s, signs=LifeSigns(asked.signs)
    )
    poll_s = POLL_SCRIPTED_S if devices.scripted else min(POLL_S, every_s)
    while True:
        sampler.poll()
        time.sleep(poll_s)


def cadence_s(order: Order) -> float:
    """Return the longest time between two lines of a device, in seconds."""
    watch = order.watch
    shortest_s = min(watch.imbalance.over_s, watch.hardware.throttled_s)
    return max(LEAST_S, min(EVERY_S, shortest_s / LINES_A_RULE))


def _since_start(run_dir: RunDir) -> Callable[[], float]:
    """Return a clock of seconds since the keeper started."""
    keeper = load_json(run_dir.path / "keeper.json") or {}
    began = keeper.get("started_at")
    since = float(began) if isinstance(began, int | float) else time.time()
    return lambda: max(0.0, time.time() - since)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
