"""D24: a device or its driver reports a fault.

A fault of the device halts, because what it computes afterwards is worth nothing. An Xid that a
program's own error causes names the rank and ends nothing. Only throttling by heat or power counts:
a healthy device at full load runs into its power cap all day. Seconds of throttling add up, and
seconds without are subtracted, so a device that is throttled on and off is found.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gonogo.contract.device import DeviceSample, devices_in
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.near import Near
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.view import View, found

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
"""Xid errors that the program causes: these are told, and judged by what the ranks do."""

SLOWDOWNS = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}
)
"""Reasons for throttling that are a fault of the machine (heat, power), in NVML's words."""

SILENT_S = 15.0
"""Samples further apart say nothing about the time between them."""
_ROUNDING_S = 0.1
"""Seconds that were added up may be so many fewer than they are together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """What one device has told so far."""

    mono: float
    """When its last sample was received, or taken where that was here."""
    ecc: int | None = None
    """Uncorrectable errors as last told."""
    read_mono: float = 0.0
    """Of its last sample that said whether it is throttled, by the clock of its host."""
    slowed: bool = False
    """Whether it was, at that sample."""
    slowed_s: float = 0.0
    """Seconds that it was throttled less those that it was not, since `slowed_mono`."""
    slowed_mono: float = 0.0
    """When it began to be throttled."""
    slowdowns: int = 0
    """Times that it began to be throttled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """All devices of the run."""

    devices: dict[str, DeviceHealth] = field(default_factory=dict)
    """UUID → what it has told."""


class Hardware(Detector[Health]):
    """D24 (module docstring)."""

    name = Name.HARDWARE
    sentence = (
        "Halts on an Xid of the hardware (48, 63, 64, 74, 79, 94, 95) or when a device's count of "
        "uncorrectable memory errors grows; warns of a pending row remap, of throttling by heat "
        "or power for over a minute (in one go, or that much longer than not, on and off), and of "
        "an Xid that the program caused (13, 31, 43)."
    )
    State = Health
    ticks = True
    observes = frozenset({"devices"})
    probes = True

    def observe_tick(self, own: Health, tick: Tick, view: View) -> Seen[Health]:
        """Observe the device samples that a tick brings."""
        findings: list[Finding] = []
        for sample in devices_in(tick):
            known = own.devices.get(sample.uuid)
            if sample.rank is None or (known is not None and sample.mono <= known.mono):
                continue
            health, told = _look_at(sample, known, tick, view)
            own = replace(own, devices={**own.devices, sample.uuid: health})
            findings += told
        return own, findings

    def near(self, own: Health, view: View, mono: float) -> Near:
        """Return for how long the device that is throttled most has been throttled."""
        if not own.devices:
            return Near(blind="no device reports samples")
        longest_s = max(row.slowed_s for row in own.devices.values())
        return Near(value=longest_s, limit=self.settings.throttled_s, unit="s")

    def armed(self, own: Health, view: View) -> bool:
        """Return whether any device reports samples."""
        return bool(own.devices)


def _look_at(
    sample: DeviceSample, known: DeviceHealth | None, tick: Tick, view: View
) -> tuple[DeviceHealth, list[Finding]]:
    """Return what is known of a device after one sample, and what it shows."""
    before = known or DeviceHealth(mono=sample.mono)
    health = _slowed(before, sample, view.run.watch.hardware.throttled_s)
    if sample.ecc_uncorrected is not None:
        health = replace(health, ecc=sample.ecc_uncorrected)
    findings = [
        *_xids(sample, tick, view),
        *_errors(sample, before, tick, view),
        *_remaps(sample, tick, view),
        *_throttled(sample, health, tick, view),
    ]
    return replace(health, mono=sample.mono), findings


