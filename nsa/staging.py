"""How is a state saved while training goes on? From a copy of it on the host.

Copying is all that training waits for: a memory copy on a CPU, a transfer into pinned memory on a
GPU. The buffers are used again by the next copy, so there is one at a time, and whoever writes it
must be done before the next.
"""

from typing import Any

import torch
from torch import Tensor


class Stage:
    """Room on the host for one state, kept from copy to copy."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, ...], Tensor] = {}

    def copy(self, state: Any) -> Any:
        """A state with every tensor copied; of a sharded one this rank's part.

        Args:
            state: dicts and lists of tensors and plain values.
        """
        copied = self._copy(state, ())
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # the copies were only queued
        return copied

    def _copy(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {key: self._copy(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, list):
            return [self._copy(item, (*path, str(at))) for at, item in enumerate(value)]
        if not isinstance(value, Tensor):
            return value
        here = local_part(value.detach())
        kept = self._buffers.get(path)
        if kept is None or kept.shape != here.shape or kept.dtype != here.dtype:
            pinned = here.device.type == "cuda"
            kept = torch.empty(here.shape, dtype=here.dtype, pin_memory=pinned)
            self._buffers[path] = kept
        return kept.copy_(here, non_blocking=True)


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part
