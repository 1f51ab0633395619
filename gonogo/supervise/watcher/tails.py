"""What have the ranks written since the last look? Complete heartbeat lines, by byte offset."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from gonogo.rundir import RunDir, load_lines, seen_lines
from gonogo.supervise.weather import Weather

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tails:
    """How far each rank's heartbeat file has been read."""

    run_dir: RunDir
    world_size: int
    offsets: dict[int, int] = field(default_factory=dict)
    weather: Weather = field(default_factory=lambda: Weather(_log))

    def read(self) -> dict[int, list[bytes]]:
        """Return the new complete lines by rank and move the offsets over them.

        A file that cannot be read just now brings nothing; its lines come with a later look.
        """
        found: dict[int, list[bytes]] = {}
        for rank in range(self.world_size):
            start = self.offsets.get(rank, 0)
            load = partial(load_lines, self.run_dir.heartbeat(rank), start)
            part = self.weather.tried(f"the lines of rank {rank}", load, None)
            if part is not None and part.offset != start:
                found[rank] = part.lines
                self.offsets[rank] = part.offset
        return found

    def read_up_to(self, upto: Mapping[int, int]) -> dict[int, list[bytes]]:
        """Return the lines between the offsets and those of an earlier tick, and move there."""
        found: dict[int, list[bytes]] = {}
        for rank, end in upto.items():
            while (start := self.offsets.get(rank, 0)) < end:
                part = seen_lines(self.run_dir.heartbeat(rank), start, end)
                if part.offset == start:
                    break
                found.setdefault(rank, []).extend(part.lines)
                self.offsets[rank] = part.offset
        return found
