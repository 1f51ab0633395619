"""The work of one branch as a list of dense pieces.

- A *span*: neighbouring queries against a contiguous range of keys, with causal and window edges.
- *Gathered*: all queries of a group that chose a key block, against that block.

Shapes: B batch, G groups, N = B * G pairs, S tokens, R = H / G heads of a group, D head width, K
keys. P = S * R rows: all heads of the first query, then of the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceSize:
    """How much one piece holds, at most.

    Attributes:
        span_queries: Queries of a span.
        gathered_queries: Queries that are gathered at once.
        bytes: Scores of several pairs that are computed together.
    """

    span_queries: int
    gathered_queries: int
    bytes: int


# Pieces stay near a core's second-level cache (measured best); a GPU wants fewer, larger ones.
_SIZES = {
    "cpu": PieceSize(span_queries=64, gathered_queries=512, bytes=512 * 1024),
    "cuda": PieceSize(span_queries=256, gathered_queries=4096, bytes=64 * 1024 * 1024),
}


def piece_size(device: torch.device) -> PieceSize:
    """The sizes that suit a device."""
    return _SIZES.get(device.type, _SIZES["cpu"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Queries [t0, t1) against keys [k0, k1); key s is hidden from t when s > t or s <= t - w."""

    t0: int
    t1: int
    k0: int
    k1: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Queries of pair n against its keys [k0, k1); query t is number n * S + t in `queries`."""

    n: int
    k0: int
    k1: int
    queries: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything one branch computes; each (query, key) pair that attends is in one piece.

    Attributes:
        spans: Pieces of neighbouring queries.
        gathered: Pieces of gathered queries.
        w: Width of the window that cuts the spans, None for no window.
        masks: The few different masks of the spans, made when first needed.
    """

    spans: tuple[Span, ...]
    gathered: tuple[Gathered, ...] = ()
    w: int | None = None
    masks: dict[tuple[str, int, int, int], Tensor] = field(default_factory=dict)

    def hide(self, scores_NTRK: Tensor, span: Span) -> None:
        """Set the scores of the pairs that must not attend to -inf, in place."""
        edge = max(span.k0, span.t0 + 1)
        if edge < span.k1:
            scores_NTRK[..., edge - span.k0 :].add_(self._future(scores_NTRK, span, edge))
        if self.w is not None and span.k0 < span.t1 - self.w:
            past = self._past(scores_NTRK, span, self.w)
            scores_NTRK[..., : past.shape[-1]].add_(past)

    def lone_queries(self, span: Span) -> int:
        """How many queries of a span, from its first, see a single key in the whole plan."""
        if self.w == 1:
            return span.t1 - span.t0
        return int(span.t0 == 0)

    def _future(self, scores: Tensor, span: Span, edge: int) -> Tensor:
        """-inf where s > t, else 0, for the keys from `edge` on: [T, 1, K']."""
        key = ("future", span.t1 - span.t0, edge - span.t0, span.k1 - edge)
        if key not in self.masks:
            t = torch.arange(span.t0, span.t1, device=scores.device)[:, None, None]
            s = torch.arange(edge, span.k1, device=scores.device)
            zeros = scores.new_zeros(len(t), 1, len(s))
            self.masks[key] = zeros.masked_fill_(s > t, -torch.inf)
        return self.masks[key]

    def _past(self, scores: Tensor, span: Span, w: int) -> Tensor:
        """-inf where s <= t - w, else 0, for the keys that some query may not see: [T, 1, K']."""
        end = min(span.k1, span.t1 - w)
        key = ("past", span.t1 - span.t0, span.k0 - span.t0, end - span.k0)
        if key not in self.masks:
            t = torch.arange(span.t0, span.t1, device=scores.device)[:, None, None]
            s = torch.arange(span.k0, end, device=scores.device)
            zeros = scores.new_zeros(len(t), 1, len(s))
            self.masks[key] = zeros.masked_fill_(s <= t - w, -torch.inf)
        return self.masks[key]


def pack_rows(x_BSHX: Tensor, G: int, dtype: torch.dtype) -> Tensor:
    """[B, S, H, X] to contiguous rows [N, P, X]; the same memory where nothing has to move."""
    B, S, H, X = x_BSHX.shape
    x_BGSRX = x_BSHX.reshape(B, S, G, H // G, X).transpose(1, 2)
    packed = x_BGSRX.to(dtype=dtype, memory_format=torch.contiguous_format)
    return packed.reshape(B * G, S * (H // G), X).contiguous()


def unpack_rows(x_NPX: Tensor, like_BSHX: Tensor, G: int) -> Tensor:
    """Rows [N, P, X] to [B, S, H, X] in the dtype of another; no view: callers may write to it."""
    B, S, H, X = like_BSHX.shape
    unpacked = like_BSHX.new_empty(like_BSHX.shape)
    to = unpacked.view(B, S, G, H // G, X).transpose(1, 2)
    to.copy_(x_NPX.view(to.shape))
    return unpacked


def pairs_at_once(x_NPD: Tensor, scores: int) -> Iterator[slice]:
    """Split the pairs so that the scores of one piece stay in cache: small ones go together."""
    N = x_NPD.shape[0]
    step = max(1, piece_size(x_NPD.device).bytes // max(1, scores * x_NPD.element_size()))
    for n in range(0, N, step):
        yield slice(n, min(N, n + step))


def causal_spans(S: int, length: int) -> tuple[Span, ...]:
    """Full causal attention of the first `S` tokens."""
    return tuple(
        Span(t0=t0, t1=min(S, t0 + length), k0=0, k1=min(S, t0 + length))
        for t0 in range(0, S, length)
    )


def window_plan(S: int, w: int, length: int) -> Plan:
    """Sliding window: query t sees the keys max(0, t - w + 1) .. t."""
    spans = tuple(
        Span(
            t0=t0,
            t1=min(S, t0 + length),
            k0=max(0, t0 - w + 1),
            k1=min(S, t0 + length),
        )
        for t0 in range(0, S, length)
    )
    return Plan(spans=spans, w=w)
