"""Continue texts byte by byte from a cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.config import SEPARATOR
from nsa.model.transformer import LanguageModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next byte is drawn; filters apply in the order of the fields, each if given.

    Attributes:
        temperature: Divides the logits; 0 takes the likeliest byte.
        top_k: Only the k likeliest bytes.
        top_p: Only the likeliest bytes that together first reach this probability (nucleus
            sampling, arXiv 1904.09751), in (0, 1].

    Raises:
        ValueError: A number out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")


def next_probabilities(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Probability of each byte to be drawn, `[B, V]`, fp32."""
    logits = logits_BV.float()
    if sampling.temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits).scatter_(-1, best, 1.0)
    # Only differences count: from the largest, however small the temperature, nothing overflows.
    temperature = max(sampling.temperature, torch.finfo(logits.dtype).tiny)  # in fp32 not 0
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature
    order = logits.sort(dim=-1, descending=True, stable=True)
    ranked = order.values
    if sampling.top_k is not None:
        ranked[..., sampling.top_k :] = -torch.inf
    if sampling.top_p is not None:
        shares = ranked.softmax(-1)
        before = shares.cumsum(-1) - shares
        ranked = ranked.masked_fill(before >= sampling.top_p, -torch.inf)
    return torch.empty_like(ranked).scatter_(-1, order.indices, ranked.softmax(-1))


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt_BS: Tensor,
    count: int,
    *,
    sampling: Sampling | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """Continue a batch of prompts [B, S]; yields the next byte of each, int64 [B], `count` times.

    If the model separates documents, a separator begins a new one only if all of the batch have one
    at that place.

    Raises:
        ValueError: The prompt is empty, or more tokens in all than `seq_len`; or the model keeps
            documents apart and those of a batch do not end together.
    """
    sampling = sampling or Sampling()
    B, S = prompt_BS.shape
    most = model.rotation.shape[1]
    if S < 1:
        raise ValueError("a prompt needs at least one byte")
    if S + count > most:
        raise ValueError(
            f"a prompt of {S} and {count} new bytes exceed the {most} tokens that the model sees"
        )
    caches, tokens_BS = model.start_caches(B), prompt_BS
    if model.documents_apart:
        tokens_BS = _last_document(prompt_BS)
    for _ in range(count):
        logits_BV = model.extend(tokens_BS, caches)
        if model.documents_apart and (tokens_BS[:, -1] == SEPARATOR[0]).all():
            caches = model.start_caches(B)  # the next byte begins a document
        drawn = torch.multinomial(next_probabilities(logits_BV, sampling), 1, generator=generator)
        yield drawn[:, 0]
        tokens_BS = drawn


def _last_document(prompt_BS: Tensor) -> Tensor:
    """The last token's own document: it sees no other if documents are separate."""
    ends_BS = prompt_BS[:, :-1] == SEPARATOR[0]
    if not ends_BS.any():
        return prompt_BS
    if not (ends_BS == ends_BS[:1]).all():
        raise ValueError("the documents of a batch of prompts must end at the same places")
    return prompt_BS[:, int(ends_BS[0].nonzero()[-1]) + 1 :]
