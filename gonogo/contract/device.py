"""What does an accelerator say about itself? One sample, and the script that stands for devices.

Every value may be null: a field that could not be read is unknown, and unknown never passes and
never halts.
"""

import hashlib

from pydantic import Field, ValidationError

from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.heartbeat import Count, Finite
from gonogo.contract.tick import Tick
from gonogo.contract.wire import Recorded, Submitted


class DeviceReadings(Recorded):
    """What is read of one device; null where it could not be."""

    util: Finite | None = None
    """Share of the last sample period in which a kernel ran, percent."""
    mem_used_mb: Finite | None = None
    mem_total_mb: Finite | None = None
    sm_clock_mhz: Finite | None = None
    power_w: Finite | None = None
    temp_c: Finite | None = None
    throttle: list[str] | None = None
    """Reasons why the clock is held down, in NVML's words; empty = none."""
    ecc_uncorrected: Count | None = None
    """Uncorrectable errors since the driver was loaded."""
    remap_pending: bool | None = None
    """Whether a row waits to be remapped (or remapping failed)."""
    nvlink_errors: Count | None = None
    xids: list[Count] | None = None
    """Xid errors that are new since the last sample."""


class DeviceSample(DeviceReadings):
    """One line of devices.jsonl."""

    v: Count = 1
    ts: Finite
    mono: Finite
    own_mono: Finite | None = None
    """Monotonic clock of the device's own host, where `mono` is that of another's receipt."""
    uuid: str
    index: Count | None = None
    rank: Count | None = None

    @property
    def taken_mono(self) -> float:
        """Monotonic clock of the device's own host when the sample was taken."""
        return self.mono if self.own_mono is None else self.own_mono

    def digest(self) -> bytes:
        """Return the SHA-256 of the sample in canonical form, what is unknown left out."""
        document = self.model_dump(mode="json", exclude_none=True)
        return hashlib.sha256(canonical_bytes(document)).digest()


def devices_in(tick: Tick) -> list[DeviceSample]:
    """Return the device samples that a tick carries, oldest first; what is none is left out."""
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
    """A device that a script puts into the host."""

    uuid: str
    index: Count
    name: str = "scripted"
    mem_total_mb: Finite = 81_920.0


class ScriptedSample(DeviceReadings):
    """Readings from a moment (or a step) on, until the next of the same device."""

    at_s: Finite | None = None
    at_step: Count | None = None
    uuid: str


class DevicesScript(Submitted):
    """The file that GONOGO_DEVICES_SCRIPT names."""

    devices: list[ScriptedDevice]
    samples: list[ScriptedSample] = Field(default_factory=list)
