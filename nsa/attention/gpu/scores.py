# mypy: allow-untyped-defs
"""Score and choose blocks for the queries beyond the dense prefix.

Scores are computed again from q, the compressed keys and their log-sum-exp, one product per offset
(Eq. 9 and 10). Probabilities are never stored; long sequences go a stretch of queries at a time.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def mix(
    cmp_ptr, sel_ptr, win_ptr, gate_ptr, out_ptr, rows,
    D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """out = gate_0 cmp + gate_1 sel + gate_2 win, summed in fp32."""
    row_M = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    x_D = tl.arange(0, DP)
    live_M = row_M < rows
    at_MD = row_M[:, None] * D + x_D[None, :]
    live_MD = live_M[:, None] & (x_D < D)[None, :]
    gate = gate_ptr + row_M * 3
    out_MD = tl.load(gate, mask=live_M, other=0.0).to(tl.float32)[:, None] * tl.load(
        cmp_ptr + at_MD, mask=live_MD, other=0.0
    ).to(tl.float32)
    out_MD += tl.load(gate + 1, mask=live_M, other=0.0).to(tl.float32)[:, None] * tl.load(
        sel_ptr + at_MD, mask=live_MD, other=0.0
    ).to(tl.float32)
    out_MD += tl.load(gate + 2, mask=live_M, other=0.0).to(tl.float32)[:, None] * tl.load(
        win_ptr + at_MD, mask=live_MD, other=0.0
    ).to(tl.float32)
    tl.store(out_ptr + at_MD, out_MD.to(out_ptr.dtype.element_ty), mask=live_MD)


@triton.jit(do_not_specialize=["rows"])
def dots(
    cmp_ptr, sel_ptr, win_ptr, grad_ptr, dot_ptr, rows,
    D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """<grad, branch output> of every row and branch, fp32: the gradient of the gate."""
    row_M = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    x_D = tl.arange(0, DP)
    live_M = row_M < rows
    at_MD = row_M[:, None] * D + x_D[None, :]
    live_MD = live_M[:, None] & (x_D < D)[None, :]
    grad_MD = tl.load(grad_ptr + at_MD, mask=live_MD, other=0.0).to(tl.float32)
    cmp_MD = tl.load(cmp_ptr + at_MD, mask=live_MD, other=0.0).to(tl.float32)
    tl.store(dot_ptr + row_M * 3, tl.sum(grad_MD * cmp_MD, 1), mask=live_M)
    sel_MD = tl.load(sel_ptr + at_MD, mask=live_MD, other=0.0).to(tl.float32)
    tl.store(dot_ptr + row_M * 3 + 1, tl.sum(grad_MD * sel_MD, 1), mask=live_M)
    win_MD = tl.load(win_ptr + at_MD, mask=live_MD, other=0.0).to(tl.float32)
    tl.store(dot_ptr + row_M * 3 + 2, tl.sum(grad_MD * win_MD, 1), mask=live_M)


_SIZES = ["S", "C", "G", "J", "T", "first", "start"]


@triton.jit(do_not_specialize=_SIZES)
def block_scores(
    q_ptr, k_ptr, lse_ptr, score_ptr, S, C, G, J, T, first, log2_scale,
    R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    L: tl.constexpr, STEP: tl.constexpr, L_SEL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores [B, G, T, J] of the queries from `first` on, M of them and N blocks.

    None for blocks of the future.
    """
    A: tl.constexpr = L_SEL // STEP
    OVERLAP: tl.constexpr = L // STEP
    pair = tl.program_id(2).to(tl.int64)
    b, g = pair // G, pair % G
    t_M = first + tl.program_id(0) * M + tl.arange(0, M)
    j_N = tl.program_id(1) * N + tl.arange(0, N)
    t_last = tl.minimum(first + tl.program_id(0) * M + M, first + T) - 1
    if tl.program_id(1) * N * L_SEL <= t_last:
        x_D = tl.arange(0, DP)
        wide_D = (x_D < D)[None, :]
        live_M = t_M < first + T
        score_MN = tl.zeros((M, N), tl.float32)
        for offset in tl.static_range(1 - OVERLAP, A):
            count = 0
            for m in tl.static_range(A):
                if (m - offset >= 0) & (m - offset < OVERLAP):
                    count += 1
            i_N = j_N * A + offset
            inside_N = (i_N >= 0) & (i_N < C)
            key_at_N = (b * C + i_N) * G + g
            k_ND = tl.load(
                k_ptr + key_at_N[:, None] * D + x_D[None, :],
                mask=inside_N[:, None] & wide_D,
                other=0.0,
            )
            seen_MN = inside_N[None, :] & ((i_N * STEP + L - 1)[None, :] <= t_M[:, None])
            for r in range(R):
                at_M = (b * S + t_M) * G * R + g * R + r
                q_MD = tl.load(
                    q_ptr + at_M[:, None] * D + x_D[None, :],
                    mask=live_M[:, None] & wide_D,
                    other=0.0,
                )
                lse_M = tl.load(lse_ptr + at_M, mask=live_M, other=0.0)
                logit_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION) * log2_scale
                p_MN = tl.exp2(tl.where(seen_MN, logit_MN - lse_M[:, None], float("-inf")))
                score_MN += p_MN * count
        to_M = pair * T + (t_M - first)
        tl.store(
            score_ptr + to_M[:, None] * J + j_N[None, :],
            score_MN,
            mask=live_M[:, None] & (j_N < J)[None, :],
        )


