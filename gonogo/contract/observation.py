"""The payloads of `Tick.observations`, one model a kind. MB are 2^20 bytes.

A payload that cannot be read counts as not observed: it never passes and never halts. A trainer
answers `evidence/.dump_collectives` with its `Dump`; `Standing` is the result of all dumps.

Example: `{"disk": {"free_mb": 812.0, "total_mb": 4096.0}}`.
"""

import hashlib
import json
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.heartbeat import Count, Finite
from gonogo.contract.records import Tick
from gonogo.contract.wire import Recorded, Submitted

Megabytes = Annotated[Finite, Field(ge=0)]
Share = Annotated[Finite, Field(ge=0, le=1)]


class Kind(StrEnum):
    """Kinds of payload; a plug-in may add others."""

    DISK = "disk"
    CHECKPOINTS = "checkpoints"
    HOST_MEMORY = "host_memory"
    HOSTS_MEMORY = "hosts_memory"
    PREFLIGHT_PEAK = "preflight_peak"
    HOST_CPU = "host_cpu"


class DiskSeen(Recorded):
    """The file system that holds the run directory."""

    free_mb: Megabytes
    total_mb: Megabytes
    free_files: Count | None = None  # Free inodes; null: unknown or unlimited.
    refused: bool = False  # A small write was refused within the last minute.
    checkpoints_mb: Megabytes | None = None  # Free space for checkpoints; null: same file system.
    read_only: bool = False


class CheckpointSeen(Recorded):
    """One checkpoint with a manifest, as the watcher saw it.

    A large one is reported twice: while it is read (`reads_bytes`), and afterwards.
    """

    step: Count | None = None
    path: str
    verified: bool  # Whether every file has the size and SHA-256 of the manifest.
    manifest_sha256: str | None = None
    bytes: Count = 0
    text: str = ""  # Why it is not verified.
    gone: bool = False  # It was deleted before it was read, or reading failed.
    reads_bytes: Count = 0


class HostMemory(Recorded):
    """Memory of the host, or of the run's control group."""

    used_mb: Megabytes
    limit_mb: Megabytes | None = None
    ranks: dict[str, Megabytes] = {}


class PreflightPeak(Recorded):
    """The matmul peak of all devices of the host, by the preflight."""

    flops: Annotated[Finite, Field(gt=0)]
    of: str | None = None


class HostCpu(Recorded):
    """Use of the host's processors since the last look; reported while tasks wait."""

    over_s: Annotated[Finite, Field(ge=0)]
    cores: Annotated[int, Field(ge=1)]
    pressure: Share | None = None  # Share of the time in which a task waited for a processor.
    waited: dict[str, Share] = {}  # Rank → share of the time in which its main thread waited.
    others_cores: Annotated[Finite, Field(ge=0)] | None = None  # Used by other processes.

    def words(self) -> str:
        """Return the figures: `2.9 of 4 cores used by others`."""
        return f"{self.others_cores or 0.0:.1f} of {self.cores} cores used by others"


class DeviceReadings(Recorded):
    """Readings of one device."""

    util: Finite | None = None  # Percent of the time in which a kernel ran.
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
    own_mono: Finite | None = None  # Monotonic clock of the device's host, if it is another.
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
    samples: list[ScriptedSample] = []


class Entry(Recorded):
    """One collective that a rank entered, as torch's recorder has it."""

    collective_seq_id: Count
    process_group: list[str] = []
    profiling_name: str = ""
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    is_p2p: bool = False
    retired: bool = False
    state: str = ""
    time_created_ns: int = 0
    time_discovered_completed_ns: int | None = None

    @property
    def group(self) -> str:
        """Name of the process group."""
        return self.process_group[0] if self.process_group else ""

    @property
    def op(self) -> str:
        """Name of the operation without its backend: `all_reduce`."""
        return self.profiling_name.rpartition(":")[2]

    @property
    def backend(self) -> str:
        """Name of the backend: `gloo`, `nccl`."""
        return self.profiling_name.rpartition(":")[0]

    @property
    def stands(self) -> bool:
        """Whether it has not ended."""
        return not self.retired and self.state != "completed"


class Dump(Recorded):
    """collectives_rank{N}.json: what one rank has entered, oldest first."""

    rank: Count
    request: str = ""
    ts: float = 0.0
    error: str | None = None
    groups: dict[str, list[int]] = {}
    entries: list[Entry] = []


class Standing(Recorded):
    """What the dumps of a run say; the payload of a tick's observation `collectives`."""

    seq: Count | None = None
    group: str = ""
    op: str = ""
    entered: list[int] = []
    missing: list[int] = []  # Ranks that answered and have not entered it.
    only: int | None = None
    """The rank that alone entered its collective while all others stand elsewhere, or whose call
    alone disagrees with those of all others."""
    behind: list[int] = []  # Ranks that wait for nobody, and others wait for them.
    unfinished: list[int] = []  # Ranks whose device has not ended what their peers have.
    disagree: str | None = None  # What the calls disagree in: op, shape or dtype.
    unanswered: list[int] = []
    asked_mono: float | None = None
    text: str


_M = TypeVar("_M")
_DISK = TypeAdapter(DiskSeen)
_CPU = TypeAdapter(HostCpu)
_MEMORY = TypeAdapter(HostMemory)
_HOSTS = TypeAdapter(list[HostMemory])
_CHECKPOINTS = TypeAdapter(list[CheckpointSeen])


def _read(payload: Any, adapter: TypeAdapter[_M]) -> _M | None:
    try:
        return None if payload is None else adapter.validate_python(payload)
    except ValidationError:
        return None


def disk_of(payload: Any) -> DiskSeen | None:
    """Return the disk in a payload, or None."""
    return _read(payload, _DISK)


def host_cpu_in(tick: Tick) -> HostCpu | None:
    """Return the host's processors in a tick, or None."""
    return _read(tick.observations.get(Kind.HOST_CPU), _CPU)


def hosts_memory_in(tick: Tick) -> list[HostMemory]:
    """Return the memory of each host in a tick."""
    payload = tick.observations.get(Kind.HOSTS_MEMORY)
    if payload is not None:
        return _read(payload, _HOSTS) or []
    host = _read(tick.observations.get(Kind.HOST_MEMORY), _MEMORY)
    return [] if host is None else [host]


def checkpoints_of(payload: Any) -> list[CheckpointSeen] | None:
    """Return the checkpoints in a payload, or None."""
    return _read(payload, _CHECKPOINTS)


def devices_in(tick: Tick) -> list[DeviceSample]:
    """Return the readable device samples in a tick, oldest first."""
    payload = tick.observations.get("devices")
    found = []
    for row in payload if isinstance(payload, list) else []:
        with suppress(ValidationError):
            found.append(DeviceSample.model_validate(row))
    return sorted(found, key=lambda sample: sample.mono)


def parse_dump(raw: bytes | str) -> Dump | None:
    """Return the dump in a file, or None when it is none."""
    try:
        return Dump.model_validate(json.loads(raw))
    except (ValueError, ValidationError, RecursionError):
        return None
