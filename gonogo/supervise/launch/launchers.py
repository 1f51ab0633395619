"""Launchers of the ranks: torchrun, or none. Standard library only.

On several nodes the torchruns meet at a store that node 0's hosts, under the id `{run}.{token}`, so
the launcher of an older attempt meets nobody.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gonogo.supervise.launch.nodes import NoPlace, Place, fence_of
from gonogo.supervise.processes import own_python

_HERE = "127.0.0.1"
MEET_LIMIT_S = 600
"""How long a torchrun waits for the others; torch may come from a cold file system."""


def build_launcher(
    order: Mapping[str, Any], place: Place, run_dir: Path, rank: Sequence[str]
) -> list[str]:
    """Return the command line of the agent, the one process that a keeper starts.

    A command starts its ranks itself, and one rank without torch needs no launcher.

    Args:
        order: the order as data.
        place: which part of it is started here.
        run_dir: where logs may lie.
        rank: the command line of one rank, its wrapper in front.

    Raises:
        NoPlace: this host cannot start such ranks.
    """
    if order.get("command"):
        return list(rank)
    if importlib.util.find_spec("torch") is not None:
        return _torchrun(order, place, run_dir, rank)
    if len(place.ranks) > 1 or not place.is_whole:
        ranks = int(order["world_size"])
        raise NoPlace(f"{ranks} ranks need torchrun, and torch is not installed here")
    return list(rank)


def _torchrun(
    order: Mapping[str, Any], place: Place, run_dir: Path, rank: Sequence[str]
) -> list[str]:
    return [
        own_python(), "-P", "-m", "torch.distributed.run",
        *_rendezvous(order, place),
        "--nproc-per-node", str(len(place.ranks)),
        "--max-restarts", "0",
        "--monitor-interval", "0.1",
        "--log-dir", str(run_dir / place.own(".torchrun")),
        "--no-python", *rank,
    ]  # fmt: skip


def _rendezvous(order: Mapping[str, Any], place: Place) -> list[str]:
    """Return the options by which torchruns find each other."""
    if place.is_whole:  # `--standalone` would resolve `localhost`, which not every host can
        return [
            "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"{_HERE}:0",
            "--rdzv-id", str(order["run"]),
            "--local-addr", _HERE,
        ]  # fmt: skip
    if place.rendezvous is None:
        raise NoPlace("it is not known where the nodes meet")
    limits = f"join_timeout={MEET_LIMIT_S},read_timeout={MEET_LIMIT_S}"
    return [
        "--nnodes", str(place.nodes),
        "--rdzv-backend", "c10d",
        "--rdzv-endpoint", place.rendezvous,
        "--rdzv-id", fence_of(order),
        "--rdzv-conf", f"is_host={int(place.leads)},{limits}",
        "--local-addr", place.sorted_address,
    ]  # fmt: skip
