"""The payloads of `Tick.observations`, one model a kind. MB are 2^20 bytes.

A payload that cannot be read counts as not observed: it never passes and never halts.

Example: `{"disk": {"free_mb": 812.0, "total_mb": 4096.0}}`.
"""

from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from gonogo.contract.heartbeat import Count, Finite
from gonogo.contract.tick import Tick
from gonogo.contract.wire import Recorded

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
    free_files: Count | None = None
    """Free inodes; null: unknown or unlimited."""
    errors: Count = 0
    refused: bool = False
    """A small write was refused within the last minute."""
    checkpoints_mb: Megabytes | None = None
    """Free space for checkpoints; null: the same file system."""
    read_only: bool = False
    saving: bool = False
    """The draft of a checkpoint grows."""


class CheckpointSeen(Recorded):
    """One checkpoint with a manifest, as the watcher saw it.

    A large one is reported twice: while it is read (`reads_bytes`), and afterwards.
    """

    step: Count | None = None
    path: str
    verified: bool
    """Whether every file has the size and SHA-256 of the manifest."""
    manifest_sha256: str | None = None
    bytes: Count = 0
    text: str = ""
    """Why it is not verified."""
    gone: bool = False
    """It was deleted before it was read, or reading failed."""
    reads_bytes: Count = 0


class HostMemory(Recorded):
    """Memory of the host, or of the run's control group."""

    used_mb: Megabytes
    limit_mb: Megabytes | None = None
    ranks: dict[str, Megabytes] = Field(default_factory=dict)


class PreflightPeak(Recorded):
    """The matmul peak of all devices of the host, by the preflight."""

    flops: Annotated[Finite, Field(gt=0)]
    of: str | None = None


class BusyProgram(Recorded):
    """A program of other users of the host."""

    name: str
    cores: Annotated[Finite, Field(ge=0)]


class HostCpu(Recorded):
    """Use of the host's processors since the last look; reported while tasks wait."""

    over_s: Annotated[Finite, Field(ge=0)]
    cores: Annotated[int, Field(ge=1)]
    load: Annotated[Finite, Field(ge=0)] | None = None
    pressure: Share | None = None
    """Share of the time in which a task waited for a processor."""
    waited: dict[str, Share] = Field(default_factory=dict)
    """Rank → share of the time in which its main thread waited for a processor."""
    others_cores: Annotated[Finite, Field(ge=0)] | None = None
    """Processors that other processes used."""
    busiest: list[BusyProgram] = Field(default_factory=list)

    def words(self) -> str:
        """Return the figures: `3.8 runnable tasks a core (cc1 2.9 cores)`."""
        programs = ", ".join(f"{row.name} {row.cores:.1f} cores" for row in self.busiest)
        if self.load is not None:
            text = f"{self.load / self.cores:.1f} runnable tasks a core"
        else:
            text = f"{self.others_cores or 0.0:.1f} cores used by others"
        return f"{text} ({programs})" if programs else text


_M = TypeVar("_M", bound=BaseModel)
_CHECKPOINTS = TypeAdapter(list[CheckpointSeen])
_HOSTS = TypeAdapter(list[HostMemory])


def disk_in(tick: Tick) -> DiskSeen | None:
    """Return the disk in a tick, or None."""
    return _one(tick, Kind.DISK, DiskSeen)


def disk_of(payload: Any) -> DiskSeen | None:
    """Return the disk in a payload, or None."""
    try:
        return DiskSeen.model_validate(payload)
    except ValidationError:
        return None


def host_cpu_in(tick: Tick) -> HostCpu | None:
    """Return the host's processors in a tick, or None."""
    return _one(tick, Kind.HOST_CPU, HostCpu)


def host_memory_in(tick: Tick) -> HostMemory | None:
    """Return the host's memory in a tick, or None."""
    return _one(tick, Kind.HOST_MEMORY, HostMemory)


def hosts_memory_in(tick: Tick) -> list[HostMemory]:
    """Return the memory of each host in a tick."""
    payload = tick.observations.get(Kind.HOSTS_MEMORY)
    if payload is not None:
        try:
            return _HOSTS.validate_python(payload)
        except ValidationError:
            return []
    host = host_memory_in(tick)
    return [] if host is None else [host]


def checkpoints_in(tick: Tick) -> list[CheckpointSeen] | None:
    """Return the checkpoints in a tick, or None."""
    return checkpoints_of(tick.observations.get(Kind.CHECKPOINTS))


def checkpoints_of(payload: Any) -> list[CheckpointSeen] | None:
    """Return the checkpoints in a payload, or None."""
    if payload is None:
        return None
    try:
        return _CHECKPOINTS.validate_python(payload)
    except ValidationError:
        return None


def _one(tick: Tick, kind: Kind, model: type[_M]) -> _M | None:
    payload = tick.observations.get(kind)
    if payload is None:
        return None
    try:
        return model.model_validate(payload)
    except ValidationError:
        return None
