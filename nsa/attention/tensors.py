"""The sizes and the tensors of one call, by name, and whether they fit together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from nsa.attention.compression import compressed_length

FIRST, RECENT = 1, 2
"""Blocks that every query selects, whatever their scores: the first of the sequence, and its own
with the one before."""
FORCED = FIRST + RECENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Block sizes, as the arguments of `nsa_attention`."""

    l: int = 32  # noqa: E741 - the paper's letter
    d: int = 16
    l_sel: int = 64
    n_sel: int = 16
    w: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Sizes):
    """What a backend is given beside tensors.

    Attributes:
        scale: Factor on every query-key product.
        want_ids: Whether the selected block ids are wanted.
        with_prefix: Whether the torch backend's pieces serve the dense prefix (no foreign kernel).
        with_window: As `with_prefix`, of the window.
    """

    scale: float
    want_ids: bool = True
    with_prefix: bool = True
    with_window: bool = True


class Tensors(NamedTuple):
    """The tensors of one call, in the order of the arguments of `nsa_attention`.

    All of them [B, S, ...], or [T, ...] where sequences lie end to end.

    Attributes:
        q: Queries [B, S, H, D].
        k_cmp: Keys of the compressed branch [B, S, G, D].
        v_cmp: Its values, as its keys; the other branches alike.
        k_sel: Keys of the selected branch.
        v_sel: Its values.
        k_win: Keys of the window branch.
        v_win: Its values.
        gates: Weights of the branches [B, S, H, 3]: compressed, selected, window.
    """

    q: Tensor
    k_cmp: Tensor
    v_cmp: Tensor
    k_sel: Tensor
    v_sel: Tensor
    k_win: Tensor
    v_win: Tensor
    gates: Tensor

    @property
    def groups(self) -> int:
        """Key/value heads of each branch."""
        return self.k_sel.shape[-2]

    def keys_values(self) -> dict[str, Tensor]:
        """Keys and values of the branches by name, in the order of the arguments."""
        return dict(zip(self._fields[1:-1], self[1:-1], strict=True))


def check_sizes(l: int, d: int, l_sel: int, n_sel: int, w: int) -> None:  # noqa: E741
    """Raise ValueError for block sizes that have no meaning."""
    sizes = {"l": l, "d": d, "l_sel": l_sel, "n_sel": n_sel, "w": w}
    if fractions := {name: size for name, size in sizes.items() if not isinstance(size, int)}:
        raise ValueError(f"sizes must be whole numbers, got {fractions}")
    if min(l, d, l_sel, w) < 1:
        raise ValueError(f"l, d, l_sel and w must be at least 1, got {l=} {d=} {l_sel=} {w=}")
    if l % d != 0:
        raise ValueError(f"d must divide l, got {l=} {d=}")
    if l_sel % d != 0:
        raise ValueError(f"d must divide l_sel, got {l_sel=} {d=}")
    if n_sel < FORCED:
        raise ValueError(f"n_sel must be at least {FORCED}: so many are forced, got {n_sel=}")


def check_shapes(tensors: Tensors) -> None:
    """Raise ValueError for tensors [B, S, ...] of other shapes than the queries ask for."""
    q, k_sel = tensors.q, tensors.k_sel
    if q.dim() != 4 or q.shape[1] < 1:
        raise ValueError(f"q must be [B, S >= 1, H, D], got {tuple(q.shape)}")
    if not q.is_floating_point():
        raise ValueError(f"q must be floating point, got {q.dtype}")
    B, S, H, D = q.shape
    groups = k_sel.shape[2] if k_sel.dim() == 4 else 0
    if groups < 1 or H % groups != 0:
        raise ValueError(f"the groups must divide the heads, got H={H} G={groups}")
    for name, tensor in tensors.keys_values().items():
        _check(name, tensor, (B, S, groups, D), q)
    _check("gates", tensors.gates, (B, S, H, 3), q)


def check_compressed(
    q: Tensor,
    compressed: tuple[Tensor, Tensor],
    groups: int,
    l: int,  # noqa: E741
    d: int,
) -> None:
    """Raise ValueError for compressed keys or values that are not [B, C, G, D]."""
    B, S, _, D = q.shape
    blocks = compressed_length(S, l, d)
    for number, tensor in enumerate(compressed):
        _check(f"compressed[{number}]", tensor, (B, blocks, groups, D), q)


def check_documents(doc_ids: Tensor, q: Tensor) -> None:
    """Raise ValueError for document numbers that are not integers [B, S]."""
    if tuple(doc_ids.shape) != tuple(q.shape[:2]) or doc_ids.is_floating_point():
        raise ValueError(f"doc_ids must be integers {tuple(q.shape[:2])}, got {doc_ids.shape}")


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], q: Tensor) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must be {shape}, got {tuple(tensor.shape)}")
    # Kernels take addresses: in C, or on a GPU, one of another device ends the process.
    if tensor.device != q.device:
        raise ValueError(f"{name} must be on {q.device} as q is, got {tensor.device}")
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {tensor.dtype}")
