"""Samples of an accelerator, and the script that replaces devices in tests.

A null value is unknown: it never passes and never halts.
"""

import hashlib

from pydantic import Field, ValidationError

from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.heartbeat import Count, Finite
from gonogo.contract.tick import Tick
from gonogo.contract.wire import Recorded, Submitted


class DeviceReadings(Recorded):
    """Readings of one device."""

    util: Finite | None = None
    """Percent of the time in which a kernel ran."""
    mem_used_mb: Finite | None = None
    mem_total_mb: Finite | None = None
    sm_clock_mhz: Finite | None = None
    power_w: Finite | None = None
    temp_c: Finite | None = None
    throttle: list[str] | None = None
    ecc_uncorrected: Count | None = None
    remap_pending: bool | None = None
    nvlink_errors: Count | None = None
    xids: list[Count] | None = None


class DeviceSample(DeviceReadings):
    """One line of devices.jsonl."""

    v: Count = 1
    ts: Finite
    mono: Finite
    own_mono: Finite | None = None
    """Monotonic clock of the device's host, if the watcher runs on another."""
    uuid: str
    index: Count | None = None
    rank: Count | None = None

    @property
    def taken_mono(self) -> float:
        """Monotonic clock of the device's host."""
        return self.mono if self.own_mono is None else self.own_mono

    def digest(self) -> bytes:
        """Return the SHA-256 of the sample in canonical form, without unknown values."""
        document = self.model_dump(mode="json", exclude_none=True)
        return hashlib.sha256(canonical_bytes(document)).digest()


def devices_in(tick: Tick) -> list[DeviceSample]:
    """Return the device samples in a tick, oldest first."""
    payload = tick.observations.get("devices")
    rows = payload if isinstance(payload, list) else []
    found = [sample for row in rows if (sample := _sample(row)) is not None]
    return sorted(found, key=lambda sample: sample.mono)


def _sample(row: object) -> DeviceSample | None:
    try:
        return DeviceSample.model_validate(row)
    except ValidationError:
        return None


class ScriptedDevice(Submitted):
    """A device of a script."""

    uuid: str
    index: Count
    name: str = "scripted"
    mem_total_mb: Finite = 81_920.0


class ScriptedSample(DeviceReadings):
    """Readings that hold until the next sample of the same device."""

    at_s: Finite | None = None
    at_step: Count | None = None
    uuid: str


class DevicesScript(Submitted):
    """The file that GONOGO_DEVICES_SCRIPT names."""

    devices: list[ScriptedDevice]
    samples: list[ScriptedSample] = Field(default_factory=list)
