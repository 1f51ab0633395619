"""Attend to packed documents, each as if it were alone.

Documents of about one length share one call: the shorter ones are filled up with zeros at the end,
which no earlier token sees. So the number of calls grows with the logarithm of the longest.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Lengths up to the first go together; beyond, so many classes for each doubling of the length.
_SHORT = 32
_CLASSES_PER_DOUBLING = 2


def document_lengths(doc_ids_BS: Tensor) -> list[list[int]]:
    """Tokens of each document (a run of equal numbers), per batch item."""
    changes = doc_ids_BS[:, 1:] != doc_ids_BS[:, :-1]
    S = doc_ids_BS.shape[1]
    lengths = []
    for row in changes.cpu():
        edges = [0, *(row.nonzero()[:, 0] + 1).tolist(), S]
        lengths.append([end - begin for begin, end in itertools.pairwise(edges)])
    return lengths


def separated_documents(tokens_BS: Tensor, separator: int) -> list[list[int]]:
    """Tokens of each document, per batch item, where a separator ends every document."""
    ends = tokens_BS == separator
    return document_lengths(ends.cumsum(1) - ends.to(torch.int64))


def sequence_lengths(cu_seqlens: Tensor, tokens: int, max_seqlen: int) -> list[int]:
    """Tokens of each sequence, from `cu_seqlens` (int32 or int64 [B + 1], 0 to `tokens`)."""
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 1 or cu_seqlens.is_floating_point():
        raise ValueError(f"cu_seqlens must be integers [B + 1], got {tuple(cu_seqlens.shape)}")
    edges = cu_seqlens.tolist()
    lengths = [end - begin for begin, end in itertools.pairwise(edges)]
    if edges[0] != 0 or edges[-1] != tokens or min(lengths, default=0) < 0:
        raise ValueError(f"cu_seqlens must rise from 0 to the {tokens} tokens, got {edges}")
    if max(lengths, default=0) > max_seqlen:
        raise ValueError(f"a sequence has {max(lengths)} tokens, {max_seqlen=}")
    return lengths


def _length_class(length: int) -> int:
    """The longest document that goes together with one of `length` tokens."""
    edge = _SHORT
    while edge < length:
        edge *= 2
    if edge == _SHORT:
        return edge
    step = edge // 2 // _CLASSES_PER_DOUBLING
    return -(-length // step) * step


def _stack(parts: Sequence[Tensor], length: int) -> Tensor:
    """[n, length, ...] of tensors of at most that many tokens, zeros after their end."""
    if all(len(part) == length for part in parts):
        return torch.stack(list(parts))
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)


def attend_sequences(
    attend: Callable[..., tuple[Tensor, ...]],
    tensors: Sequence[Tensor],
    lengths: Sequence[int],
) -> tuple[Tensor, ...]:
    """Apply causal attention to each of some sequences that lie end to end.

    `attend` takes tensors [n, S, ...] and returns tensors [n, S, ...] whose first rows do not
    depend on later ones. Tensors are [T, ...]; no length is 0.
    """
    # split, not slices: a slice's backward fills the whole tensor with zeros each time.
    rows = [x.split(list(lengths)) for x in tensors]
    alike: dict[int, list[int]] = defaultdict(list)
    for number, length in enumerate(lengths):
        alike[_length_class(length)].append(number)
    results: dict[int, tuple[Tensor, ...]] = {}
    for numbers in alike.values():
        longest = max(lengths[n] for n in numbers)
        parts = attend(*(_stack([x[n] for n in numbers], longest) for x in rows))
        each = zip(*(part.unbind(0) for part in parts), strict=True)
        for n, row in zip(numbers, each, strict=True):
            results[n] = tuple(part[: lengths[n]] for part in row)
    whole = zip(*(results[n] for n in range(len(lengths))), strict=True)
    return tuple(torch.cat(part) for part in whole)


def attend_documents(
    attend: Callable[..., tuple[Tensor, ...]],
    tensors: Sequence[Tensor],
    lengths: Sequence[Sequence[int]],
) -> tuple[Tensor, ...]:
    """As `attend_sequences`, of tensors [B, S, ...] and lengths by `document_lengths`."""
    B, S = tensors[0].shape[:2]
    flat = [length for item in lengths for length in item]
    parts = attend_sequences(attend, [x.flatten(0, 1) for x in tensors], flat)
    return tuple(part.unflatten(0, (B, S)) for part in parts)
