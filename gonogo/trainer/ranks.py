"""Agreement of ranks, through the torch.distributed that the script has set up.

Torch is taken from `sys.modules`, never imported. All ranks make the same calls in one order.
"""

import gc
import sys
from collections.abc import Sequence
from typing import Any


def group() -> Any:
    """Return `torch.distributed` if the script uses it with other ranks, else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed if distributed.get_world_size() > 1 else None


def agree(flag: bool, device: Any = None) -> bool:
    """Return whether any rank's flag is set, the same on every rank."""
    return _reduce([float(flag)], device, "MAX")[0] > 0


def mean(numbers: Sequence[float], device: Any = None) -> list[float]:
    """Return the means over all ranks, the same on every rank."""
    size = group().get_world_size()
    return [total / size for total in _reduce(numbers, device, "SUM")]


def let_go() -> None:
    """Leave a gloo group before Python ends.

    Gloo's threads may hold tensors of a collective at Python's end, and the process aborts (PyTorch
    issue 190489). Groups of other backends may wait for a peer, and are left alone.
    """
    distributed = group()
    if distributed is not None and distributed.get_backend() == "gloo":
        distributed.destroy_process_group()
        gc.collect()  # DDP holds the group in a cycle


def _reduce(numbers: Sequence[float], device: Any, how: str) -> list[float]:
    distributed = group()
    torch = sys.modules["torch"]
    place = _place(torch, distributed, device)
    shared = torch.tensor(list(numbers), dtype=torch.float64, device=place)
    distributed.all_reduce(shared, op=getattr(distributed.ReduceOp, how))
    found: list[float] = shared.tolist()
    return found


def _place(torch: Any, distributed: Any, device: Any) -> Any:
    """Return a device that the backend reduces on: the CPU if possible."""
    if "nccl" not in distributed.get_backend() or "gloo" in distributed.get_backend():
        return "cpu"
    if device is not None and device.type == "cuda":
        return device
    return torch.device("cuda", torch.cuda.current_device())
