"""Sequences of different lengths in one launch: which tile belongs to which of them?

A tile never crosses from one sequence into the next. A kernel of packed sequences starts one
program for each tile that there is, and reads from these tables whose tile it is and where that
sequence's tokens, compressed blocks and choices begin; the rest of it is as for one length.
Queries that choose blocks are numbered over all sequences, and so are the selection blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.attention.gpu.tiles import Tiles
from nsa.attention.sequences import block_counts, copied, spread, stream_of, within

# Triton compiles another kernel for a pointer that is not at a multiple of 16 bytes.
_ALIGNED = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """Tables of sequences that lie end to end, none of them empty; int32 on the device.

    Attributes:
        longest: Tokens of the longest.
        late: Queries that choose blocks, of all sequences.
        blocks: Selection blocks of all sequences.
        sequences: First token, tokens, first compressed block, compressed blocks, first query that
            chooses: [n, 5].
        forward: Sequence and number there of each tile of query rows, the last first: [n, 2].
        dq: The same for the tiles of the backward pass.
        keys: The same for tiles of keys, from the first.
        block_keys: The same for tiles of compressed keys.
        scores: Sequence and first query of each tile of queries that choose.
        of_block: Of each selection block its first token, what makes the number of a query that
            chooses a token, and the end of its sequence: [blocks, 3].
        block_of_late: First selection block of the sequence of each query that chooses: [late].
        token_of_late: Its token: [late].
    """

    longest: int
    late: int
    blocks: int
    sequences: Tensor
    forward: Tensor
    dq: Tensor
    keys: Tensor
    block_keys: Tensor
    scores: Tensor
    of_block: Tensor
    block_of_late: Tensor
    token_of_late: Tensor


def _tiles(counts: Tensor, size: int) -> Tensor:
    """Sequence and number within it of every tile."""
    each = -(-counts // size)
    number = torch.arange(len(counts), device="cpu")
    return torch.stack((spread(number, each), within(each)), dim=1)


def _last_first(tiles: Tensor) -> Tensor:
    return tiles[tiles[:, 1].argsort(descending=True, stable=True)]


def pack(
    lengths: Sequence[int],
    device: torch.device,
    *,
    l: int,  # noqa: E741
    d: int,
    l_sel: int,
    start: int,
    heads: int,
    tiles: Tiles,
) -> Packed:
    """The tables; those of the last few calls are kept, for the layers of a model.

    Args:
        lengths: Tokens of each sequence, none of them 0.
        device: Where the kernels will read them.
        l: Tokens in a compression block.
        d: Tokens between the starts of two compression blocks.
        l_sel: Tokens in a selection block.
        start: First query of a sequence that chooses blocks.
        heads: Heads of a group.
        tiles: Of the kernels.
    """
    return _pack(tuple(lengths), device, stream_of(device), l, d, l_sel, start, heads, tiles)


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)
def _pack(
    lengths: tuple[int, ...], device: torch.device, _stream: int, l: int, d: int, l_sel: int,  # noqa: E741
    start: int, heads: int, tiles: Tiles,
) -> Packed:  # fmt: skip
    counts = torch.tensor(lengths, device="cpu")
    late, blocks = (counts - start).clamp_min(0), -(-counts // l_sel)
    compressed = block_counts(counts, l, d)
    tokens, compressed_blocks, chosen, first_block = (
        x.cumsum(0) - x for x in (counts, compressed, late, blocks)
    )
    choosing = _tiles(late, tiles.scores.rows)
    choosing[:, 1] = start + choosing[:, 1] * tiles.scores.rows
    per_block = torch.stack((tokens, tokens + start - chosen, tokens + counts), dim=1)
    of_block = spread(per_block, blocks)
    of_block[:, 0] += within(blocks) * l_sel
    tables = _moved(
        {
            "sequences": torch.stack((tokens, counts, compressed_blocks, compressed, chosen), 1),
            "forward": _last_first(_tiles(counts * heads, tiles.forward.rows)),
            "dq": _last_first(_tiles(counts * heads, tiles.dq.rows)),
            "keys": _tiles(counts, tiles.dkdv.keys),
            "block_keys": _tiles(compressed, tiles.dkdv.keys),
            "scores": choosing,
            "of_block": of_block,
            "block_of_late": spread(first_block, late),
            "token_of_late": spread(tokens + start, late) + within(late),
        },
        device,
    )
    return Packed(
        longest=max(lengths), late=int(late.sum()), blocks=int(blocks.sum()), **tables
    )  # fmt: skip


def _moved(tables: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """All tables by one copy that nobody waits for."""
    flat = [x.flatten().to(torch.int32) for x in tables.values()]
    padded = [torch.nn.functional.pad(x, (0, -len(x) % _ALIGNED)) for x in flat]
    parts = copied(torch.cat(padded), device).split([len(x) for x in padded])
    return {
        name: part[: table.numel()].view(table.shape)
        for (name, table), part in zip(tables.items(), parts, strict=True)
    }
