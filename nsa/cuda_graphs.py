"""Capture a layer's two passes as one CUDA graph each, for steps of few tokens.

Numbers agree to rounding. Any call of another shape, or with a cache or documents, runs as before.
A replay reuses the memory of its gradients, so a step of several parts needs `own_gradients`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nsa.attention import counters
from nsa.attention.network import Block
from nsa.errors import BadConfig
from nsa.model import LanguageModel


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

    Called in the context that it trains in, but for autocast's cache, which must be off. The model
    is neither wrapped nor sharded; its weights may be changed in place afterwards.
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
