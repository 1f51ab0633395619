"""What do a run's devices say while it lives? One line a device and sample in devices.jsonl.

`python -m gonogo.supervise.devices.sampler RUNDIR [--node K] [--held GPU-… …]`, a child of the
keeper and of nobody else: it may hang, die or be stopped without any harm to the run, and is
started again. It ends with its keeper. A line is written every `EVERY_S` (more often where the
plan's rules average over less than 20 s) and whenever a device reports something new: an Xid, an
error, another reason for throttling (for scripted devices: any new reading).

Guarantees: a line is one write; what could not be written (a full disk) is counted, and its Xids
are told again with the next line; every line has a later `mono` than those before it. Each round
touches `.sampler`, so that the keeper sees one that hangs. Not guaranteed: durability (no fsync).

Of a run on several nodes each has a sampler, and node 0's takes over what the others write
(`relay`), also while a call of its own driver hangs: a thread does, where the host has one to give.

Exit codes: 0 the run has no devices · 2 bad order or settings.
"""

import argparse
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gonogo.contract.canonical import wire_line
from gonogo.contract.device import DeviceReadings, DeviceSample
from gonogo.contract.errors import GonogoError
from gonogo.contract.order import Order
from gonogo.files import append_plain
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.devices.choice import RunDevices, choose_devices_of
from gonogo.supervise.devices.protocol import Device, DeviceUnreadable, read_device
from gonogo.supervise.devices.relay import Relay, build_relay
from gonogo.supervise.devices.scripted import reached_step
from gonogo.supervise.durable import load_json
from gonogo.supervise.launch.place import NoPlace, Place
from gonogo.supervise.processes import die_with_parent
from gonogo.supervise.settings import load_devices_script
from gonogo.supervise.threads import start_thread

EVERY_S = 5.0
LEAST_S = 0.25
LINES_A_RULE = 4
"""Lines that a rule of the watchdog gets of each device at least, in the time it looks at."""
POLL_S = 1.0
POLL_SCRIPTED_S = 0.1
ALIVE_NAME = ".sampler"
_EVENTS = ("throttle", "ecc_uncorrected", "remap_pending", "nvlink_errors")

_log = logging.getLogger("gonogo.supervise.devices.sampler")


