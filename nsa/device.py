"""Choose this rank's device, and set PyTorch up for it."""

import ctypes

import torch

from nsa.attention.kernels import Kernels, use_kernels
from nsa.errors import BadConfig
from nsa.settings import Settings

# Parameters of `mallopt` (malloc.h of glibc).
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = -1

# With one of them `attention.backend: auto` is torch, and triton and reference are refused.
_KERNEL_TOGGLES = ("NSA_USE_FA2", "NSA_SDPA_NO_FLASH", "NSA_SDPA_FLASH_ONLY")


def choose_device(asked: str, settings: Settings) -> torch.device:
    """This rank's device: a GPU of its own, or the CPU. `asked` is cpu, cuda or auto.

    Raises:
        BadConfig: there are GPUs, or cuda is asked for, but not one for every local rank.
    """
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
    """Have glibc keep what tensors of this process free for the next ones, on a CPU.

    Else a step faults in and zeroes the pages again that the step before it freed: 5 to 14 % of a
    step of `m7c_125m`. Returns whether it does from now on.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = [mallopt(_M_MMAP_MAX, 0), mallopt(_M_TRIM_THRESHOLD, _NEVER)]
    return all(kept)
