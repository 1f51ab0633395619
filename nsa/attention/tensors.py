"""The sizes and the tensors of one call, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


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
