"""Defaults for NCCL and gloo from what this host has (R48). Variables that are set stay."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from nsa.settings import Settings, set_unless_set

_TOPOLOGY_LIMIT_S = 20


def prepare_network(settings: Settings) -> dict[str, str]:
    """Set what this host calls for and nobody has set; returns what was set."""
    topology = read_topology() if settings.world_size > 1 else None
    infiniband = has_devices(Path("/sys/class/infiniband"))
    return set_unless_set(choose_network(settings, topology, infiniband=infiniband))


def has_devices(folder: Path) -> bool:
    """Whether a class of /sys has any: its folder is also there when only the driver is loaded."""
    return any(folder.glob("*"))


def choose_network(settings: Settings, topology: str | None, *, infiniband: bool) -> dict[str, str]:
    """The variables that this run should have, before what is set already wins.

    `topology` is what `nvidia-smi topo -m` prints. One rank needs nothing. Ranks on one host use
    loopback for gloo, because a container's host name often does not resolve. NCCL uses no
    InfiniBand if the host has none, and rings of plain transfers between GPUs that only PCIe
    connects.
    """
    if settings.world_size == 1:
        return {}
    chosen: dict[str, str] = {}
    if settings.world_size == settings.local_world_size:
        chosen["GLOO_SOCKET_IFNAME"] = "lo"
    if topology is None:
        return chosen
    if not infiniband:
        chosen["NCCL_IB_DISABLE"] = "1"
    if settings.local_world_size > 1 and not _has_nvlink(topology):
        chosen |= {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    return chosen


def read_topology() -> str | None:
    """The links between this host's GPUs as `nvidia-smi` prints them; None if it fails."""
    try:
        done = subprocess.run(
            ("nvidia-smi", "topo", "-m"),
            capture_output=True,
            text=True,
            timeout=_TOPOLOGY_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _has_nvlink(topology: str) -> bool:
    """Whether any pair of GPUs is bonded: a cell NV1, NV2, … in a GPU's row."""
    rows: Mapping[str, str] = {
        name: cells
        for name, _, cells in (line.strip().partition("\t") for line in topology.splitlines())
        if re.fullmatch(r"GPU\d+", name.strip())
    }
    return any(re.search(r"\bNV\d+\b", cells) for cells in rows.values())
