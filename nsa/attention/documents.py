"""A layer's packed documents in one pass: each has its own positions, blocks and rotations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nsa.attention.compression import Compression
from nsa.attention.rotary import rotate
from nsa.attention.sequences import compress_sequences, places_of
from nsa.attention.serving import Prepared
from nsa.attention.tensors import Tensors


def attend_at_once(
    prepared: Prepared,
    read: Tensors,
    documents: Sequence[Sequence[int]],
    table: Tensor,
    compression: Compression,
) -> tuple[Tensor, ...]:
    """Attend to each document as if it were alone.

    Args:
        prepared: A backend that takes sequences of many lengths at once.
        read: All [B, S, ...], none of them rotated.
        documents: Tokens of each document, per batch item.
        table: Rotations of the positions from 0 on.
        compression: φ; a compressed key is rotated to its block's first position.

    Returns:
        The output [B, S, H, D], and with `want_ids` the block ids within the documents.
    """
    device = read.q.device
    l, d = prepared.sizes["l"], prepared.sizes["d"]  # noqa: E741
    lengths = [length for item in documents for length in item]
    flat = Tensors(*(x.flatten(0, 1) for x in read))
    places = places_of(lengths, device, l, d)
    here = table.index_select(1, places.position)
    q, k_sel, k_win = (rotate(x[None], here)[0] for x in (flat.q, flat.k_sel, flat.k_win))
    k_blocks, v_blocks = compress_sequences(compression, flat.k_cmp, flat.v_cmp, lengths, l, d)
    k_blocks = rotate(k_blocks[None], table.index_select(1, places.block * d))[0]
    tensors = flat._replace(q=q, k_sel=k_sel, k_win=k_win)
    with torch.autocast(device.type, enabled=False):
        parts = prepared.attend_at_once(tensors, lengths, (k_blocks, v_blocks))
    return tuple(part.unflatten(0, read.q.shape[:2]) for part in parts)