def _slowed(before: DeviceHealth, sample: DeviceSample, limit_s: float) -> DeviceHealth:
    """Return for how long a device has been throttled, as of a sample.

    Between two samples that differ nobody knows when it changed: neither counts. What is above the
    limit has been told, and is not remembered.
    """
    if sample.throttle is None:
        return before
    slowed = bool(SLOWDOWNS.intersection(sample.throttle))
    passed_s = sample.taken_mono - before.read_mono
    known = 0.0 < passed_s <= SILENT_S  # a host that booted anew begins its clock again
    held_s = min(before.slowed_s, limit_s) if known else 0.0
    if known and slowed == before.slowed:
        held_s = max(0.0, held_s + (passed_s if slowed else -passed_s))
    health = replace(before, read_mono=sample.taken_mono, slowed=slowed, slowed_s=held_s)
    if slowed and not held_s:
        return replace(health, slowed_mono=sample.taken_mono, slowdowns=before.slowdowns + 1)
    return health


def _xids(sample: DeviceSample, tick: Tick, view: View) -> Iterable[Finding]:
    """Tell every kind of Xid once for each device."""
    for xid in sample.xids or ():
        if xid in XIDS:
            severity, meaning = Severity.HALT, XIDS[xid]
        elif xid in PROGRAM_XIDS:
            severity, meaning = Severity.WARN, PROGRAM_XIDS[xid]
        else:
            severity, meaning = Severity.INFO, "see the driver's list of Xid errors"
        yield _finding(
            sample, severity, f"xid{xid}", f"Xid {xid}, {meaning}", tick, view, value=xid
        )


def _errors(
    sample: DeviceSample, before: DeviceHealth, tick: Tick, view: View
) -> Iterable[Finding]:
    """Halt when there are more uncorrectable errors than at the sample before."""
    now, then = sample.ecc_uncorrected, before.ecc
    if now is not None and then is not None and now > then:
        text = f"{now - then} new uncorrectable memory errors"
        yield _finding(sample, Severity.HALT, "ecc", text, tick, view, value=now, threshold=then)


def _remaps(sample: DeviceSample, tick: Tick, view: View) -> Iterable[Finding]:
    if sample.remap_pending:
        text = "a memory row waits to be remapped, which needs a reset"
        yield _finding(sample, Severity.WARN, "remap", text, tick, view)


def _throttled(
    sample: DeviceSample, health: DeviceHealth, tick: Tick, view: View
) -> Iterable[Finding]:
    """Warn once for each time that a device is throttled for too long."""
    limit_s = view.run.watch.hardware.throttled_s
    if not (health.slowed and sample.throttle) or health.slowed_s <= limit_s:
        return
    reasons = ", ".join(sorted(SLOWDOWNS.intersection(sample.throttle)))
    since_s = sample.taken_mono - health.slowed_mono
    on_and_off = "on and off " if since_s - health.slowed_s > _ROUNDING_S else ""
    yield found(
        view,
        Name.HARDWARE,
        Severity.WARN,
        episode=f"{sample.uuid}/throttled{health.slowdowns}",
        at=tick.ts,
        rank=sample.rank,
        step=_step(sample, view),
        value=health.slowed_s,
        threshold=limit_s,
        source=view.run.source("hardware.throttled_s"),
        text=f"{_named(sample)}: throttled {on_and_off}for {since_s:.0f} s ({reasons})",
    )


def _finding(
    sample: DeviceSample,
    severity: Severity,
    episode: str,
    text: str,
    tick: Tick,
    view: View,
    *,
    value: float | None = None,
    threshold: float | None = None,
) -> Finding:
    return found(
        view,
        Name.HARDWARE,
        severity,
        episode=f"{sample.uuid}/{episode}",
        at=tick.ts,
        rank=sample.rank,
        step=_step(sample, view),
        value=value,
        threshold=threshold,
        since=sample.ts,
        text=f"{_named(sample)}: {text}",
    )


def _step(sample: DeviceSample, view: View) -> int | None:
    """Return the step that the device's rank was in."""
    stream = None if sample.rank is None else view.streams.get(sample.rank)
    return None if stream is None else stream.step


def _named(sample: DeviceSample) -> str:
    return f"rank {sample.rank}, device {sample.uuid}"
