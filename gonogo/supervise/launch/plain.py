"""The launcher `plain`: one program a node, started as it is.

For a command, for one rank, and where torch is missing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gonogo.supervise.launch.place import NoPlace, Place


class Plain:
    """Starts the only program of a place; see `gonogo.supervise.launch.launcher`."""

    def build(
        self, order: Mapping[str, Any], place: Place, run_dir: Path, rank: Sequence[str]
    ) -> list[str]:
        """Return the program's own command line.

        Raises:
            NoPlace: more than one program is to be started, or an entry on several nodes.
        """
        if len(place.programs(order)) > 1 or not (place.is_whole or order.get("command")):
            ranks = int(order["world_size"])
            raise NoPlace(f"{ranks} ranks need torchrun, and torch is not installed here")
        return list(rank)
