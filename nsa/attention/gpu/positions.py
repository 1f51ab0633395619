# mypy: allow-untyped-defs
"""Which keys does a query of a band see, and where do they lie? The rule is in band.py."""

import triton
import triton.language as tl


@triton.jit
def first_position(t, prefix, ALIGN: tl.constexpr, BACK: tl.constexpr):
    """low(t): the first position that query t sees."""
    return tl.where(t < prefix, 0, t // ALIGN * ALIGN - BACK)


@triton.jit
def visible(
    t,
    s,
    K,
    prefix,
    ALIGN: tl.constexpr,
    BACK: tl.constexpr,
    STRIDE: tl.constexpr,
    REACH: tl.constexpr,
):
    """Which queries see which keys by their position; t and s broadcast to a matrix."""
    at = s * STRIDE + REACH
    return (at <= t) & (at >= first_position(t, prefix, ALIGN, BACK)) & (s < K)


@triton.jit
def all_visible(
    t_first,
    t_last,
    s0,
    K,
    prefix,
    N: tl.constexpr,
    ALIGN: tl.constexpr,
    BACK: tl.constexpr,
    STRIDE: tl.constexpr,
    REACH: tl.constexpr,
):
    """Whether every query of [t_first, t_last] sees all keys of the tile at s0."""
    low = tl.maximum(
        first_position(t_first, prefix, ALIGN, BACK), first_position(t_last, prefix, ALIGN, BACK)
    )
    causal = (s0 + N - 1) * STRIDE + REACH <= t_first
    return causal & (s0 * STRIDE + REACH >= low) & (s0 + N <= K)


@triton.jit
def has_one_key(
    t,
    prefix,
    ALIGN: tl.constexpr,
    BACK: tl.constexpr,
    STRIDE: tl.constexpr,
    REACH: tl.constexpr,
):
    """Whether a query sees a single key by position: its score moves nothing (ds is 0).

    Without this the difference of two sums would leave their rounding. Such a query is never in a
    tile that all its queries see whole. Beyond a dense prefix blocks are gathered besides.
    """
    low = tl.maximum(first_position(t, prefix, ALIGN, BACK) - REACH, 0)
    one = (t >= REACH) & ((t - REACH) // STRIDE == (low + STRIDE - 1) // STRIDE)
    return one & ((t < prefix) | (prefix == 0))


@triton.jit
def of_tile(tile_ptr, sequence_ptr, KEYS: tl.constexpr):
    """Of this program's tile of packed sequences.

    Its number within its sequence, the sequence's first token, tokens, first key, keys and first
    query that chooses.
    """
    tile = tile_ptr + tl.program_id(0).to(tl.int64) * 2
    sequence = sequence_ptr + tl.load(tile).to(tl.int64) * 5
    first_token, first_key = tl.load(sequence), tl.load(sequence + KEYS)
    return (
        tl.load(tile + 1), first_token.to(tl.int64), tl.load(sequence + 1), first_key.to(tl.int64),
        tl.load(sequence + KEYS + 1), tl.load(sequence + 4),
    )  # fmt: skip


@triton.jit
def first_of(item, size, PACKED: tl.constexpr):
    """First token or key of a batch item; a packed sequence comes with its own."""
    return item if PACKED else item * size


@triton.jit
def words_of(word_ptr, item, t_M, S, start, PACKED: tl.constexpr):
    """The chosen blocks of each row's query as bits; all of them before `start`."""
    at_M = word_ptr + first_of(item, S - start, PACKED) + (t_M - start)
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
    t_first,
    t_last,
    K,
    prefix,
    N: tl.constexpr,
    ALIGN: tl.constexpr,
    BACK: tl.constexpr,
    STRIDE: tl.constexpr,
    REACH: tl.constexpr,
):
    """Begin and end of the keys that some query of [t_first, t_last] sees."""
    low = tl.maximum(first_position(t_first, prefix, ALIGN, BACK) - REACH, 0)
    end = tl.where(t_last >= REACH, (t_last - REACH) // STRIDE + 1, 0)
    return low // STRIDE // N * N, tl.minimum(end, K)
