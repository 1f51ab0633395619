"""What devices report: D24 hardware (faults of a device or its driver), D14 imbalance (their use).

A fault of the device halts, because what it computes afterwards is worth nothing. An Xid that a
program's own error causes names the rank and ends nothing. Only throttling by heat or power counts:
a healthy device at full load runs into its power cap all day.

Not covered: a device that is throttled on and off, or that reports no utilisation.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gonogo.contract.finding import Finding, Near, Severity
from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS
from gonogo.contract.observation import DeviceSample, devices_in
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.plan import hardware_profiles
from gonogo.contract.records import Tick
from gonogo.watch.detector import NOTHING_YET, Detector, Seen, replace
from gonogo.watch.view import View

XIDS = {
    48: "an uncorrectable memory error",
    63: "a memory row was remapped",
    64: "a memory row could not be remapped",
    74: "an NVLink error",
    79: "the device has fallen off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
}
"""Xid errors of the hardware: these halt."""

PROGRAM_XIDS = {
    13: "a fault in a kernel of the program",
    31: "an illegal memory access of the program",
    43: "the program's own fault ended its work on the device",
}
"""Xid errors that the program causes: these warn, and what the ranks do is judged."""

SLOWDOWNS = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}
)
"""Reasons for throttling that are a fault of the machine (heat, power), in NVML's words."""

SILENT_S = 15.0
"""Samples further apart say nothing about the time between them."""


