"""The tensors of one call, by name."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


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
