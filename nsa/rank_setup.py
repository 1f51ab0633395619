"""Build what a rank needs before its first step: device, ranks, model, optimizer."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa.assignment import Launch
from nsa.attention import counters
from nsa.attention.backends import BackendUnavailableError, choose_backend
from nsa.attention.network import Block
from nsa.attention.torch_backend import cpu_kernel
from nsa.checkpoint import (
    Snapshot,
    check_same_run,
    differences,
    load_checkpoint,
    load_weights,
    newest_checkpoint,
)
from nsa.config import TrainConfig, config_mapping
from nsa.data import BatchPlan
from nsa.device import choose_device, prepare_torch
from nsa.errors import BadConfig
from nsa.model import LanguageModel, build_model
from nsa.optimizer import LossScale, build_optimizer
from nsa.ranks import Ranks
from nsa.settings import Settings


class _Layer(nn.Module):
    """What is captured: a layer as a function of its tokens alone."""

    def __init__(self, block: Block, table: Tensor) -> None:
        super().__init__()
        self.block, self._plain, self._table = block, block.forward, table

    def forward(self, x_BSE: Tensor) -> Tensor:
        return self._plain(x_BSE, None, None, self._table)


def check_capturable(
    model: LanguageModel, device: torch.device, attention_backend: str, parallel: str
) -> None:
    """Raise BadConfig where a run's layers cannot be captured."""
    reasons = (
        (device.type != "cuda", "needs a GPU"),
        (attention_backend not in ("triton", "dense"),
         f"needs attention that never waits for the GPU (backend triton, or kind dense), "
         f"not {attention_backend}"),
        (parallel != "single", f"needs parallel single, not {parallel}: gradients that ranks share "
                               "were not shown to be those of kernels started one by one"),
        (model.gradient_checkpointing, "does not go with model.gradient_checkpointing"),
        (model.documents_apart, "does not go with packing.documents_apart: lengths are data"),
    )  # fmt: skip
    for holds, why in reasons:
        if holds:
            raise BadConfig(f"engine.cuda_graphs {why}")


def capture_layers(model: LanguageModel, *, sequences: int, seq_len: int) -> None:
    """Have every layer replay its passes over tokens `[sequences, seq_len, dim]` in training.

    Each pass is one CUDA graph; numbers agree to rounding. A call of another shape, or with a cache
    or documents, runs as before. Called as it trains, but for autocast's cache, which must be off.
    """
    blocks, table = model.layers(), model.rotation[:, :seq_len]
    shape = (sequences, seq_len, model.embedding.embedding_dim)
    layers = tuple(_Layer(block, table) for block in blocks)
    samples = tuple((torch.zeros(shape, device=table.device, requires_grad=True),) for _ in blocks)
    # Weights receive gradients from the stream of the capture and from others: both are waited for.
    if hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):  # else silent
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    before = {row[:3]: row.calls for row in counters.snapshot()}
    replays: Any = torch.cuda.make_graphed_callables(layers, samples)
    served = [row[:3] for row in counters.snapshot() if row.calls > before.get(row[:3], 0)]
    for block, replay in zip(blocks, replays, strict=True):
        # A layer's `forward`, not its call, as where it is compiled: hooks stay outside.
        block.forward = _replaying(block, replay, shape, served)  # type: ignore[method-assign]


def _replaying(
    block: Block, replay: Callable[[Tensor], Tensor], shape: tuple[int, ...], served: list[Any]
) -> Callable[..., Tensor]:
    """A layer's forward that replays where what is asked for is what was captured."""
    plain, attention = block.forward, block.attention
    gate_stats = getattr(attention, "gate_stats", None)  # every replay writes it again

    def forward(
        x_BSE: Tensor, cache: Any = None, documents: Any = None, table: Tensor | None = None
    ) -> Tensor:
        asked = cache is not None or documents is not None
        keeps = getattr(attention, "keep_selection", False)
        if asked or keeps or not block.training or tuple(x_BSE.shape) != shape:
            return plain(x_BSE, cache, documents, table)
        for row in served:
            counters.count(*row)
        x_BSE = replay(x_BSE)
        if gate_stats is not None:
            attention.gate_stats = gate_stats
        return x_BSE

    return forward


def own_gradients(model: nn.Module) -> None:
    """Give every weight a gradient of zeros, which those of a step's parts are added to."""
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)