@triton.jit(do_not_specialize=_SIZES)
def choose_blocks(
    score_ptr, chosen_ptr, word_ptr, S, J, T, first, start,
    FREE: tl.constexpr, FIRST: tl.constexpr, RECENT: tl.constexpr, M: tl.constexpr,
    JP: tl.constexpr, L_SEL: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """The FIRST blocks, then the FREE best, ties to the lower: [B * G, S - start, FIRST + FREE].

    The scores [B * G, T, J] are those of the T queries from `first` on. The RECENT blocks up to the
    query's own are no choice. WORDS also stores every block that a query selects, recent ones too,
    as bits of [B * G, S - start].
    """
    query_M = tl.program_id(0) * M + tl.arange(0, M)
    pair = tl.program_id(1).to(tl.int64)
    row_M = pair * (S - start) + (first - start) + query_M
    live_M = query_M < T
    own_M = (first + query_M) // L_SEL
    j_P = tl.arange(0, JP)
    may_MP = (j_P >= FIRST)[None, :] & (j_P[None, :] <= (own_M - RECENT)[:, None])
    score_MP = tl.load(
        score_ptr + (pair * T + query_M)[:, None] * J + j_P[None, :],
        mask=live_M[:, None] & may_MP,
        other=-1.0,
    )
    # A NaN must not choose a block that does not exist.
    score_MP = tl.where(may_MP & (score_MP != score_MP), 0.0, score_MP)
    chosen_M = chosen_ptr + row_M * (FIRST + FREE)
    one_M = tl.full((M,), 1, tl.int64)
    word_M = tl.full((M,), (1 << FIRST) - 1, tl.int64)
    for slot in tl.static_range(FIRST):
        tl.store(chosen_M + slot, tl.full((M,), slot, tl.int32), mask=live_M)
    for back in tl.static_range(RECENT):
        word_M |= one_M << (own_M - back).to(tl.int64)
    for slot in range(FREE):
        best_M = tl.max(score_MP, 1)
        first_M = tl.min(tl.where(score_MP == best_M[:, None], j_P[None, :], JP), 1)
        tl.store(chosen_M + FIRST + slot, first_M, mask=live_M)
        score_MP = tl.where(j_P[None, :] == first_M[:, None], -1.0, score_MP)
        word_M |= one_M << first_M.to(tl.int64)
    if WORDS:
        tl.store(word_ptr + row_M, word_M, mask=live_M)
