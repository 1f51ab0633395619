# mypy: allow-untyped-defs
"""The keys that a query of a band sees (the rule is in band.py)."""

import triton
import triton.language as tl


@triton.jit
def first_position(t, prefix, ALIGN: tl.constexpr, BACK: tl.constexpr):
    """low(t): the first position that query t sees."""
    return tl.where(t < prefix, 0, t // ALIGN * ALIGN - BACK)


@triton.jit
def visible(
    t, s, K, prefix,
    ALIGN: tl.constexpr, BACK: tl.constexpr, STRIDE: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    """Which queries see which keys by their position; t and s broadcast to a matrix."""
    at = s * STRIDE + REACH
    return (at <= t) & (at >= first_position(t, prefix, ALIGN, BACK)) & (s < K)


@triton.jit
def all_visible(
    t_first, t_last, s0, K, prefix, N: tl.constexpr,
    ALIGN: tl.constexpr, BACK: tl.constexpr, STRIDE: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    """Whether every query of [t_first, t_last] sees all keys of the tile at s0."""
    low = tl.maximum(
        first_position(t_first, prefix, ALIGN, BACK), first_position(t_last, prefix, ALIGN, BACK)
    )
    causal = (s0 + N - 1) * STRIDE + REACH <= t_first
    return causal & (s0 * STRIDE + REACH >= low) & (s0 + N <= K)


@triton.jit
def has_one_key(
    t, prefix,
    ALIGN: tl.constexpr, BACK: tl.constexpr, STRIDE: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    """Whether a query sees a single key by position: its score moves nothing (ds is 0).

    Without this the difference of two sums would leave their rounding. Such a query is never in a
    tile that all its queries see whole. Beyond a dense prefix blocks are gathered besides.
    """
    low = tl.maximum(first_position(t, prefix, ALIGN, BACK) - REACH, 0)
    one = (t >= REACH) & ((t - REACH) // STRIDE == (low + STRIDE - 1) // STRIDE)
    return one & ((t < prefix) | (prefix == 0))


@triton.jit
def words_of(word_ptr, pair, t_M, S, start):
    """The chosen blocks of each row's query as bits; all of them before `start`."""
    at_M = word_ptr + pair * (S - start) + (t_M - start)
    return tl.load(at_M, mask=(t_M >= start) & (t_M < S), other=-1)


@triton.jit
def is_chosen(word, s, s0, N: tl.constexpr, BLOCK: tl.constexpr):
    """Whether the block of key s is among the word's; word and s broadcast to a matrix."""
    if BLOCK % N == 0:  # the whole tile is in one block
        return ((word >> (s0 // BLOCK)) & 1) != 0
    else:  # noqa: RET505 - a compile-time branch
        return ((word >> (s // BLOCK).to(tl.int64)) & 1) != 0


@triton.jit
def key_range(
    t_first, t_last, K, prefix, N: tl.constexpr,
    ALIGN: tl.constexpr, BACK: tl.constexpr, STRIDE: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    """Begin and end of the keys that some query of [t_first, t_last] sees."""
    low = tl.maximum(first_position(t_first, prefix, ALIGN, BACK) - REACH, 0)
    end = tl.where(t_last >= REACH, (t_last - REACH) // STRIDE + 1, 0)
    return low // STRIDE // N * N, tl.minimum(end, K)
