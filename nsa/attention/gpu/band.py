# mypy: allow-untyped-defs
"""Attention over contiguous ranges of keys: compressed branch, window, dense prefix, own blocks.

One family of kernels serves them by one rule. Key s stands at position `s * STRIDE + REACH`, and
query t sees it when that is at most t and at least `low(t)`; `low` is 0 for t < prefix and `t //
ALIGN * ALIGN - BACK` from there on. So STRIDE = d, REACH = l - 1 are the compressed blocks, ALIGN =
1, BACK = w - 1 a window of w, ALIGN = BACK = l_sel the own and the previous block. With BLOCK > 0
the queries from `start` on see only keys whose block of BLOCK tokens has its bit in the query's
64-bit word. This serves a selected branch of few blocks, where walking over all of them costs less
than gathering queries (see function.py).

Rows are (query, head of the group) pairs, neighbours in memory: keys are read once for all heads
of a group, whatever their number. Scores, statistics and sums are fp32, in powers of two. Every
sum has one owner and one order, so results repeat bit by bit. Tiles that every row sees whole,
which are most, are not masked: with D = 64 the masks would cost as much as the products. A block
that a query did not choose is left out by the number of its row, one for a tile of keys. Sizes are
not specialised on, so that a new length compiles nothing.

Shapes: q, out, grad [B, S, H, D]; k, v [B, K, G, D]; lse [B, S, H]; gate, dot [B, S, H, 3];
words [B * G, S - start].
"""

import triton
import triton.language as tl

_SIZES = ["S", "K", "B", "G", "prefix", "start", "chunk"]


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


