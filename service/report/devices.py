"""How did a run's devices fare? What `devices.jsonl` says of each, and its samples for the steps.

The file is in the database as it was shipped, wherever the run was. Of one that is larger than
`MAX_BYTES` every so many stretches of lines are read: enough for a curve and a median.
"""

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gonogo.contract.device import DeviceSample
from gonogo.contract.errors import Corrupt
from service.db.schema import OffsetRow
from service.db.store import Session
from service.evidence.files import load_bytes

MAX_BYTES = 32 * 2**20
_STRETCH = 64
"""Neighbouring lines that are read or left out together, so that no device is left out."""
FILE = "devices.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNumbers:
    """One device over a whole run; None: no sample says it."""

    uuid: str
    index: int | None = None
    rank: int | None = None
    samples: int
    median_util: float | None = None
    peak_used_mb: float | None = None
    total_mb: float | None = None
    peak_temp_c: float | None = None
    median_power_w: float | None = None
    throttled: tuple[str, ...] = ()
    """Reasons why its clock was ever held down."""
    xids: tuple[int, ...] = ()
    ecc_uncorrected: int | None = None


@dataclass(slots=True)
class _Taken:
    """What the samples of one device say."""

    last: DeviceSample
    count: int = 0
    util: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)
    temp: list[float] = field(default_factory=list)
    power: list[float] = field(default_factory=list)
    throttled: set[str] = field(default_factory=set)
    xids: set[int] = field(default_factory=set)


def load_samples(session: Session, run: str) -> list[DeviceSample]:
    """Return the device samples of a run; lines that are none are left out."""
    row = session.get(OffsetRow, (run, FILE))
    if row is None:
        return []
    every = max(1, math.ceil(row.bytes / MAX_BYTES))
    return list(read_samples(_lines(load_bytes(session, run, FILE, None)), every))


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the whole lines of a file that comes in pieces, as far as it comes."""
    rest = b""
    try:
        for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
    except Corrupt:
        return


def read_samples(lines: Iterable[bytes], every: int = 1) -> Iterator[DeviceSample]:
    """Yield the samples on `lines`, of every so many stretches one."""
    for number, line in enumerate(lines):
        if (number // _STRETCH) % every == 0:
            try:
                yield DeviceSample.model_validate_json(line)
            except ValueError:
                continue


def build_devices(samples: Iterable[DeviceSample]) -> tuple[DeviceNumbers, ...]:
    """Return what the samples say of each device, by rank and index."""
    found: dict[str, _Taken] = {}
    for sample in sorted(samples, key=lambda row: row.mono):
        row = found.setdefault(sample.uuid, _Taken(sample))
        row.last = sample
        row.count += 1
        for values, value in (
            (row.util, sample.util),
            (row.used, sample.mem_used_mb),
            (row.temp, sample.temp_c),
            (row.power, sample.power_w),
        ):
            if value is not None:
                values.append(value)
        row.throttled.update(sample.throttle or ())
        row.xids.update(sample.xids or ())
    numbers = (_numbers(row) for row in found.values())
    return tuple(sorted(numbers, key=_place))


def _place(row: DeviceNumbers) -> tuple[float, float, str]:
    rank, index = (math.inf if value is None else value for value in (row.rank, row.index))
    return rank, index, row.uuid


def _numbers(row: _Taken) -> DeviceNumbers:
    return DeviceNumbers(
        uuid=row.last.uuid,
        index=row.last.index,
        rank=row.last.rank,
        samples=row.count,
        median_util=_median(row.util),
        peak_used_mb=max(row.used, default=None),
        total_mb=row.last.mem_total_mb,
        peak_temp_c=max(row.temp, default=None),
        median_power_w=_median(row.power),
        throttled=tuple(sorted(row.throttled)),
        xids=tuple(sorted(row.xids)),
        ecc_uncorrected=row.last.ecc_uncorrected,
    )


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
