"""The process group of a run: gradient averaging and small shared numbers.

Every collective is counted in `collective_seq` before it can block.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from nsa.errors import BadConfig
from nsa.model.transformer import LanguageModel
from nsa.sections import Moment, Stopwatch
from nsa.settings import Settings


def shard(
    model: LanguageModel,
    device: torch.device,
    *,
    wire_dtype: torch.dtype | None,
    on_collective: Callable[[], None],
    on_reduction: Callable[[Tensor], None],
) -> None:
    """Shard a model in place; `on_reduction` is called with the gradients that are sent."""
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
    """A state with every sharded tensor whole, on the CPU, if this rank keeps it; a collective."""
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


# Above every deadline of a watcher: a collective that waits is the watcher's business.
_COLLECTIVE_TIMEOUT = timedelta(hours=3)


class Ranks:
    """This process among its peers; `on_collective` is called before each collective."""

    def __init__(
        self,
        settings: Settings,
        parallel: str,
        device: torch.device,
        on_collective: Callable[[], None],
    ) -> None:
        self.rank, self.world_size = settings.rank, settings.world_size
        self.backend = {"ddp": "DDP", "fsdp": "FSDP"}.get(parallel, "single")
        self.wait_s = 0.0
        self._settings, self._device = settings, device
        self._on_collective = on_collective
        self._stopwatch = Stopwatch(device)
        self._reduced_at: Moment | None = None
        self._reduced_bytes = 0
        self._graph_unknown = False
        self._second: Any = None
        if parallel == "single":
            if self.world_size != 1:
                raise BadConfig(f"parallel single with {self.world_size} ranks")
            return
        backend = "nccl" if device.type == "cuda" else "gloo"
        if settings.under_torchrun:
            dist.init_process_group(backend, timeout=_COLLECTIVE_TIMEOUT)
        else:
            store = dist.HashStore()  # type: ignore[attr-defined] # torch does not export it
            dist.init_process_group(backend, store=store, rank=0, world_size=1)

    def wrap(self, model: LanguageModel) -> nn.Module:
        """The model whose backward averages gradients over the ranks; FSDP shards it itself."""
        if self.backend == "single":
            return model
        safe = self._settings.on("NSA_DDP_SAFE_MODE")
        compress = not safe and self._settings.value("NSA_DDP_COMPRESS") == "bf16"
        wire_dtype = torch.bfloat16 if compress else None
        if self.backend == "FSDP":
            shard(
                model,
                self._device,
                wire_dtype=wire_dtype,
                on_collective=self._on_collective,
                on_reduction=self._note_reduction,
            )
            return model
        # The rotation table is equal by construction: no broadcast of it before each forward.
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["rotation"])
        self._graph_unknown = not safe and self._settings.on("NSA_DDP_STATIC_GRAPH")
        net = DistributedDataParallel(
            model,
            device_ids=[self._device.index] if self._device.type == "cuda" else None,
            bucket_cap_mb=float(self._settings.value("NSA_DDP_BUCKET_MB")),
            find_unused_parameters=safe or self._settings.on("NSA_DDP_FIND_UNUSED"),
            static_graph=self._graph_unknown,
        )
        net.register_comm_hook(wire_dtype, self._average_bucket)
        return net

    def open_second_group(self) -> None:
        """Open a process group of all ranks beside the first; a collective."""
        if self.backend == "single":
            raise BadConfig("a single rank has no second group")
        self._second = dist.new_group()

    def stand_apart(self) -> None:
        """Enter one collective more than the others: an all-reduce in the second group."""
        self._on_collective()
        dist.all_reduce(torch.zeros(1, device=self._device), group=self._second)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def begin_step(self) -> None:
        """Count waits and gradients from zero."""
        self.wait_s, self._reduced_bytes = 0.0, 0

    @contextmanager
    def part_of_step(self, net: nn.Module, *, last: bool) -> Iterator[None]:
        """Around forward and backward of one part; gradients are averaged in the last only.

        With a static graph every part of the first step averages: DDP learns the graph there, and
        fails if its first backward pass does not average. The sums are the same.
        """
        self._reduced_at = None
        if self.backend == "FSDP":
            sharded: Any = net
            sharded.set_requires_gradient_sync(last)
        if last or self._graph_unknown or not isinstance(net, DistributedDataParallel):
            yield
            self._graph_unknown = self._graph_unknown and not last
        else:
            with net.no_sync():
                yield

    def waits_since(self) -> Moment | None:
        """When the backward pass had launched its last reduction; None: it waited for nobody."""
        return self._reduced_at

    def comm_mb(self) -> float | None:
        """Gradients handed to collectives in the step, in MB (2^20 bytes); None where to nobody."""
        return None if self.world_size == 1 else round(self._reduced_bytes / 2**20, 6)

    def add_up(self, numbers: list[float]) -> list[float]:
        """The sums over all ranks, in fp64, equal on every rank."""
        if self.backend == "single":
            return numbers
        shared = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        with self._waiting():
            dist.all_reduce(shared)
            return shared.tolist()

    def add_up_and_read(self, shared: Tensor, own: Tensor) -> tuple[list[float], list[float]]:
        """The sums of `shared` over all ranks, and this rank's `own` in one transfer, both fp64."""
        if self.backend == "single":
            numbers: list[float] = torch.cat((shared, own)).tolist()
        else:
            with self._waiting():
                dist.all_reduce(shared)
                numbers = torch.cat((shared, own)).tolist()
        return numbers[: shared.numel()], numbers[shared.numel() :]

    def choose(self, number: int) -> int:
        """Rank 0's number, on every rank."""
        return int(self.add_up([number if self.rank == 0 else 0])[0])

    def gather(self, data: Tensor) -> list[Tensor]:
        """A tensor of equal shape and dtype from every rank, in order of rank, on the CPU."""
        if self.backend == "single":
            return [data]
        here = data.to(self._device)
        gathered = [torch.empty_like(here) for _ in range(self.world_size)]
        with self._waiting():
            dist.all_gather(gathered, here)
        return [tensor.cpu() for tensor in gathered]

    def whole(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state dict without shards, on rank 0; others hold what is not sharded alone."""
        if self.backend != "FSDP":
            return state
        with self._waiting():
            gathered: dict[str, Any] = whole(state, keep=self.rank == 0)
        return gathered

    def cut(self, state: dict[str, Any], parameters: Sequence[Tensor]) -> dict[str, Any]:
        """An optimizer's whole state, sharded as its parameters are."""
        if self.backend != "FSDP":
            return state
        return as_parameters(state, parameters)

    def leave_together(self) -> None:
        """Wait for every rank, then take the group down; without it exits are not clean."""
        if self.backend != "single":
            self.add_up([0.0])
            dist.destroy_process_group()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._on_collective()
        began = time.monotonic()
        yield
        self.wait_s += time.monotonic() - began

    def _note_reduction(self, wire: Tensor) -> None:
        self._reduced_at = self._stopwatch.now()
        self._reduced_bytes += wire.nbytes

    def _average_bucket(
        self,
        wire_dtype: torch.dtype | None,
        bucket: dist.GradBucket,  # type: ignore[name-defined] # DDP wants this very annotation
    ) -> torch.futures.Future[Tensor]:
        self._on_collective()
        gradients = bucket.buffer()
        wire = gradients if wire_dtype is None else gradients.to(wire_dtype)
        self._note_reduction(wire)
        wire.div_(self.world_size)
        future = dist.all_reduce(wire, async_op=True).get_future()

        def received(done: Any) -> Tensor:
            result = done.value()[0]
            return result if result is gradients else gradients.copy_(result)

        return future.then(received)
