"""Which backend serves a call, and how is it told? For one length, and for sequences of many."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa.attention.backends import choose_for_call
from nsa.attention.checks import check_compressed
from nsa.attention.compression import Compression, MeanCompression
from nsa.attention.counters import count
from nsa.attention.kernels import Kernels, asked_kernels
from nsa.attention.packing import attend_sequences
from nsa.attention.reference import nsa_attention_reference
from nsa.attention.sequences import compress_sequences
from nsa.attention.tensors import Tensors
from nsa.attention.torch_backend import nsa_attention_torch


def _reference(tensors: Tensors, *, kernels: Kernels, want_ids: bool, **sizes: Any) -> Any:
    return nsa_attention_reference(tensors, **sizes)


def _torch(tensors: Tensors, *, want_ids: bool, **options: Any) -> Any:
    return nsa_attention_torch(tensors, **options)


def _triton(tensors: Tensors, *, kernels: Kernels, **options: Any) -> Any:
    # Imported when first used: Triton is optional, and slow to import.
    from nsa.attention.gpu.function import nsa_attention_triton

    return nsa_attention_triton(tensors, **options)


_BACKENDS: dict[str, Callable[..., Any]] = {
    "reference": _reference,
    "torch": _torch,
    "triton": _triton,
}
_ONE_PASS = ("triton",)
"""Those that take sequences of all lengths at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A backend that was chosen for a call, and what it is told.

    Attributes:
        backend: Its name.
        compression: φ, None for the mean.
        sizes: l, d, l_sel, n_sel and w.
        scale: Factor on every query-key product.
        kernels: Foreign kernels that are asked for.
        want_ids: Whether results have the block ids after the output.
    """

    backend: str
    compression: Compression | None
    sizes: dict[str, int]
    scale: float
    kernels: Kernels
    want_ids: bool

    def attend(
        self, *each: Tensor, compressed: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, ...]:
        """Attend [B, S, ...] tensors as `nsa_attention`, given one after another.

        `compressed` may be given where there is no compression.
        """
        tensors = Tensors(*each)
        if self.compression is not None:
            compressed = self.compression(tensors.k_cmp, tensors.v_cmp)
            check_compressed(
                tensors.q, compressed, tensors.groups, self.sizes["l"], self.sizes["d"]
            )
        if compressed is not None:
            compressed = rounded(compressed, tensors.q.dtype)
        out, ids = _BACKENDS[self.backend](
            tensors, compressed=compressed, scale=self.scale, kernels=self.kernels,
            want_ids=self.want_ids, **self.sizes,
        )  # fmt: skip
        return (out, ids) if self.want_ids else (out,)

    def attend_sequences(self, tensors: Tensors, lengths: Sequence[int]) -> tuple[Tensor, ...]:
        """Attend sequences that lie end to end in [T, ...], each as if it were alone.

        Args:
            tensors: All [T, ...].
            lengths: Tokens of each sequence, none of them 0.
        """
        if self.backend not in _ONE_PASS:
            return attend_sequences(self.attend, tensors, lengths)
        l, d = self.sizes["l"], self.sizes["d"]  # noqa: E741
        compression = self.compression or MeanCompression(l, d)
        blocks = compress_sequences(compression, tensors.k_cmp, tensors.v_cmp, lengths, l, d)
        return self.attend_at_once(tensors, lengths, blocks)

    def attend_at_once(
        self, tensors: Tensors, lengths: Sequence[int], compressed: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, ...]:
        """As `attend_sequences`, by a backend that takes sequences of all lengths at once.

        `compressed` are the keys and values [C, G, D] of the blocks of all of them.
        """
        from nsa.attention.gpu.function import attend_packed  # as in _triton

        out, ids = attend_packed(
            tensors, rounded(compressed, tensors.q.dtype), lengths,
            scale=self.scale, want_ids=self.want_ids, **self.sizes,
        )  # fmt: skip
        return (out,) if ids is None else (out, ids)


def prepare(
    q: Tensor,
    groups: int,
    *,
    backend: str,
    compression: Compression | None,
    kernels: Kernels | None,
    scale: float | None,
    want_ids: bool,
    **sizes: int,
) -> Prepared:
    """Choose who serves a call; q is [B, S, H, D].

    Raises:
        BackendUnavailableError: The backend cannot serve the call.
    """
    kernels = asked_kernels() if kernels is None else kernels
    chosen, reason = choose_for_call(backend, q, groups, sizes["l_sel"], kernels)
    count("attention", chosen, reason)
    return Prepared(
        backend=chosen, compression=compression, sizes=sizes, kernels=kernels, want_ids=want_ids,
        scale=1.0 / math.sqrt(q.shape[-1]) if scale is None else scale,
    )  # fmt: skip


def prepare_sequences(
    q: Tensor, groups: int, *, backend: str, want_ids: bool, **sizes: int
) -> Prepared | None:
    """As `prepare`, of a backend that takes sequences of all lengths at once; None of another."""
    chosen, _ = choose_for_call(backend, q, groups, sizes["l_sel"], asked_kernels())
    if chosen not in _ONE_PASS:
        return None
    return prepare(
        q, groups, backend=backend, compression=None, kernels=None, scale=None, want_ids=want_ids,
        **sizes,
    )  # fmt: skip


def rounded(blocks: tuple[Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Given keys and values of blocks, as what the backends compress themselves is rounded."""
    return blocks[0].to(dtype), blocks[1].to(dtype)
