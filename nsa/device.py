"""Choose this rank's device, and set PyTorch, NCCL and gloo up for it (R48)."""

import ctypes
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch

from nsa.attention.kernels import Kernels, use_kernels
from nsa.errors import BadConfig
from nsa.settings import Settings, set_unless_set

# Parameters of `mallopt` (malloc.h of glibc).
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = -1
_DRIVER_VERSION = Path("/sys/module/nvidia/version")
_TOPOLOGY_LIMIT_S = 20

# With one of them `attention.backend: auto` is torch, and triton and reference are refused.
_KERNEL_TOGGLES = ("NSA_USE_FA2", "NSA_SDPA_NO_FLASH", "NSA_SDPA_FLASH_ONLY")


def choose_device(asked: str, settings: Settings) -> torch.device:
    """This rank's device, `asked` cpu, cuda or auto; BadConfig: fewer GPUs than local ranks."""
    gpus = torch.cuda.device_count() if asked != "cpu" and torch.cuda.is_available() else 0
    if gpus == 0 and asked != "cuda":
        return torch.device("cpu")
    if gpus < settings.local_world_size:
        raise BadConfig(f"{settings.local_world_size} ranks on this host, but {gpus} GPUs")
    return torch.device("cuda", settings.local_rank)


def prepare_torch(device: torch.device, settings: Settings) -> None:
    """On a CPU a thread a rank and its memory, TF32, and the kernels that the toggles leave."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # Not by `fp32_precision`: torch.compile then fails (pytorch #166387, 2.9 to 2.13), since it
        # asks by the older names. These set both; what attention does in between is undone.
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    else:
        torch.set_num_threads(1)
        keep_freed_memory()
    chosen = [name for name in _KERNEL_TOGGLES if settings.on(name)]
    use_kernels(Kernels(flash_attn=settings.on("NSA_USE_FA2"), asked_by=" and ".join(chosen)))
    if settings.on("NSA_SDPA_NO_FLASH"):
        torch.backends.cuda.enable_flash_sdp(False)
    if settings.on("NSA_SDPA_FLASH_ONLY"):
        torch.backends.cuda.enable_math_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)


def keep_freed_memory() -> bool:
    """Have glibc keep freed memory on a CPU: faults are 5 to 14 % of a step of `m7c_125m`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = [mallopt(_M_MMAP_MAX, 0), mallopt(_M_TRIM_THRESHOLD, _NEVER)]
    return all(kept)


def driver_version(device: torch.device) -> str | None:
    """The version of a GPU's driver ("570.86.15"); None on a CPU, or if it is unknown."""
    if device.type != "cuda":
        return None
    try:
        return _DRIVER_VERSION.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None


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
