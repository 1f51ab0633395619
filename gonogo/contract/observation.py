"""What do the watcher's probes say? The payloads of `Tick.observations`, one model a kind.

A payload is recorded as plain JSON. What cannot be read as its kind says counts as not observed:
UNKNOWN, which never passes and never halts. MB are 2^20 bytes.

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
    """Kinds of payload that the host's probes bring; a plug-in may bring others."""

    DISK = "disk"
    CHECKPOINTS = "checkpoints"
    HOST_MEMORY = "host_memory"
    HOSTS_MEMORY = "hosts_memory"
    PREFLIGHT_PEAK = "preflight_peak"
    HOST_CPU = "host_cpu"


class DiskSeen(Recorded):
    """The file system that holds the run directory."""

    free_mb: Megabytes
    """What the trainer may still write (the reserve of root is not its own)."""
    total_mb: Megabytes
    free_files: Count | None = None
    """How many more files it can hold (inodes); null where it counts none, or has no bound."""
    errors: Count = 0
    """Looks that failed so far."""
    refused: bool = False
    """A small write was refused within the last minute: the ranks' lines may be missing."""
    checkpoints_mb: Megabytes | None = None
    """What may be written where checkpoints lie; null where that is the same file system."""
    read_only: bool = False
    """Nobody may write here, or where checkpoints lie: a disk that failed, or was mounted so."""
    saving: bool = False
    """A checkpoint's draft grows, whatever the ranks do meanwhile."""


class CheckpointSeen(Recorded):
    """One checkpoint that claims to be whole, looked at once by the watcher.

    What takes long to read is told twice: as soon as its sizes hold (`reads_bytes`, and nothing of
    what it is), and when it has been read.
    """

    step: Count | None = None
    """As its manifest says; null when the manifest cannot be read."""
    path: str
    """Inside the run directory."""
    verified: bool
    """Whether every file has the size and SHA-256 of the manifest."""
    manifest_sha256: str | None = None
    """Of the manifest itself: whoever changes a checkpoint later changes this too."""
    bytes: Count = 0
    """Of all its files; 0 when it does not hold."""
    text: str = ""
    """Why it does not hold, or could not be looked at."""
    gone: bool = False
    """Whether it held, nobody knows: it was deleted before it was read to its end, or (`text`) what
    looks at it failed."""
    reads_bytes: Count = 0
    """So much is being read: whether it holds will be told."""


class HostMemory(Recorded):
    """Memory of the host, or of the control group that holds the run."""

    used_mb: Megabytes
    limit_mb: Megabytes | None = None
    """None = nothing says."""
    ranks: dict[str, Megabytes] = Field(default_factory=dict)
    """Rank → memory that its process holds: resident, mapped files apart."""


class PreflightPeak(Recorded):
    """The matrix-product peak that the preflight measured, of all the host's devices together."""

    flops: Annotated[Finite, Field(gt=0)]
    of: str | None = None
    """Kind of device on which it was measured: cpu, cuda."""


class BusyProgram(Recorded):
    """A program of other users of the host, all of its processes together."""

    name: str
    cores: Annotated[Finite, Field(ge=0)]


class HostCpu(Recorded):
    """Who used the host's processors since the look before; told while tasks wait for them."""

    over_s: Annotated[Finite, Field(ge=0)]
    """Seconds since the look before."""
    cores: Annotated[int, Field(ge=1)]
    """Processors that the run may use."""
    load: Annotated[Finite, Field(ge=0)] | None = None
    """Runnable tasks, averaged over a minute."""
    pressure: Share | None = None
    """Share of the time in which at least one task of the host waited for a processor."""
    waited: dict[str, Share] = Field(default_factory=dict)
    """Rank → share of the time in which its main thread was ready to run and waited."""
    others_cores: Annotated[Finite, Field(ge=0)] | None = None
    """Processors that processes outside of the run used; null = unknown."""
    busiest: list[BusyProgram] = Field(default_factory=list)
    """The programs of these that used most."""

    def words(self) -> str:
        """Return the figures for a person: `3.8 runnable tasks a core (cc1 2.9 cores)`."""
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
    """Return what a tick says of the disk, or None."""
    return _one(tick, Kind.DISK, DiskSeen)


def disk_of(payload: Any) -> DiskSeen | None:
    """Return the disk in a payload; None when it cannot be read."""
    try:
        return DiskSeen.model_validate(payload)
    except ValidationError:
        return None


def host_cpu_in(tick: Tick) -> HostCpu | None:
    """Return what a tick says of the host's processors, or None."""
    return _one(tick, Kind.HOST_CPU, HostCpu)


def host_memory_in(tick: Tick) -> HostMemory | None:
    """Return what a tick says of the host's memory, or None."""
    return _one(tick, Kind.HOST_MEMORY, HostMemory)


def hosts_memory_in(tick: Tick) -> list[HostMemory]:
    """Return what a tick says of the memory of each host: of several, where it tells them all."""
    payload = tick.observations.get(Kind.HOSTS_MEMORY)
    if payload is not None:
        try:
            return _HOSTS.validate_python(payload)
        except ValidationError:
            return []
    host = host_memory_in(tick)
    return [] if host is None else [host]


def checkpoints_in(tick: Tick) -> list[CheckpointSeen] | None:
    """Return the checkpoints that a tick tells of; None when it brings no such look."""
    return checkpoints_of(tick.observations.get(Kind.CHECKPOINTS))


def checkpoints_of(payload: Any) -> list[CheckpointSeen] | None:
    """Return the checkpoints in a payload; None when it cannot be read."""
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
