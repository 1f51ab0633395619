"""The launcher `torchrun`: on one node by itself, on several by a rendezvous at node 0.

On several nodes the launchers meet at a store that node 0's hosts, under the id `{run}.{token}`:
the launcher of an older attempt that wakes meets nobody.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gonogo.supervise.launch.place import NoPlace, Place, fence_of
from gonogo.supervise.release import own_python

_HERE = "127.0.0.1"
MEET_LIMIT_S = 600
"""How long a launcher waits for the others: their keepers have met already, but where torch comes
from a cold file system, launchers begin minutes apart."""


class Torchrun:
    """Starts one program for each rank of a place; see `gonogo.supervise.launch.launcher`."""

    def build(
        self, order: Mapping[str, Any], place: Place, run_dir: Path, rank: Sequence[str]
    ) -> list[str]:
        """Return the command line of the launcher.

        Raises:
            NoPlace: there are several nodes, and nobody has told where they meet.
        """
        return [
            own_python(), "-P", "-m", "torch.distributed.run",
            *_meeting(order, place),
            "--nproc-per-node", str(len(place.ranks)),
            "--max-restarts", "0",
            "--monitor-interval", "0.1",
            "--log-dir", str(run_dir / place.own(".torchrun")),
            "--no-python", *rank,
        ]  # fmt: skip


def _meeting(order: Mapping[str, Any], place: Place) -> list[str]:
    """Return the options by which launchers find each other."""
    if place.is_whole:  # as `--standalone`, which asks what `localhost` is: not every host says it
        return [
            "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"{_HERE}:0",
            "--rdzv-id", str(order["run"]),
            "--local-addr", _HERE,
        ]  # fmt: skip
    if place.rendezvous is None:
        raise NoPlace("nobody has told where the nodes meet")
    limits = f"join_timeout={MEET_LIMIT_S},read_timeout={MEET_LIMIT_S}"
    return [
        "--nnodes", str(place.nodes),
        "--rdzv-backend", "c10d",
        "--rdzv-endpoint", place.rendezvous,
        "--rdzv-id", fence_of(order),
        "--rdzv-conf", f"is_host={int(place.leads)},{limits}",
        "--local-addr", place.sorted_address,
    ]  # fmt: skip