@triton.jit(do_not_specialize=_SIZES)
def band_forward(
    q_ptr, k_ptr, v_ptr, word_ptr, out_ptr, lse_ptr, S, K, G, prefix, start,
    log2_scale,
    R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    ALIGN: tl.constexpr, BACK: tl.constexpr, STRIDE: tl.constexpr, REACH: tl.constexpr,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Output and log-sum-exp of one tile of rows; 0 where no key is visible."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest first
    pair = tl.program_id(1).to(tl.int64)
    b, g = pair // G, pair % G
    rows_M = tile * M + tl.arange(0, M)
    t_M = rows_M // R
    x_D = tl.arange(0, DP)
    live_M = t_M < S
    wide_D = (x_D < D)[None, :]
    at_M = (b * S + t_M) * G * R + g * R + rows_M % R
    q_MD = tl.load(
        q_ptr + at_M[:, None] * D + x_D[None, :], mask=live_M[:, None] & wide_D, other=0.0
    )
    t_first, t_last = tile * M // R, tl.minimum((tile * M + M - 1) // R, S - 1)
    begin, end = key_range(t_first, t_last, K, prefix, N, ALIGN, BACK, STRIDE, REACH)
    if BLOCK:
        word_M1 = words_of(word_ptr, pair, t_M, S, start)[:, None]

    top_M = tl.full((M,), float("-inf"), tl.float32)
    total_M = tl.zeros((M,), tl.float32)
    sum_MD = tl.zeros((M, DP), tl.float32)
    for s0 in range(begin, end, N):
        s_N = s0 + tl.arange(0, N)
        key_at_N = (b * K + s_N) * G + g
        here_ND = (s_N < K)[:, None] & wide_D
        k_ND = tl.load(k_ptr + key_at_N[:, None] * D + x_D[None, :], mask=here_ND, other=0.0)
        v_ND = tl.load(v_ptr + key_at_N[:, None] * D + x_D[None, :], mask=here_ND, other=0.0)
        score_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION) * log2_scale
        if BLOCK:
            chosen = is_chosen(word_M1, s_N[None, :], s0, N, BLOCK)
            score_MN += tl.where(chosen, 0.0, float("-inf"))
        if not all_visible(t_first, t_last, s0, K, prefix, N, ALIGN, BACK, STRIDE, REACH):
            seen_MN = visible(t_M[:, None], s_N[None, :], K, prefix, ALIGN, BACK, STRIDE, REACH)
            score_MN = tl.where(seen_MN, score_MN, float("-inf"))
        new_top_M = tl.maximum(top_M, tl.max(score_MN, 1))
        safe_M = tl.where(new_top_M == float("-inf"), 0.0, new_top_M)
        p_MN = tl.exp2(score_MN - safe_M[:, None])
        fade_M = tl.exp2(top_M - safe_M)
        total_M = total_M * fade_M + tl.sum(p_MN, 1)
        sum_MD = sum_MD * fade_M[:, None]
        sum_MD += tl.dot(p_MN.to(v_ND.dtype), v_ND, input_precision=PRECISION)
        top_M = new_top_M

    none_M = total_M == 0.0
    share_M = tl.where(none_M, 1.0, total_M)
    lse_M = tl.where(none_M, 0.0, top_M + tl.log2(share_M))
    tl.store(lse_ptr + at_M, lse_M, mask=live_M)
    out_MD = (sum_MD / share_M[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at_M[:, None] * D + x_D[None, :], out_MD, mask=live_M[:, None] & wide_D)


@triton.jit(do_not_specialize=_SIZES)
def band_dq(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, gate_ptr, dot_ptr, word_ptr, dq_ptr,
    S, K, G, prefix, start, log2_scale, scale,
    R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    ALIGN: tl.constexpr, BACK: tl.constexpr, STRIDE: tl.constexpr, REACH: tl.constexpr,
    BLOCK: tl.constexpr, BRANCH: tl.constexpr,
    ADD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of one tile of queries, fp32; added to what is there if ADD."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    pair = tl.program_id(1).to(tl.int64)
    b, g = pair // G, pair % G
    rows_M = tile * M + tl.arange(0, M)
    t_M = rows_M // R
    x_D = tl.arange(0, DP)
    live_M = t_M < S
    wide_D = (x_D < D)[None, :]
    at_M = (b * S + t_M) * G * R + g * R + rows_M % R
    row_at_MD = at_M[:, None] * D + x_D[None, :]
    live_MD = live_M[:, None] & wide_D
    q_MD = tl.load(q_ptr + row_at_MD, mask=live_MD, other=0.0)
    grad_MD = tl.load(grad_ptr + row_at_MD, mask=live_MD, other=0.0)
    lse_M = tl.load(lse_ptr + at_M, mask=live_M, other=0.0)
    gate_M = tl.load(gate_ptr + at_M * 3 + BRANCH, mask=live_M, other=0.0)
    gate_M = tl.where(has_one_key(t_M, prefix, ALIGN, BACK, STRIDE, REACH), 0.0, gate_M)
    dot_M = tl.load(dot_ptr + at_M * 3 + BRANCH, mask=live_M, other=0.0)
    t_first, t_last = tile * M // R, tl.minimum((tile * M + M - 1) // R, S - 1)
    begin, end = key_range(t_first, t_last, K, prefix, N, ALIGN, BACK, STRIDE, REACH)
    if BLOCK:
        word_M1 = words_of(word_ptr, pair, t_M, S, start)[:, None]

    dq_MD = tl.zeros((M, DP), tl.float32)
    for s0 in range(begin, end, N):
        s_N = s0 + tl.arange(0, N)
        key_at_N = (b * K + s_N) * G + g
        here_ND = (s_N < K)[:, None] & wide_D
        k_ND = tl.load(k_ptr + key_at_N[:, None] * D + x_D[None, :], mask=here_ND, other=0.0)
        v_ND = tl.load(v_ptr + key_at_N[:, None] * D + x_D[None, :], mask=here_ND, other=0.0)
        score_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION) * log2_scale
        less = lse_M[:, None]
        if BLOCK:
            less = tl.where(is_chosen(word_M1, s_N[None, :], s0, N, BLOCK), less, float("inf"))
        score_MN -= less
        if not all_visible(t_first, t_last, s0, K, prefix, N, ALIGN, BACK, STRIDE, REACH):
            seen_MN = visible(t_M[:, None], s_N[None, :], K, prefix, ALIGN, BACK, STRIDE, REACH)
            score_MN = tl.where(seen_MN, score_MN, float("-inf"))
        p_MN = tl.exp2(score_MN)
        dp_MN = tl.dot(grad_MD, tl.trans(v_ND), input_precision=PRECISION)
        ds_MN = p_MN * gate_M[:, None] * (dp_MN - dot_M[:, None])
        dq_MD += tl.dot(ds_MN.to(k_ND.dtype), k_ND, input_precision=PRECISION)
    dq_MD = dq_MD * scale
    if ADD:
        dq_MD += tl.load(dq_ptr + row_at_MD, mask=live_MD, other=0.0)
    tl.store(dq_ptr + row_at_MD, dq_MD, mask=live_MD)


@triton.jit(do_not_specialize=_SIZES)
def band_dkdv(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, gate_ptr, dot_ptr, word_ptr, dk_ptr, dv_ptr,
    S, K, B, G, prefix, start, chunk, log2_scale, scale,
    R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    ALIGN: tl.constexpr, BACK: tl.constexpr, STRIDE: tl.constexpr, REACH: tl.constexpr,
    BLOCK: tl.constexpr, BRANCH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """What one chunk of queries adds to the gradients of one tile of keys.

    Scores stand here with the keys down and the rows across, as the products with the rows need
    them: no matrix changes its sides through shared memory.
    """
    s0 = tl.program_id(0) * N
    part = tl.program_id(1)
    pair = tl.program_id(2).to(tl.int64)
    b, g = pair // G, pair % G
    s_N = s0 + tl.arange(0, N)
    x_D = tl.arange(0, DP)
    wide_D = (x_D < D)[None, :]
    here_ND = (s_N < K)[:, None] & wide_D
    key_at_N = (b * K + s_N) * G + g
    k_ND = tl.load(k_ptr + key_at_N[:, None] * D + x_D[None, :], mask=here_ND, other=0.0)
    v_ND = tl.load(v_ptr + key_at_N[:, None] * D + x_D[None, :], mask=here_ND, other=0.0)
    last_at = (tl.minimum(s0 + N, K) - 1) * STRIDE + REACH
    t_end = tl.maximum(prefix, (last_at + BACK) // ALIGN * ALIGN + ALIGN)
    t_end = tl.minimum(tl.minimum(t_end, S), (part + 1) * chunk)
    t_begin = tl.maximum(s0 * STRIDE + REACH, part * chunk)

    dk_ND = tl.zeros((N, DP), tl.float32)
    dv_ND = tl.zeros((N, DP), tl.float32)
    for row0 in range(t_begin * R, t_end * R, M):
        rows_M = row0 + tl.arange(0, M)
        t_M = rows_M // R
        live_M = t_M < t_end
        at_M = (b * S + t_M) * G * R + g * R + rows_M % R
        row_at_MD = at_M[:, None] * D + x_D[None, :]
        live_MD = live_M[:, None] & wide_D
        q_MD = tl.load(q_ptr + row_at_MD, mask=live_MD, other=0.0)
        grad_MD = tl.load(grad_ptr + row_at_MD, mask=live_MD, other=0.0)
        lse_M = tl.load(lse_ptr + at_M, mask=live_M, other=0.0)
        gate_M = tl.load(gate_ptr + at_M * 3 + BRANCH, mask=live_M, other=0.0)
        dot_M = tl.load(dot_ptr + at_M * 3 + BRANCH, mask=live_M, other=0.0)
        score_NM = tl.dot(k_ND, tl.trans(q_MD), input_precision=PRECISION) * log2_scale
        less = lse_M[None, :]
        if BLOCK:
            word_1M = words_of(word_ptr, pair, t_M, S, start)[None, :]
            less = tl.where(is_chosen(word_1M, s_N[:, None], s0, N, BLOCK), less, float("inf"))
        score_NM -= less
        dp_NM = tl.dot(v_ND, tl.trans(grad_MD), input_precision=PRECISION)
        t_first, t_last = row0 // R, (row0 + M - 1) // R
        whole = all_visible(t_first, t_last, s0, K, prefix, N, ALIGN, BACK, STRIDE, REACH)
        if not (whole & (t_last < t_end)):
            seen_NM = visible(t_M[None, :], s_N[:, None], K, prefix, ALIGN, BACK, STRIDE, REACH)
            score_NM = tl.where(seen_NM & live_M[None, :], score_NM, float("-inf"))
            lone_M = has_one_key(t_M, prefix, ALIGN, BACK, STRIDE, REACH)
            dp_NM = tl.where(lone_M[None, :], dot_M[None, :], dp_NM)
        p_NM = tl.exp2(score_NM) * gate_M[None, :]
        dv_ND += tl.dot(p_NM.to(grad_MD.dtype), grad_MD, input_precision=PRECISION)
        ds_NM = p_NM * (dp_NM - dot_M[None, :])
        dk_ND += tl.dot(ds_NM.to(q_MD.dtype), q_MD, input_precision=PRECISION)
    to_ND = (part.to(tl.int64) * B * K * G + key_at_N)[:, None] * D + x_D[None, :]
    tl.store(dk_ptr + to_ND, (dk_ND * scale).to(dk_ptr.dtype.element_ty), mask=here_ND)
    tl.store(dv_ptr + to_ND, dv_ND.to(dv_ptr.dtype.element_ty), mask=here_ND)
