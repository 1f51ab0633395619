"""How is a batch of packed documents attended? Every document as if it were alone.

Compression and selection blocks are counted from a document's first token, no query sees another
document, and block ids are those within the document. Documents of one length go through one call.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def document_lengths(doc_ids_BS: Tensor) -> list[list[int]]:
    """Tokens of each document, per batch item.

    Args:
        doc_ids_BS: Integers [B, S]; a document is a run of equal numbers.
    """
    changes = doc_ids_BS[:, 1:] != doc_ids_BS[:, :-1]
    S = doc_ids_BS.shape[1]
    lengths = []
    for row in changes.cpu():
        edges = [0, *(row.nonzero()[:, 0] + 1).tolist(), S]
        lengths.append([end - begin for begin, end in itertools.pairwise(edges)])
    return lengths


def separated_documents(tokens_BS: Tensor, separator: int) -> list[list[int]]:
    """Tokens of each document, per batch item, where a separator ends every document.

    Args:
        tokens_BS: Token numbers [B, S].
        separator: The token that is the last of its document.
    """
    ends = tokens_BS == separator
    return document_lengths(ends.cumsum(1) - ends.to(torch.int64))


def attend_documents(
    attend: Callable[..., tuple[Tensor, ...]],
    tensors: Sequence[Tensor],
    lengths: Sequence[Sequence[int]],
) -> tuple[Tensor, ...]:
    """Apply attention to each document by itself.

    Args:
        attend: Takes the tensors of documents of one length, returns tensors [B, S, ...].
        tensors: All [B, S, ...].
        lengths: Tokens of each document, per batch item, as `document_lengths` gives them.

    Returns:
        What `attend` returned, of all tokens.
    """
    B, S = tensors[0].shape[:2]
    flat = [length for item in lengths for length in item]
    # split, not slices: a slice's backward fills the whole tensor with zeros each time.
    rows = [x.flatten(0, 1).split(flat) for x in tensors]
    alike: dict[int, list[int]] = defaultdict(list)
    for number, length in enumerate(flat):
        alike[length].append(number)
    results: dict[int, tuple[Tensor, ...]] = {}
    for numbers in alike.values():
        parts = attend(*(torch.stack([x[n] for n in numbers]) for x in rows))
        each = zip(*(part.unbind(0) for part in parts), strict=True)
        results |= dict(zip(numbers, each, strict=True))
    whole = zip(*(results[n] for n in range(len(flat))), strict=True)
    return tuple(torch.cat(part).unflatten(0, (B, S)) for part in whole)