@dataclass(frozen=True, kw_only=True)
class DeviceHealth:
    """What one device has reported so far."""

    mono: float = -math.inf
    """When its last sample was received, or taken where that was here."""
    ecc: int | None = None
    read_mono: float = 0.0
    """Its last sample that reports whether it is throttled, by the clock of its host."""
    since_mono: float | None = None
    """Since when it has been throttled, by the same clock."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """All devices of the run."""

    devices: dict[str, DeviceHealth] = field(default_factory=dict)


class Hardware(Detector[Health]):
    name = Name.HARDWARE
    sentence = (
        "Halts on an Xid of the hardware (48, 63, 64, 74, 79, 94, 95) or when a device's count of "
        "uncorrectable memory errors grows. Warns of a pending row remap, of throttling by heat "
        "or power for over a minute, and of an Xid that the program caused (13, 31, 43)."
    )
    State = Health
    armed_by = "devices"
    ticks = True
    observes = frozenset({"devices"})
    probes = True
    blind = "no device reports samples"

    def observe_tick(self, own: Health, tick: Tick, view: View) -> Seen[Health]:
        findings: list[Finding] = []
        for sample in devices_in(tick):
            known, taken_mono = own.devices.get(sample.uuid) or DeviceHealth(), sample.taken_mono
            if sample.rank is None or sample.mono <= known.mono:
                continue
            read_mono, since_mono, ecc = known.read_mono, known.since_mono, sample.ecc_uncorrected
            if sample.throttle is not None:
                continues = 0.0 < taken_mono - read_mono <= SILENT_S and since_mono is not None
                slowed, read_mono = SLOWDOWNS.intersection(sample.throttle), taken_mono
                since_mono = None if not slowed else since_mono if continues else taken_mono
            health = DeviceHealth(
                mono=sample.mono,
                ecc=known.ecc if ecc is None else ecc,
                read_mono=read_mono,
                since_mono=since_mono,
            )
            own = replace(own, devices={**own.devices, sample.uuid: health})
            findings += self._looked(sample, known, health, tick, view)
        return own, findings

    def _looked(
        self, sample: DeviceSample, known: DeviceHealth, health: DeviceHealth, tick: Tick,
        view: View,
    ) -> Iterator[Finding]:  # fmt: skip
        """Yield what a sample shows."""
        for xid in sample.xids or ():
            severity, meaning = Severity.INFO, "see the driver's list of Xid errors"
            if xid in XIDS:
                severity, meaning = Severity.HALT, XIDS[xid]
            elif xid in PROGRAM_XIDS:
                severity, meaning = Severity.WARN, PROGRAM_XIDS[xid]
            text = f"Xid {xid}, {meaning}"
            yield self._found(sample, severity, f"xid{xid}", text, tick, view, value=xid)
        now, then = sample.ecc_uncorrected, known.ecc
        if now is not None and then is not None and now > then:
            text, halt = f"{now - then} new uncorrectable memory errors", Severity.HALT
            yield self._found(sample, halt, "ecc", text, tick, view, value=now, threshold=then)
        if sample.remap_pending:
            text = "a memory row waits to be remapped, which needs a reset"
            yield self._found(sample, Severity.WARN, "remap", text, tick, view)
        since_mono = health.since_mono
        throttled_s = 0.0 if since_mono is None else sample.taken_mono - since_mono
        if throttled_s > self.settings.throttled_s:
            reasons = ", ".join(sorted(SLOWDOWNS.intersection(sample.throttle or ())))
            text = f"throttled for {throttled_s:.0f} s ({reasons})"
            yield self._found(
                sample, Severity.WARN, "throttled", text, tick, view,
                value=throttled_s, setting="throttled_s",
            )  # fmt: skip

    def _found(
        self, sample: DeviceSample, severity: Severity, episode: str, text: str, tick: Tick,
        view: View, **fields: Any,
    ) -> Finding:  # fmt: skip
        """Return a finding about the device of a sample, at the step that its rank was in."""
        rank, uuid = sample.rank, sample.uuid
        stream = None if rank is None else view.streams.get(rank)
        step = None if stream is None else stream.step
        return self.finding(
            tick, view, severity, f"{uuid}/{episode}", f"rank {rank}, device {uuid}: {text}",
            rank=rank, step=step, since=sample.ts, **fields,
        )  # fmt: skip

    def measure(self, own: Health, view: View, mono: float) -> Near:
        rows = own.devices.values()
        times_s = (row.read_mono - row.since_mono for row in rows if row.since_mono is not None)
        return Near(value=max(times_s, default=0.0), limit=self.settings.throttled_s, unit="s")


class Usage(NamedTuple):
    """How busy one device was."""

    rank: int
    total: float
    """Sum of its readings in percent."""
    samples: int

    @property
    def mean(self) -> float:
        """Mean utilisation in percent."""
        return self.total / self.samples


@dataclass(frozen=True, kw_only=True)
class Usages:
    """How busy the devices of the run have been since the averaging began."""

    looked_mono: float | None = None
    """Watcher's clock of the last samples, if the run trained then."""
    trained_s: float = 0.0
    devices: Mapping[str, Usage] = field(default_factory=dict)
    told: bool = False


