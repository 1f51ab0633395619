"""Sequences laid end to end in [T, ...], for what attends all of them in one pass.

What has to be known of them comes from their lengths alone, which the host knows: it is computed
there once, copied by copies that nobody waits for, and kept for the layers of a model.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.attention.checks import check_compressed
from nsa.attention.compression import Compression


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """Where the tokens and the compressed blocks of sequences stand; int64 on the device.

    Attributes:
        position: Position of each token in its sequence: [T].
        block: Number of each block in its sequence: [C].
        laid: Tokens so that every sequence begins at a multiple of d, None where all do.
        window: Which stretch of l of those each block is, one beginning every d: [C].
    """

    position: Tensor
    block: Tensor
    laid: Tensor | None
    window: Tensor


def spread(values: Tensor, counts: Tensor) -> Tensor:
    """Each of some values so often as counted."""
    return torch.repeat_interleave(values, counts, dim=0)


def within(counts: Tensor) -> Tensor:
    """0, 1, … up to each of the counts, one after another."""
    return torch.arange(int(counts.sum()), device="cpu") - spread(counts.cumsum(0) - counts, counts)


def block_counts(lengths: Tensor, l: int, d: int) -> Tensor:  # noqa: E741
    """Whole blocks of `l` tokens, one every `d` tokens, of each sequence."""
    return ((lengths - l) // d + 1).clamp_min(0)


def copied(x: Tensor, device: torch.device) -> Tensor:
    """From the host to a device, without a wait."""
    if device.type != "cuda":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def stream_of(device: torch.device) -> int:
    """What copies are ordered by: another stream would not wait for them."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def places_of(lengths: Sequence[int], device: torch.device, l: int, d: int) -> Places:  # noqa: E741
    """Those of sequences; of the last few calls they are kept.

    Args:
        lengths: Tokens of each sequence, none of them 0.
        device: Where they will be read.
        l: Tokens in a compression block.
        d: Tokens between the starts of two blocks.
    """
    return _places(tuple(lengths), device, stream_of(device), l, d)


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)  # whoever is kept serves training too
def _places(
    lengths: tuple[int, ...], device: torch.device, _stream: int, l: int, d: int  # noqa: E741
) -> Places:  # fmt: skip
    each = torch.tensor(lengths, device="cpu")
    blocks = block_counts(each, l, d)
    whole = -(-each // d) * d
    position, block = within(each), within(blocks)
    laid = None
    if not torch.equal(whole, each):
        last = spread(each - 1, whole)
        laid = copied(spread(each.cumsum(0) - each, whole) + within(whole).minimum(last), device)
    window = spread((whole.cumsum(0) - whole) // d, blocks) + block
    return Places(
        position=copied(position, device), block=copied(block, device), laid=laid,
        window=copied(window, device),
    )  # fmt: skip


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
    places = places_of(lengths, k_TGD.device, l, d)

    def windows(x_TGD: Tensor) -> Tensor:
        if not len(places.window):
            return x_TGD[:0, None].expand(0, l, *x_TGD.shape[1:])
        # Every token is copied once, and then looked at by several blocks: their gradients are
        # summed in one order, which a sum by indices would not promise.
        x = x_TGD if places.laid is None else x_TGD.index_select(0, places.laid)
        return x.unfold(0, l, d).index_select(0, places.window).movedim(-1, 1).contiguous()

    k_ClGD = windows(k_TGD)
    pair = compression(k_ClGD, windows(v_TGD))
    check_compressed(k_ClGD, pair, k_TGD.shape[1], l, d)
    return pair[0][:, 0], pair[1][:, 0]