_QUERY_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSetup:
    """One rank, ready to train.

    `attention_backend` is what `auto` has become (`dense` where attention is not sparse). `net` is
    `model`, wrapped if gradients are averaged. The weights have seen `resumed_step`; `marks` are
    where a stream of data then resumes. `corpus` is the digest of the text that they have seen.
    """

    config: TrainConfig
    plan: BatchPlan
    device: torch.device
    attention_backend: str
    ranks: Ranks
    model: LanguageModel
    net: nn.Module
    optimizer: torch.optim.Optimizer
    loss_scale: LossScale
    resumed_step: int
    marks: list[list[int]]
    corpus: str | None

    def compute_dtype(self) -> torch.autocast:
        """The context of a forward pass: 16-bit arithmetic over fp32 weights, or plain fp32."""
        return _autocast(self.config, self.device)

    @property
    def gradients_stay(self) -> bool:
        """Whether gradients keep their memory from step to step."""
        engine = self.config.engine
        return engine is not None and bool(engine.cuda_graphs) and self.plan.accumulate > 1

    def settle(self) -> None:
        """Let a section end when its work ends, not when its kernels are queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def set_up_rank(
    config: TrainConfig,
    plan: BatchPlan,
    launch: Launch,
    settings: Settings,
    on_collective: Callable[[], None],
) -> RankSetup:
    """Build everything; all ranks draw the same weights from the seed, or load the same ones."""
    device = choose_device(launch.device, settings)
    prepare_torch(device, settings)
    attention_backend = _attention_backend(config, device)
    ranks = Ranks(settings, config.parallel, device, on_collective)
    torch.manual_seed(config.seed)
    model = build_model(config).to(device)
    model.keep_gate_stats(not settings.on("NSA_DISABLE_AUX_STATS"))
    if not settings.on("NSA_PREFILL_BATCHED"):
        model.evaluate_sequentially(ranges_vectorised=settings.on("NSA_SEL_RANGES_V2"))
    if ranks.backend == "DDP" and settings.on("NSA_DDP_DISABLE_GC"):
        model.gradient_checkpointing = False
    engine, loss_scale = config.engine, LossScale(config.dtype, device, settings)
    if engine is not None and engine.compile:
        _compile(model, device)
    if engine is not None and engine.cuda_graphs:
        check_capturable(model, device, attention_backend, config.parallel)
        with _autocast(config, device, cached=False):
            capture_layers(model, sequences=plan.part_seqs, seq_len=plan.seq_len)
    snapshot = _open_checkpoint(launch, config, model)
    net = ranks.wrap(model)
    fused = None if engine is None else engine.fused_adamw
    optimizer = build_optimizer(model, config.optim, device, fused=fused)
    going_on = None if launch.weights_only else snapshot
    if going_on is not None:
        _go_on(going_on, optimizer, loss_scale, ranks, device)
    setup = RankSetup(
        config=config,
        plan=plan,
        device=device,
        attention_backend=attention_backend,
        ranks=ranks,
        model=model,
        net=net,
        optimizer=optimizer,
        loss_scale=loss_scale,
        resumed_step=0 if going_on is None else going_on.step,
        marks=[] if going_on is None else going_on.marks,
        corpus=None if going_on is None else going_on.corpus,
    )
    if setup.gradients_stay:
        own_gradients(model)
    return setup


def _autocast(config: TrainConfig, device: torch.device, *, cached: bool = True) -> torch.autocast:
    dtype = torch.float16 if config.dtype == "fp16" else torch.bfloat16
    enabled = config.dtype != "fp32"
    return torch.autocast(device.type, dtype=dtype, enabled=enabled, cache_enabled=cached)


def _attention_backend(config: TrainConfig, device: torch.device) -> str:
    if config.attention.kind == "dense":
        return "dense"
    try:
        shape, attention = config.model, config.attention
        dtype = _QUERY_DTYPES[config.dtype]
        q = torch.empty(1, 1, shape.heads, shape.head_dim, dtype=dtype, device=device)
        backend = choose_backend(attention.backend, q, shape.groups, attention.l_sel).path
    except BackendUnavailableError as error:
        raise BadConfig(str(error)) from error
    if backend == "torch" and device.type == "cpu":
        cpu_kernel()  # compiled now: a first step does not wait for it
    return backend


def _compile(model: LanguageModel, device: torch.device) -> None:
    """Compile the feed-forward parts; a module's `forward`, so that hooks stay outside."""
    if device.type == "cpu" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise BadConfig("engine.compile needs a C++ compiler on CPUs")
    for block in model.layers():
        block.ffn.forward = torch.compile(block.ffn.forward)  # type: ignore[method-assign]


def _open_checkpoint(launch: Launch, config: TrainConfig, model: nn.Module) -> Snapshot | None:
    """Read the checkpoint there may be and load its weights: of the same run, or they alone."""
    if launch.resume_path is None:
        return None
    path = newest_checkpoint(launch.resume_path)
    snapshot = load_checkpoint(path, launch.resume_step)
    if launch.weights_only:
        told = [f"{name} {was!r} → {now!r}" for name, was, now in _changed(snapshot, config)]
        print(f"weights alone of {path}, step {snapshot.step}", *told, sep="; ", file=sys.stderr)
    else:
        check_same_run(str(path), snapshot, config)
    load_weights(model, path, snapshot.model)
    return snapshot


def _go_on(
    snapshot: Snapshot,
    optimizer: torch.optim.Optimizer,
    loss_scale: LossScale,
    ranks: Ranks,
    device: torch.device,
) -> None:
    """Load what a run needs besides the weights to resume as if it had not stopped."""
    parameters = [item for group in optimizer.param_groups for item in group["params"]]
    # Moments are the checkpoint's; rates, decay and the kernel are what is configured now.
    groups = optimizer.state_dict()["param_groups"]
    try:
        if [group["params"] for group in snapshot.optimizer["param_groups"]] != [
            group["params"] for group in groups
        ]:
            raise ValueError("other parameters")
        moments = {**snapshot.optimizer, "param_groups": groups}
        optimizer.load_state_dict(ranks.cut(moments, parameters))
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise BadConfig(f"the checkpoint does not fit this optimizer: {error}") from error
    try:
        loss_scale.load(snapshot.loss_scale)
        if ranks.rank < len(snapshot.rng):
            torch.set_rng_state(snapshot.rng[ranks.rank])
        if device.type == "cuda" and ranks.rank < len(snapshot.device_rng):
            torch.cuda.set_rng_state(snapshot.device_rng[ranks.rank], device)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadConfig(f"the checkpoint's loss scale or random state is none: {error}") from error


def _changed(snapshot: Snapshot, config: TrainConfig) -> Iterator[tuple[str, Any, Any]]:
    """What the weights are used for that they were not trained for."""
    return differences(snapshot.config, config_mapping(config)) if snapshot.config else iter(())
