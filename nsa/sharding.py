"""FSDP2, one unit per block: each rank keeps 1/n of every parameter.

Any way of training loads what another saved: states are gathered (`whole`) and cut again
(`as_parameters`). Import it only where needed: FSDP loads slowly.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from nsa.model.transformer import LanguageModel


def shard(
    model: LanguageModel,
    device: torch.device,
    *,
    wire_dtype: torch.dtype | None,
    on_collective: Callable[[], None],
    on_reduction: Callable[[Tensor], None],
) -> None:
    """Shard a model, which has the same weights on every rank, in place.

    `on_reduction` is called with the gradients that a launched reduction sends.
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(reduce_dtype=wire_dtype)
    for block in model.layers():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule) and hasattr(module, "set_custom_all_gather"):
            # The classes that these want are not public; what they must do is.
            gather: Any = _Gather(on_collective)
            reduce_scatter: Any = _ReduceScatter(on_collective, on_reduction)
            module.set_custom_all_gather(gather)
            module.set_custom_reduce_scatter(reduce_scatter)


def whole(value: Any, *, keep: bool) -> Any:
    """A state with every sharded tensor whole, on the CPU; a collective.

    A rank that does not `keep` them holds one tensor at a time.
    """
    if isinstance(value, DTensor):
        gathered = value.full_tensor()
        return gathered.cpu() if keep else None
    if isinstance(value, dict):
        return {key: whole(item, keep=keep) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item, keep=keep) for item in value]
    return value


def as_parameters(state: dict[str, Any], parameters: Sequence[Tensor]) -> dict[str, Any]:
    """An optimizer's whole state, cut as its parameters are (in the order of its groups)."""
    cut = {}
    for number, moments in state["state"].items():
        like = parameters[number]
        cut[number] = {name: _cut(value, like) for name, value in moments.items()}
    return {**state, "state": cut}


def _cut(value: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    here = value.to(like.device)
    # Every rank has read the whole tensor: nothing needs to be sent.
    return distribute_tensor(here, like.device_mesh, like.placements, src_data_rank=None)


class _Allocate:
    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Allocate):
    """FSDP's all-gather, counted."""

    def __init__(self, on_collective: Callable[[], None]) -> None:
        self._on_collective = on_collective

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        self._on_collective()
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)


class _ReduceScatter(_Allocate):
    """FSDP's reduce-scatter, counted and reported."""

    def __init__(
        self, on_collective: Callable[[], None], on_reduction: Callable[[Tensor], None]
    ) -> None:
        self._on_collective, self._on_reduction = on_collective, on_reduction

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        self._on_collective()
        self._on_reduction(input_tensor)
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)