class Sampler:
    """Samples the devices of one run, or of one node's part of it.

    Args:
        run_dir: where devices.jsonl is written.
        devices: the run's devices.
        place: whose ranks they are.
        relay: what the other nodes say, on node 0 of several.
        every_s: longest time between two lines of a device.
        clock: returns monotonic seconds.
        wall: returns Unix seconds.
    """

    def __init__(
        self,
        run_dir: RunDir,
        devices: RunDevices,
        place: Place,
        relay: Relay,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = run_dir.path / place.own("devices.jsonl")
        self._alive = run_dir.path / place.own(ALIVE_NAME)
        self._devices, self._place, self._relay = devices, place, relay
        self._every_s, self._clock, self._wall = every_s, clock, wall
        self._found: dict[int, Device] | None = None
        self._last: dict[str, tuple[float, DeviceReadings]] = {}
        self._owed: dict[str, list[int]] = {}
        self._writing = threading.Lock()
        """Of whoever stamps lines and writes them: each has a later `mono` than those before."""
        self.unwritten = 0
        """Lines that the disk did not take."""

    def poll(self) -> int:
        """Ask every device once and write what is due; returns the lines written."""
        written = 0
        for rank, device in self._ranks().items():
            readings = self._read(device)
            with self._writing:
                now = self._clock()
                if self._is_due(device.uuid, readings, now) and self._write(
                    rank, device, readings, now
                ):
                    written += 1
                    self._last[device.uuid] = (now, readings)
                    self._owed.pop(device.uuid, None)
        written += self.take_over()
        self._tell_alive()
        return written

    def take_over(self) -> int:
        """Write what the other nodes' samplers have told since; returns the lines written."""
        written = 0
        with self._writing:
            self._relay.look()
            while self._relay.waiting and self._put(self._stamped(self._relay.waiting[0])):
                self._relay.waiting.pop(0)
                written += 1
        return written

    def _stamped(self, sample: DeviceSample) -> DeviceSample:
        """Return another node's sample with the clock of its receipt beside its own."""
        return sample.model_copy(update={"mono": self._clock(), "own_mono": sample.mono})

    def _ranks(self) -> dict[int, Device]:
        """Return rank → device; asked again until somebody says which there are."""
        if not self._found:
            try:
                self._found = self._devices.by_rank(self._place.ranks)
            except DeviceUnreadable as error:
                if self._found is None:
                    _log.warning("no devices: %s", error, extra={"action": "no_devices"})
                self._found = {}
        return self._found

    def _read(self, device: Device) -> DeviceReadings:
        """Return a device's readings, with the Xids that no line has told yet."""
        readings = read_device(self._devices.calls, device)
        owed = self._owed.get(device.uuid)
        if owed or readings.xids:
            told = [*(owed or ()), *(readings.xids or ())]
            self._owed[device.uuid] = told
            return readings.model_copy(update={"xids": told})
        return readings

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
        """Write a line; False where the disk does not take it."""
        document = sample.wire()
        if sample.own_mono is None:
            del document["own_mono"]  # only a line that was taken over has it
        try:
            with append_plain(self._path) as stream:
                _write_whole(stream.fileno(), wire_line(document))
        except OSError as error:
            self.unwritten += 1
            if self.unwritten == 1:
                _log.warning("devices.jsonl: %s", error, extra={"action": "unwritten"})
            return False
        return True

    def _tell_alive(self) -> None:
        """Touch a file that needs no room once it is there."""
        try:
            self._alive.touch()
        except OSError as error:
            _log.debug("%s: %s", self._alive.name, error)


def _write_whole(descriptor: int, line: bytes) -> None:
    """Append a line in one write; of one that a full disk cut short nothing stays.

    What a sampler that was killed left of a line gets a line of its own, which is no sample.

    Raises:
        OSError: the disk did not take it.
    """
    end = os.lseek(descriptor, 0, os.SEEK_END)
    if end and os.pread(descriptor, 1, end - 1) != b"\n":
        line = b"\n" + line
    if os.write(descriptor, line) < len(line):
        os.ftruncate(descriptor, end)
        raise OSError("no room for a whole line")


def main(argv: Sequence[str]) -> int:
    """Sample until the keeper dies; see the module's text for the exit codes."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.devices.sampler")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node", type=int, default=0, metavar="K")
    parser.add_argument("--held", action="append", default=[], metavar="SLOT")
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
    relay = build_relay(run_dir, order, place)
    sampler = Sampler(run_dir, devices, place, relay, every_s=every_s)
    poll_s = POLL_SCRIPTED_S if devices.scripted else min(POLL_S, every_s)
    if relay.nodes:
        start_taking_over(sampler, poll_s)
    while True:
        sampler.poll()
        time.sleep(poll_s)


def start_taking_over(sampler: Sampler, every_s: float) -> None:
    """Take over what other nodes tell beside the rounds; without a thread, in them alone."""

    def go_on() -> None:
        while True:
            sampler.take_over()
            time.sleep(every_s)

    try:
        start_thread(go_on, "relay")
    except OSError as error:
        _log.warning("%s", error, extra={"action": "no_thread"})


def cadence_s(order: Order) -> float:
    """Return the longest time between two lines of a device, in seconds."""
    watch = order.watch
    shortest_s = min(watch.imbalance.over_s, watch.hardware.throttled_s)
    return max(LEAST_S, min(EVERY_S, shortest_s / LINES_A_RULE))


def _since_start(run_dir: RunDir) -> Callable[[], float]:
    """Return a clock of seconds since the keeper started, the same for every sampler of a run."""
    keeper = load_json(run_dir.path / "keeper.json") or {}
    began = keeper.get("started_at")
    since = float(began) if isinstance(began, int | float) else time.time()
    return lambda: max(0.0, time.time() - since)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
