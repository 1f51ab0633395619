"""Sequences laid end to end in [T, ...], for what attends all of them in one pass.

Everything here is computed from their lengths, which are known to the host: nothing waits for a
device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nsa.attention.checks import check_compressed
from nsa.attention.compression import Compression


def _spread(values: Tensor, counts: Tensor, total: int, device: torch.device) -> Tensor:
    """Each of some values so often as counted, on a device."""
    there = values.to(device, non_blocking=True)
    often = counts.to(device, non_blocking=True)
    return torch.repeat_interleave(there, often, output_size=total)


def positions(counts: Sequence[int], device: torch.device) -> Tensor:
    """0, 1, … up to each of the counts, one after another: int64 [sum of the counts]."""
    each = torch.tensor(counts, dtype=torch.int64)
    total = sum(counts)
    first = _spread(each.cumsum(0) - each, each, total, device)
    return torch.arange(total, device=device) - first


def block_counts(lengths: Sequence[int], l: int, d: int) -> list[int]:  # noqa: E741
    """Whole blocks of `l` tokens, one every `d` tokens, of each sequence."""
    return [max(0, (length - l) // d + 1) for length in lengths]


def compress_sequences(
    compression: Compression,
    k_TGD: Tensor,
    v_TGD: Tensor,
    lengths: Sequence[int],
    l: int,  # noqa: E741
    d: int,
) -> tuple[Tensor, Tensor]:
    """Compress each sequence by itself, in one call: a block depends on its own tokens alone.

    Args:
        compression: φ.
        k_TGD: Keys of the compressed branch.
        v_TGD: Its values.
        lengths: Tokens of each sequence, none of them 0.
        l: Tokens in a block.
        d: Tokens between the starts of two blocks.

    Returns:
        Keys and values [C, G, D] of all blocks, those of the first sequence first.

    Raises:
        ValueError: The compression gave something else than one pair a block.
    """
    device, each = k_TGD.device, torch.tensor(lengths, dtype=torch.int64)
    counts = block_counts(lengths, l, d)
    blocks, total = torch.tensor(counts, dtype=torch.int64), sum(counts)
    # Every token is copied once, to where its sequence begins at a multiple of d: sums over
    # overlapping blocks, which the gradient takes, then have one owner and one order.
    whole = -(-each // d) * d
    laid = None
    if not torch.equal(whole, each):
        length = int(whole.sum())
        within = positions(whole.tolist(), device)
        last = _spread(each - 1, whole, length, device)
        laid = _spread(each.cumsum(0) - each, whole, length, device) + within.minimum(last)
    window = _spread((whole.cumsum(0) - whole) // d, blocks, total, device)
    window = window + positions(counts, device)

    def windows(x_TGD: Tensor) -> Tensor:
        if not total:
            return x_TGD[:0, None].expand(0, l, *x_TGD.shape[1:])
        x = x_TGD if laid is None else x_TGD.index_select(0, laid)
        return x.unfold(0, l, d).index_select(0, window).movedim(-1, 1).contiguous()

    k_ClGD = windows(k_TGD)
    pair = compression(k_ClGD, windows(v_TGD))
    check_compressed(k_ClGD, pair, k_TGD.shape[1], l, d)
    return pair[0][:, 0], pair[1][:, 0]
