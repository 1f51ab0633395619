"""Keys and values that generation keeps, by branch.

Compressed pairs as blocks complete, every token of the selected branch, and a ring of w tokens.
Memory is allocated once for `capacity` tokens. Shapes: B batch, G groups, D head width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nsa.attention.compression import Compression, MeanCompression, compressed_length
from nsa.attention.tensors import Sizes, check_sizes

# Compressed keys [B, n, G, D] and the number of the first one, to the keys as attended: a model
# with rotary embedding turns each block to its first position here.
TurnBlocks = Callable[[Tensor, int], Tensor]

_NAMES = ("k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win")


class NsaCache:
    """Keys and values of the tokens so far; read by `decode`, filled by `append`.

    Attributes:
        length: Tokens so far.
        blocks: Compressed pairs so far.
        k_blocks: Compressed keys [B * G, n, D], the first `blocks` of them filled; v_blocks alike.
        k_sel: Keys of the selected branch [B, G, n, D], whole selection blocks; v_sel alike.
        selectable: Those of both as rows, a row a block: [2 * B * G * J, l_sel * D].
        first_blocks: Where the blocks of each head's keys and values begin there: [2, B * G, 1].
        k_ring: Keys of the last w tokens [B, G, w, D], token t at t % w; v_ring alike.
    """

    @torch.inference_mode(False)  # begun in that mode, filled and read in it and without it
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
        """Make room for `capacity` tokens of each of B sequences.

        A layer sets its own `compression` (default: means) and `turn_blocks`, what is done to the
        keys of blocks then.
        """

        def room(tokens: int) -> tuple[Tensor, Tensor]:
            shape = (B, G, tokens, D)
            return tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))  # type: ignore[return-value]

        check_sizes(sizes.l, sizes.d, sizes.l_sel, sizes.n_sel, sizes.w)
        self.sizes = sizes
        self.capacity = capacity
        self.length = 0
        self.blocks = 0
        most_blocks = compressed_length(capacity, sizes.l, sizes.d)
        self.k_blocks, self.v_blocks = (x.flatten(0, 1) for x in room(most_blocks))
        J = -(-capacity // sizes.l_sel)
        both = torch.zeros(2, B, G, J * sizes.l_sel, D, dtype=dtype, device=device)
        self.k_sel, self.v_sel = both.unbind()
        self.selectable = both.view(-1, sizes.l_sel * D)
        self.first_blocks = torch.arange(2 * B * G, device=device).view(2, -1, 1) * J
        self.k_ring, self.v_ring = room(min(sizes.w, capacity))
        # The same memory in the order in which tokens come.
        self._of_tokens = [
            x.transpose(1, 2) for x in (self.k_sel, self.v_sel, self.k_ring, self.v_ring)
        ]
        # The tokens that blocks still to come will hold, as they came: fewer than l of room for l.
        self._open: tuple[Tensor, ...] = ()
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
            ValueError: Tensors of other shapes, or more tokens than the capacity.
        """
        n = k_sel.shape[1]
        B, _, G, D = self._of_tokens[0].shape
        for name, x in zip(_NAMES, (k_cmp, v_cmp, k_sel, v_sel, k_win, v_win), strict=True):
            if x.shape != (B, n, G, D):
                raise ValueError(f"{name} is {tuple(x.shape)}; expected {(B, n, G, D)}")
        self.check_room(n)
        # One operation for all copies: a token costs as many microseconds as it takes operations.
        *selected, k_ring, v_ring = self._of_tokens
        to, new = [x.narrow(1, self.length, n) for x in selected], [k_sel, v_sel]
        ring = k_ring.shape[1]
        # The newest of them, up to the end of the ring and on from its beginning.
        kept = min(n, ring)
        place = (self.length + n - kept) % ring
        until_end = min(kept, ring - place)
        for of_ring, tokens in ((k_ring, k_win), (v_ring, v_win)):
            to.append(of_ring.narrow(1, place, until_end))
            new.append(tokens if until_end == n else tokens.narrow(1, n - kept, until_end))
            if until_end < kept:
                to.append(of_ring.narrow(1, 0, kept - until_end))
                new.append(tokens.narrow(1, n - kept + until_end, kept - until_end))
        held = self._open_tokens + n <= self.sizes.l
        if held:
            to += [x.narrow(1, self._open_tokens, n) for x in self._open_like(k_cmp, v_cmp)]
            new += [k_cmp, v_cmp]
        torch._foreach_copy_(to, new)
        self.length += n
        if not held:
            opened = [x.narrow(1, 0, self._open_tokens) for x in self._open_like(k_cmp, v_cmp)]
            more = zip(opened, (k_cmp, v_cmp), strict=True)
            k_cmp, v_cmp = (torch.cat(parts, dim=1) for parts in more)
            self._complete_blocks(k_cmp, v_cmp)
            return
        self._open_tokens += n
        if self._open_tokens == self.sizes.l:
            self._complete_blocks(*self._open)

    def check_room(self, n: int) -> None:
        """Raise ValueError where there is no room for n tokens more."""
        if self.length + n > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens, not {self.length + n}")

    def _open_like(self, k_cmp: Tensor, v_cmp: Tensor) -> tuple[Tensor, ...]:
        """Room for l open tokens of these dtypes, [B, l, G, D]."""
        if not self._open:
            with torch.inference_mode(False):  # written to in that mode and without it
                self._open = tuple(
                    x.new_empty(x.shape[0], self.sizes.l, *x.shape[2:]) for x in (k_cmp, v_cmp)
                )
        return self._open

    def _complete_blocks(self, k_open: Tensor, v_open: Tensor) -> None:
        """Compress open tokens, l or more, and keep those that blocks still to come will hold."""
        k, v = self.compression(k_open, v_open)
        new = k.shape[1]
        if self.turn_blocks is not None:
            k = self.turn_blocks(k, self.blocks)
        self.k_blocks[:, self.blocks : self.blocks + new] = k.transpose(1, 2).flatten(0, 1)
        self.v_blocks[:, self.blocks : self.blocks + new] = v.transpose(1, 2).flatten(0, 1)
        self.blocks += new
        done = new * self.sizes.d
        rest = k_open.shape[1] - done
        for room, tokens in zip(self._open, (k_open, v_open), strict=True):
            # A copy between: room may be what the tokens lie in.
            room.narrow(1, 0, rest).copy_(tokens.narrow(1, done, rest).clone())
        self._open_tokens = rest
