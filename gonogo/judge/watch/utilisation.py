"""How busy were the devices, as the ticks tell it? Kept small: long runs bring a million samples.

Ticks are chained and devices.jsonl is not, so what is judged comes from the ticks. A sample that
names no rank, or no utilisation between 0 and 100 %, says nothing and is left out.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gonogo.contract.device import DeviceSample


class UtilSample(NamedTuple):
    """One sample of one rank's device."""

    rank: int
    mono: float
    """Clock of the sample, seconds of the host's monotonic clock."""
    uuid: str
    util: float
    """Percent."""


@dataclass(slots=True)
class Utilisation:
    """The samples of all ticks, in columns."""

    _ranks: "array[int]" = field(default_factory=lambda: array("q"))
    _monos: "array[float]" = field(default_factory=lambda: array("d"))
    _uuids: "array[int]" = field(default_factory=lambda: array("L"))
    _utils: "array[float]" = field(default_factory=lambda: array("d"))
    _names: dict[str, int] = field(default_factory=dict)
    """UUID → its place."""

    def take(self, samples: Iterable[DeviceSample]) -> None:
        """Take the samples of one tick."""
        for row in samples:
            if row.rank is None or row.util is None or not 0 <= row.util <= 100:
                continue
            self._ranks.append(row.rank)
            self._monos.append(row.mono)
            self._uuids.append(self._names.setdefault(row.uuid, len(self._names)))
            self._utils.append(row.util)

    def __len__(self) -> int:
        return len(self._utils)

    def __iter__(self) -> Iterator[UtilSample]:
        names = list(self._names)
        rows = zip(self._ranks, self._monos, self._uuids, self._utils, strict=True)
        for rank, mono, uuid, util in rows:
            yield UtilSample(rank, mono, names[uuid], util)
