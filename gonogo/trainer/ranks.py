"""How do ranks agree? Through the torch.distributed that the script has set up, if it has.

Torch is never imported here: it is the one in `sys.modules`, so a script without torch pays
nothing. Every rank of the run must make the same calls in the same order.
"""

import gc
import sys
from collections.abc import Sequence
from typing import Any


def group() -> Any:
    """Return `torch.distributed` where the script talks to other ranks through it, else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed if distributed.get_world_size() > 1 else None


def agree(flag: bool, device: Any = None) -> bool:
    """Return whether any rank says so, the same on every rank; alone: the flag itself.

    Args:
        flag: what this rank says.
        device: where a small tensor can be reduced; by default what the backend needs.
    """
    return _reduce([float(flag)], device, "MAX")[0] > 0


def mean(numbers: Sequence[float], device: Any = None) -> list[float]:
    """Return the means over all ranks, the same on every rank; alone: the numbers themselves."""
    distributed = group()
    if distributed is None:
        return list(numbers)
    size = distributed.get_world_size()
    return [total / size for total in _reduce(numbers, device, "SUM")]


def let_go() -> None:
    """Leave torch.distributed while Python still stands; for a rank that has nothing left to say.

    Gloo's threads may hold the tensors of a collective for a moment after it has returned; where
    that moment falls into Python's end, the process aborts (PyTorch issue 190489), and a run that
    was complete ends with -6. Groups of other backends are left to the script: destroying them may
    wait for a peer.
    """
    distributed = group()
    if distributed is not None and distributed.get_backend() == "gloo":
        distributed.destroy_process_group()
        gc.collect()  # whoever still holds the group in a cycle, as DDP does


def _reduce(numbers: Sequence[float], device: Any, how: str) -> list[float]:
    distributed = group()
    if distributed is None:
        return list(numbers)
    torch = sys.modules["torch"]
    place = _place(torch, distributed, device)
    shared = torch.tensor(list(numbers), dtype=torch.float64, device=place)
    distributed.all_reduce(shared, op=getattr(distributed.ReduceOp, how))
    found: list[float] = shared.tolist()
    return found


def _place(torch: Any, distributed: Any, device: Any) -> Any:
    """Return a device that the backend reduces on: the CPU where it can, else the model's."""
    if "nccl" not in distributed.get_backend() or "gloo" in distributed.get_backend():
        return "cpu"
    if device is not None and device.type == "cuda":
        return device
    return torch.device("cuda", torch.cuda.current_device())
