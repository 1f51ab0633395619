"""What did the devices say of themselves? Kept small: long runs bring a million samples.

Ticks are chained and devices.jsonl is not, so what is judged comes from the ticks. A sample that
names no rank says nothing; a reading that cannot be (102 % busy, less than no memory) is unknown.
"""

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gonogo.contract.device import DeviceSample


class DeviceRow(NamedTuple):
    """One sample of one rank's device."""

    rank: int
    mono: float
    """Clock of the sample, seconds of the host's monotonic clock."""
    ts: float
    """Unix seconds of the device's own host."""
    uuid: str
    util: float | None
    """Percent."""
    mem_used_mb: float | None
    """MB, whoever holds them."""
    own_mono: float | None = None
    """Clock of the device's own host, where `mono` is that of another's receipt."""


def _floats() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class DeviceRows:
    """The samples of all ticks, in columns; NaN stands for unknown."""

    _ranks: "array[int]" = field(default_factory=lambda: array("q"))
    _monos: "array[float]" = field(default_factory=_floats)
    _stamps: "array[float]" = field(default_factory=_floats)
    _uuids: "array[int]" = field(default_factory=lambda: array("L"))
    _utils: "array[float]" = field(default_factory=_floats)
    _memory: "array[float]" = field(default_factory=_floats)
    _own_monos: "array[float]" = field(default_factory=_floats)
    _names: dict[str, int] = field(default_factory=dict)
    """UUID → its place."""

    def take(self, samples: Iterable[DeviceSample]) -> None:
        """Take the samples of one tick."""
        for row in samples:
            util = _within(row.util, 100.0)
            memory = _within(row.mem_used_mb, math.inf)
            if row.rank is None or (math.isnan(util) and math.isnan(memory)):
                continue
            self._ranks.append(row.rank)
            self._monos.append(row.mono)
            self._stamps.append(row.ts)
            self._uuids.append(self._names.setdefault(row.uuid, len(self._names)))
            self._utils.append(util)
            self._memory.append(memory)
            self._own_monos.append(math.nan if row.own_mono is None else row.own_mono)

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[DeviceRow]:
        names = list(self._names)
        clocks = self._monos, self._stamps, self._own_monos
        columns = (self._ranks, self._uuids, self._utils, self._memory, *clocks)
        for rank, uuid, util, memory, mono, ts, own_mono in zip(*columns, strict=True):
            known = _known(util), _known(memory), _known(own_mono)
            yield DeviceRow(rank, mono, ts, names[uuid], *known)


def _within(value: float | None, most: float) -> float:
    return value if value is not None and 0 <= value <= most else math.nan


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
