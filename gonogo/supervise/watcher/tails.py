"""What have the ranks written since the last look? Complete heartbeat lines, by byte offset."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gonogo.rundir import RunDir, load_lines


@dataclass(slots=True)
class Tails:
    """How far each rank's heartbeat file has been read."""

    run_dir: RunDir
    world_size: int
    offsets: dict[int, int] = field(default_factory=dict)

    def read(self) -> dict[int, list[bytes]]:
        """Return the new complete lines by rank and move the offsets over them."""
        found: dict[int, list[bytes]] = {}
        for rank in range(self.world_size):
            start = self.offsets.get(rank, 0)
            part = load_lines(self.run_dir.heartbeat(rank), start)
            if part.offset != start:
                found[rank] = part.lines
                self.offsets[rank] = part.offset
        return found

    def read_up_to(self, upto: Mapping[int, int]) -> dict[int, list[bytes]]:
        """Return the lines between the offsets and those of an earlier tick, and move there."""
        found: dict[int, list[bytes]] = {}
        for rank, end in upto.items():
            while (start := self.offsets.get(rank, 0)) < end:
                part = load_lines(self.run_dir.heartbeat(rank), start, end)
                if part.offset == start:
                    break
                found.setdefault(rank, []).extend(part.lines)
                self.offsets[rank] = part.offset
        return found
