"""Who starts the ranks of a place? A launcher; which one is chosen here. Standard library only."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gonogo.supervise.launch.place import Place
from gonogo.supervise.launch.plain import Plain
from gonogo.supervise.launch.torchrun import Torchrun


class Launcher(Protocol):
    """Knows how the programs of a place are started."""

    def build(
        self, order: Mapping[str, Any], place: Place, run_dir: Path, rank: Sequence[str]
    ) -> list[str]:
        """Return the command line of the agent, the one process that a keeper starts.

        Args:
            order: the order as data.
            place: which part of it is started here.
            run_dir: where logs may lie.
            rank: the command line of one rank, its wrapper in front.

        Raises:
            NoPlace: the place asks for what this launcher does not do.
        """


def choose_launcher(order: Mapping[str, Any]) -> Launcher:
    """Return torchrun, or where a command starts its ranks itself, or torch is missing, none."""
    if order.get("command") or importlib.util.find_spec("torch") is None:
        return Plain()
    return Torchrun()
