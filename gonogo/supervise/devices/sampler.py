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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gonogo.contract.canonical import wire_line
from gonogo.contract.errors import GonogoError
from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.observation import DeviceReadings, DeviceSample
from gonogo.contract.order import Order
from gonogo.files import append_line
from gonogo.rundir import RunDir, load_lines, load_record
from gonogo.supervise.devices.choice import RunDevices, choose_devices_of
from gonogo.supervise.devices.device import Device, DeviceUnreadable, reached_step
from gonogo.supervise.durable import load_json
from gonogo.supervise.launch.nodes import NoPlace, Place
from gonogo.supervise.processes import LifeSigns, die_with_parent
from gonogo.supervise.settings import load_devices_script

LOOK_BYTES = 2 * MAX_LINE_BYTES
"""Bounds the line of watch.jsonl that a tick becomes."""


class DeviceLines:
    """The source `devices` of the watcher: samples that the sampler wrote."""

    kind = "devices"
    every_s = 0.0

    def __init__(self, run_dir: RunDir) -> None:
        self._path = run_dir.devices
        self._offset = 0
        self._after = float("-inf")

    def look(self, now: float) -> list[dict[str, Any]] | None:
        """Return the new samples, oldest first; None when there is none."""
        part = load_lines(self._path, self._offset, self._offset + LOOK_BYTES)
        self._offset = part.offset
        parsed = filter(None, map(parse_sample, part.lines))
        new = [sample for sample in parsed if sample.mono > self._after]
        if not new:
            return None
        self._after = max(sample.mono for sample in new)
        return [sample.model_dump(mode="json", exclude_none=True) for sample in new]

    def resume(self, payload: Any) -> None:
        """Leave out the samples of a recorded payload, and all before them."""
        rows = payload if isinstance(payload, list) else []
        clocks = [row.get("mono") for row in rows if isinstance(row, dict)]
        self._after = max(
            (float(mono) for mono in clocks if isinstance(mono, int | float)), default=self._after
        )
        try:
            self._offset = _offset_behind(self._path, self._after)
        except OSError as error:
            _log.warning("devices.jsonl: %s", error, extra={"action": "unobserved"})


def parse_sample(line: bytes) -> DeviceSample | None:
    """Return the sample on one line, or None."""
    try:
        return DeviceSample.model_validate_json(line)
    except ValidationError:
        return None


def _offset_behind(path: Path, mono: float) -> int:
    """Return an offset behind which all samples later than `mono` lie."""
    behind = 0
    for offset, samples in _parts(path):
        if samples and samples[-1].mono > mono:
            break
        behind = offset
    return behind


def _parts(path: Path) -> Iterator[tuple[int, list[DeviceSample]]]:
    """Yield the samples of a file, part by part, and where each part ends."""
    offset = 0
    while (part := load_lines(path, offset)).lines:
        offset = part.offset
        yield offset, list(filter(None, map(parse_sample, part.lines)))


@dataclass(slots=True)
class _Node:
    """How far the file of one node was read."""

    path: Path
    ranks: range
    offset: int = 0
    after: float = float("-inf")
    """The node's `mono` of the last sample that was copied."""


class OtherNodes:
    """The new samples of the other nodes, for node 0; a node without a file has none."""

    def __init__(self, run_dir: RunDir, order: Order, place: Place) -> None:
        numbers = range(1, place.nodes) if place.leads else ()
        places = [Place.of(order.document(), node) for node in numbers]
        self._nodes = [_Node(run_dir.path / row.own("devices.jsonl"), row.ranks) for row in places]
        self.waiting: list[DeviceSample] = []
        """Read and not yet written; oldest first."""
        if self._nodes:
            self._skip_copied(run_dir.devices)

    def look(self) -> None:
        """Read what is new, once everything that was read before is written."""
        if self.waiting:
            return
        for node in self._nodes:
            try:
                part = load_lines(node.path, node.offset, node.offset + LOOK_BYTES)
            except OSError as error:
                _log.debug("%s: %s", node.path.name, error)
                continue
            node.offset = part.offset
            for sample in filter(None, map(parse_sample, part.lines)):
                if sample.rank in node.ranks and sample.mono > node.after:
                    self.waiting.append(sample)

    def _skip_copied(self, copied: Path) -> None:
        """Leave out what a sampler before this one has copied."""
        try:
            for sample in (row for _, samples in _parts(copied) for row in samples):
                for node in self._nodes:
                    if sample.rank in node.ranks and sample.own_mono is not None:
                        node.after = max(node.after, sample.own_mono)
        except OSError as error:
            _log.warning("%s: %s", copied.name, error, extra={"action": "unobserved"})


EVERY_S = 5.0
LEAST_S = 0.25
LINES_A_RULE = 4
"""Least number of lines a device within the shortest time over which a rule averages."""
POLL_S = 1.0
POLL_SCRIPTED_S = 0.1
_EVENTS = ("throttle", "ecc_uncorrected", "remap_pending")

_log = logging.getLogger("gonogo.supervise.devices.sampler")


class Sampler:
    """Samples the devices of one run, or of one node's part of it."""

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
        self._refused = False

    def poll(self) -> int:
        """Ask every device once and write what is due; returns the lines written."""
        written = 0
        for rank, device in self._ranks().items():
            readings, now = self._read(device), self._clock()
            if not self._is_due(device.uuid, readings, now):
                continue
            sample = DeviceSample(
                ts=self._wall(),
                mono=now,
                uuid=device.uuid,
                index=device.index,
                rank=rank,
                **readings.model_dump(),
            )
            if self._put(sample):
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

    def _put(self, sample: DeviceSample) -> bool:
        """Write a line; False if the disk refuses it."""
        document = sample.wire()
        if sample.own_mono is None:
            del document["own_mono"]  # only in lines of other nodes
        try:
            append_line(self._path, wire_line(document))
        except OSError as error:
            if not self._refused:
                self._refused = True
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
            step=partial(reached_step, run_dir),
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
