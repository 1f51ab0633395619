"""Which queries meet which keys? The work of one branch as a list of dense pieces.

Two kinds of piece cover a branch:

- a *span*: neighbouring queries against a contiguous range of keys, with the causal edge and the
  window's edge cut off (window, dense prefix, and a query's own and previous block);
- *gathered*: all queries of a group that chose a key block, against that block (block-major order:
  the keys are read once, the queries are gathered).

Shape legend: B batch, G groups, N = B * G pairs of them, S tokens, R = H / G query heads of a
group, D head width, K keys of a piece. Queries stay in the caller's layout [B, S, G, R, D]; a flat
row (b * S + t) * G + g of it holds the R heads of one group. Keys are packed to [B, G, S, D].
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
    """The queries at the flat `rows` against the keys [k0, k1) of batch item b and group g."""

    b: int
    g: int
    k0: int
    k1: int
    rows: Tensor


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
            scores_NTRK[..., edge - span.k0 :] += self._future(scores_NTRK, span, edge)
        if self.w is not None and span.k0 < span.t1 - self.w:
            past = self._past(scores_NTRK, span, self.w)
            scores_NTRK[..., : past.shape[-1]] += past

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


def pairs_at_once(q_BSGRD: Tensor, scores_per_head: int) -> Iterator[tuple[slice, slice]]:
    """Split the pairs (batch items, groups) so that the scores of one piece stay in cache.

    Small ones go together: several groups of one batch item, or whole batch items.

    Args:
        q_BSGRD: The queries, of all pairs.
        scores_per_head: Queries times keys of a piece.
    """
    B, _, G, R, _ = q_BSGRD.shape
    score_bytes = 8 if q_BSGRD.dtype == torch.float64 else 4
    piece_bytes = scores_per_head * R * score_bytes
    step = max(1, piece_size(q_BSGRD.device).bytes // max(1, piece_bytes))
    items, groups = max(1, step // G), min(step, G)
    for b in range(0, B, items):
        for g in range(0, G, groups):
            yield slice(b, min(B, b + items)), slice(g, min(G, g + groups))


def span_rows(x_BSGRX: Tensor, pairs: tuple[slice, slice], queries: slice) -> Tensor:
    """The rows of a piece, [n, T * R, X]: a small copy."""
    b, g = pairs
    part = x_BSGRX[b, queries, g].transpose(1, 2)
    return part.reshape(part.shape[0] * part.shape[1], -1, part.shape[-1])


def span_view(x_BSGRX: Tensor, pairs: tuple[slice, slice], queries: slice) -> Tensor:
    """The same place as `span_rows`, as a view [b, g, T, R, X] to write to."""
    b, g = pairs
    return x_BSGRX[b, queries, g].transpose(1, 2)


def key_rows(x_BGKX: Tensor, pairs: tuple[slice, slice], keys: slice) -> Tensor:
    """The keys of a piece as a view [n, K, X]."""
    b, g = pairs
    return x_BGKX[b, g, keys].flatten(0, 1)


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