class Imbalance(Detector[Usages]):
    """D14: the samples of `over_s` seconds of training are averaged.

    Utilisation is no sign of progress: a rank that waits for its peers shows 100 %.
    """

    name = Name.IMBALANCE
    sentence = (
        "Warns when the devices' utilisation, averaged over two minutes of training, is unequal "
        "(lowest to highest below 0.8) or low (below 80 %)."
    )
    State = Usages
    armed_by = "told"
    ticks = True
    observes = frozenset({"devices"})
    probes = True

    def observe_tick(self, own: Usages, tick: Tick, view: View) -> Seen[Usages]:
        samples, devices = devices_in(tick), dict(own.devices)
        if not samples:
            return own, []
        told = own.told or any(sample.util is not None for sample in samples)
        if not _trains(view):
            return replace(own, looked_mono=None, told=told), []
        for sample in samples:
            if sample.rank is not None and sample.util is not None:
                _, total, count = devices.get(sample.uuid, (0, 0.0, 0))
                devices[sample.uuid] = Usage(sample.rank, total + sample.util, count + 1)
        since_s = 0.0 if own.looked_mono is None else tick.mono - own.looked_mono
        trained_s = own.trained_s + (since_s if since_s <= SILENT_S else 0.0)
        own = Usages(looked_mono=tick.mono, trained_s=trained_s, devices=devices, told=told)
        if trained_s < self.settings.over_s or not devices:
            return own, []
        return replace(own, trained_s=0.0, devices={}), self._judged(own, tick, view)

    def _judged(self, own: Usages, tick: Tick, view: View) -> list[Finding]:
        """Look at the averages; name a device that differs from the others."""
        settings, devices = self.settings, own.devices
        uuid = min(devices, key=lambda name: (devices[name].mean, devices[name].rank))
        low, high = devices[uuid].mean, max(row.mean for row in devices.values())
        if low < settings.ratio * high:
            broken, value = "ratio", low / high
        elif low < settings.least_util:
            broken, value = "least_util", low
        else:
            return []
        rank: int | None = devices[uuid].rank
        text = f"rank {rank}, device {uuid}: used only {low:.0f} %, the busiest {high:.0f} %"
        if len(devices) > 1 and high < settings.least_util and broken == "least_util":
            rank, text = None, f"the devices are used only {low:.0f} to {high:.0f} %"
        step = max((stream.step for stream in view.streams.values()), default=None)
        text = f"{text}, averaged over {settings.over_s:g} s"
        return [
            self.finding(
                tick, view, Severity.WARN, broken, text,
                setting=broken, rank=rank, step=step, value=value,
            )
        ]  # fmt: skip

    def measure(self, own: Usages, view: View, mono: float) -> Near:
        if not own.devices:
            return Near(blind=NOTHING_YET)
        low = min(row.mean for row in own.devices.values())
        return Near(value=low, limit=self.settings.least_util, unit="%", below=True)

    def missing(self, own: Usages, view: View) -> str | None:
        profile = hardware_profiles().get(view.run.order.profile)
        if profile is None or not profile.has_devices or own.told:
            return None
        return "no device reports how busy it is"


def _trains(view: View) -> bool:
    """Whether every rank has ended a step and is neither done nor in checkpoint or evaluation."""
    streams = view.streams.values()
    return len(streams) == view.run.order.world_size and all(
        stream.completed_steps > 0
        and not stream.done
        and stream.section not in NON_TRAINING_SECTIONS
        for stream in streams
    )


class DeviceRow(NamedTuple):
    """One sample of one rank's device."""

    rank: int
    mono: float
    """Clock of the sample, seconds of the host's monotonic clock."""
    uuid: str
    util: float | None
    """Percent."""
    mem_used_mb: float | None
    """MB, held by any process."""
    own_mono: float | None = None
    """Clock of the device's own host, where `mono` is that of another's receipt."""


@dataclass(slots=True)
class DeviceRows:
    """The samples of all ticks in one array, because long runs bring a million.

    NaN stands for unknown. Ticks are chained and devices.jsonl is not, so what is judged comes from
    the ticks. A sample that names no rank is left out. A reading that cannot be (102 % busy, less
    than no memory) is unknown.
    """

    _numbers: "array[float]" = field(default_factory=lambda: array("d"))
    _uuids: dict[str, int] = field(default_factory=dict)

    def take(self, samples: Iterable[DeviceSample]) -> None:
        """Take the samples of one tick."""
        for row in samples:
            util, memory_mb = row.util, row.mem_used_mb
            util = util if util is not None and 0 <= util <= 100.0 else math.nan
            memory_mb = memory_mb if memory_mb is not None and memory_mb >= 0 else math.nan
            if row.rank is None or (math.isnan(util) and math.isnan(memory_mb)):
                continue
            uuid = self._uuids.setdefault(row.uuid, len(self._uuids))
            own_mono = math.nan if row.own_mono is None else row.own_mono
            self._numbers.extend((row.rank, row.mono, uuid, util, memory_mb, own_mono))

    def __iter__(self) -> Iterator[DeviceRow]:
        uuids, width = list(self._uuids), len(DeviceRow._fields)
        for at in range(0, len(self._numbers), width):
            rank, mono, uuid, *numbers = self._numbers[at : at + width]
            known = (None if math.isnan(number) else number for number in numbers)
            yield DeviceRow(int(rank), mono, uuids[int(uuid)], *known)
