"""What the samples in `devices.jsonl` say of each device over a run."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gonogo.contract.device import DeviceSample
from gonogo.contract.errors import Corrupt
from service.db.store import Session
from service.evidence.files import load_bytes

FILE = "devices.jsonl"
MAX_BYTES = 64 * 2**20
"""Of the file that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNumbers:
    """One device over a whole run; None: no sample has it."""

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


def load_samples(session: Session, run: str) -> list[DeviceSample]:
    """Return the device samples of a run."""
    return list(read_samples(load_bytes(session, run, FILE, MAX_BYTES)))


def read_samples(pieces: Iterable[bytes]) -> Iterator[DeviceSample]:
    """Yield the samples of a file that comes in pieces; other lines are left out."""
    rest = b""
    try:
        for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                try:
                    yield DeviceSample.model_validate_json(line)
                except ValueError:
                    continue
    except Corrupt:
        return


def build_devices(samples: Iterable[DeviceSample]) -> tuple[DeviceNumbers, ...]:
    """Return the numbers of each device, by rank and index."""
    found: dict[str, list[DeviceSample]] = {}
    for sample in sorted(samples, key=lambda row: row.mono):
        found.setdefault(sample.uuid, []).append(sample)
    return tuple(sorted(map(_numbers, found.values()), key=_place))


def _place(row: DeviceNumbers) -> tuple[float, float, str]:
    rank, index = (math.inf if value is None else value for value in (row.rank, row.index))
    return rank, index, row.uuid


def _numbers(rows: Sequence[DeviceSample]) -> DeviceNumbers:
    last = rows[-1]
    return DeviceNumbers(
        uuid=last.uuid,
        index=last.index,
        rank=last.rank,
        samples=len(rows),
        median_util=_median(row.util for row in rows),
        peak_used_mb=_peak(row.mem_used_mb for row in rows),
        total_mb=last.mem_total_mb,
        peak_temp_c=_peak(row.temp_c for row in rows),
        median_power_w=_median(row.power_w for row in rows),
        throttled=tuple(sorted({why for row in rows for why in row.throttle or ()})),
        xids=tuple(sorted({xid for row in rows for xid in row.xids or ()})),
        ecc_uncorrected=last.ecc_uncorrected,
    )


def _median(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def _peak(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
