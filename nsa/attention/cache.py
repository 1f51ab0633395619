"""What does generation remember? Keys and values of each branch, and how much of them is read.

The compressed branch keeps one pair per whole block, appended as blocks complete; the selected
branch every token (any block may be chosen later); the window branch a ring of w tokens. Memory is
allocated once, for `capacity` tokens; appending more raises.

Tokens lie behind each other within a head, so that a selected block is one piece of memory.

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
    """Keys and values of the tokens so far; read by `decode`, filled by `append`.

    Attributes:
        length: Tokens so far.
        blocks: Compressed pairs so far.
        k_blocks: Compressed keys [B * G, n, D], the first `blocks` of them filled; v_blocks alike.
        k_sel: Keys of the selected branch [B, G, n, D], whole selection blocks; v_sel alike.
        k_ring: Keys of the last w tokens [B, G, w, D], token t at t % w; v_ring alike.
    """

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
        """Make room.

        Args:
            B: Sequences.
            G: Key/value heads.
            D: Width of a head.
            capacity: Tokens of each sequence, at most.
            sizes: Those of the attention.
            dtype: Of keys and values.
            device: Where they are kept.
            compression: What makes blocks of tokens; default their means. A layer sets its own.
            turn_blocks: What is done to the keys of blocks then. A layer sets its own.
        """

        def room(tokens: int) -> tuple[Tensor, Tensor]:
            shape = (B, G, tokens, D)
            return tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))  # type: ignore[return-value]

        self.sizes = sizes
        self.capacity = capacity
        self.length = 0
        self.blocks = 0
        most_blocks = compressed_length(capacity, sizes.l, sizes.d)
        self.k_blocks, self.v_blocks = (x.flatten(0, 1) for x in room(most_blocks))
        selectable = -(-capacity // sizes.l_sel)
        self.k_sel, self.v_sel = room(selectable * sizes.l_sel)
        self.k_ring, self.v_ring = room(min(sizes.w, capacity))
        # Where the selection blocks of each head begin among those of all, [B * G, 1].
        self.first_blocks = torch.arange(B * G, device=device)[:, None] * selectable
        # The tokens that blocks still to come will hold, as they came: fewer than l.
        self._open: list[tuple[Tensor, Tensor]] = []
        self._open_tokens = 0
        self.compression = compression or MeanCompression(sizes.l, sizes.d)
        self.turn_blocks = turn_blocks

    @torch.no_grad()
    def append(
        self,
        k_cmp: Tensor,
        v_cmp: Tensor,
        k_sel: Tensor,
        v_sel: Tensor,
        k_win: Tensor,
        v_win: Tensor,
    ) -> None:
        """Add n >= 1 tokens, [B, n, G, D] each; nothing is kept of the tensors themselves.

        Raises:
            ValueError: More tokens than the capacity.
        """
        n = k_sel.shape[1]
        if self.length + n > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens, not {self.length + n}")
        after = self.length + n
        self.k_sel[:, :, self.length : after] = k_sel.transpose(1, 2)
        self.v_sel[:, :, self.length : after] = v_sel.transpose(1, 2)
        ring = self.k_ring.shape[2]
        kept = min(n, ring)
        # The newest of them, up to the end of the ring and on from its beginning.
        place, kept_before = (after - kept) % ring, n - kept
        until_end = min(kept, ring - place)
        for to, new in ((self.k_ring, k_win), (self.v_ring, v_win)):
            new = new[:, kept_before:].transpose(1, 2)
            to[:, :, place : place + until_end] = new[:, :, :until_end]
            if until_end < kept:
                to[:, :, : kept - until_end] = new[:, :, until_end:]
        self.length = after
        self._open_tokens += n
        if self._open_tokens < self.sizes.l:
            self._open.append((k_cmp.clone(), v_cmp.clone()))
        else:
            self._open.append((k_cmp, v_cmp))
            self._complete_blocks()

    def _complete_blocks(self) -> None:
        k_open, v_open = (torch.cat(parts, dim=1) for parts in zip(*self._open, strict=True))
        k, v = self.compression(k_open, v_open)
        new = k.shape[1]
        if self.turn_blocks is not None:
            k = self.turn_blocks(k, self.blocks)
        self.k_blocks[:, self.blocks : self.blocks + new] = k.transpose(1, 2).flatten(0, 1)
        self.v_blocks[:, self.blocks : self.blocks + new] = v.transpose(1, 2).flatten(0, 1)
        self.blocks += new
        rest = new * self.sizes.d
        # Copies: views would keep all that was compressed, a whole prompt.
        self._open = [(k_open[:, rest:].clone(), v_open[:, rest:].clone())]
        self._open_tokens -= rest
