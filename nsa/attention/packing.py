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


def attend_documents(
    attend: Callable[..., tuple[Tensor, Tensor]], tensors: Sequence[Tensor], doc_ids_BS: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply attention to each document by itself.

    Args:
        attend: Takes the tensors of documents of one length, returns output and block ids.
        tensors: All [B, S, ...].
        doc_ids_BS: Integers [B, S]; a document is a run of equal numbers.

    Returns:
        Output and block ids of all tokens, [B, S, ...] each.
    """
    lengths = document_lengths(doc_ids_BS)
    # split, not slices: a slice's backward fills the whole tensor with zeros each time.
    rows = [x.flatten(0, 1).split([n for item in lengths for n in item]) for x in tensors]
    alike: dict[int, list[int]] = defaultdict(list)
    for number, length in enumerate(n for item in lengths for n in item):
        alike[length].append(number)
    results: dict[int, tuple[Tensor, Tensor]] = {}
    for numbers in alike.values():
        out, ids = attend(*(torch.stack([x[n] for n in numbers]) for x in rows))
        results |= dict(zip(numbers, zip(out.unbind(0), ids.unbind(0), strict=True), strict=True))
    outs, all_ids = zip(*(results[n] for n in range(len(results))), strict=True)
    B, S = doc_ids_BS.shape
    return torch.cat(outs).unflatten(0, (B, S)), torch.cat(all_ids).unflatten(0, (B, S))
