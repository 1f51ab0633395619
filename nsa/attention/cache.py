"""What does generation remember? Keys and values of each branch, and how much of them is read.

The compressed branch keeps one pair per whole block, appended as blocks complete; the selected
branch every token (any block may be chosen later); the window branch a ring of w tokens. Memory is
allocated once, for `capacity` tokens; appending more raises.

Shape legend: B batch, G groups, D head width; tokens are positions 0 .. length - 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.attention.compression import Compression, MeanCompression, compressed_length

# Compressed keys [B, n, G, D] and the number of the first one, to the keys as attended: a model
# with rotary embedding turns each block to its first position here.
TurnBlocks = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Block sizes, as the arguments of `nsa_attention`."""

    l: int = 32  # noqa: E741
    d: int = 16
    l_sel: int = 64
    n_sel: int = 16
    w: int = 512


class NsaCache:
    """Keys and values of the tokens so far; read by `decode`, filled by `append`."""

    def __init__(
        self,
        *,
        B: int,
        G: int,
        D: int,
        capacity: int,
        sizes: Sizes,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        compression: Compression | None = None,
        turn_blocks: TurnBlocks | None = None,
    ) -> None:
        def room(tokens: int) -> tuple[Tensor, Tensor]:
            shape = (B, tokens, G, D)
            return tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))  # type: ignore[return-value]

        self.sizes = sizes
        self.capacity = capacity
        self.length = 0
        self.blocks = 0
        self.k_blocks, self.v_blocks = room(compressed_length(capacity, sizes.l, sizes.d))
        self.k_sel, self.v_sel = room(capacity)
        self.k_ring, self.v_ring = room(min(sizes.w, capacity))
        # The tokens that blocks still to come will hold: fewer than l.
        self._k_open, self._v_open = room(0)
        self._compression = compression or MeanCompression(sizes.l, sizes.d)
        self._turn_blocks = turn_blocks

    def append(
        self,
        k_cmp: Tensor,
        v_cmp: Tensor,
        k_sel: Tensor,
        v_sel: Tensor,
        k_win: Tensor,
        v_win: Tensor,
    ) -> None:
        """Add n >= 1 tokens, [B, n, G, D] each.

        Raises:
            ValueError: More tokens than the capacity.
        """
        n = k_sel.shape[1]
        if self.length + n > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens, not {self.length + n}")
        self.k_sel[:, self.length : self.length + n] = k_sel
        self.v_sel[:, self.length : self.length + n] = v_sel
        ring = self.k_ring.shape[1]
        kept = min(n, ring)
        place = torch.arange(self.length + n - kept, self.length + n, device=k_win.device) % ring
        self.k_ring[:, place] = k_win[:, n - kept :]
        self.v_ring[:, place] = v_win[:, n - kept :]
        self.length += n
        self._complete_blocks(k_cmp, v_cmp)

    def _complete_blocks(self, k_cmp: Tensor, v_cmp: Tensor) -> None:
        k_open = torch.cat((self._k_open, k_cmp), dim=1)
        v_open = torch.cat((self._v_open, v_cmp), dim=1)
        k, v = self._compression(k_open, v_open)
        new = k.shape[1]
        if new:
            if self._turn_blocks is not None:
                k = self._turn_blocks(k, self.blocks)
            self.k_blocks[:, self.blocks : self.blocks + new] = k
            self.v_blocks[:, self.blocks : self.blocks + new] = v
            self.blocks += new
        self._k_open, self._v_open = (
            k_open[:, new * self.sizes.d :],
            v_open[:, new * self.sizes.d :],
        )
