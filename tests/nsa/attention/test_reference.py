"""The reference backend against loops over single queries, and the scores of Eq. 9 by hand."""

import pytest
import torch

from nsa.attention import Sizes, compressed
from nsa.attention.compression import compress_tokens
from nsa.attention.reference import block_scores, compress, select

BOTH_SCORES = pytest.mark.parametrize("backend", ["reference", "torch"])


def _scores(backend, p_BSHC, groups, blocks, l, d, l_sel):  # noqa: E741
    if backend == "reference":
        return block_scores(p_BSHC, groups, blocks, l, d, l_sel)
    B, S, H, C = p_BSHC.shape
    per_pair = p_BSHC.view(B, S, groups, H // groups, C).transpose(1, 2).flatten(0, 1)
    scores = compressed.block_scores(per_pair, blocks, Sizes(l=l, d=d, l_sel=l_sel))
    return scores.view(B, groups, S, blocks).transpose(1, 2)


@pytest.mark.parametrize(
    ("S", "H", "G", "sizes"),
    [
        (1, 2, 1, {}), (7, 2, 2, {}), (33, 4, 2, {}), (45, 2, 1, {"l_sel": 8}),
        (40, 3, 1, {"l": 4, "d": 4, "l_sel": 4, "n_sel": 3, "w": 5}),
        (50, 2, 1, {"l": 12, "d": 4, "l_sel": 8, "n_sel": 5, "w": 1}),
    ],
)  # fmt: skip
def test_values_ids_and_gradients_are_those_of_the_loops(
    S, H, G, sizes, small, make_inputs, judge, run
):
    sizes = small | sizes
    inputs = make_inputs(S, B=1, H=H, G=G, D=4)
    expected, ids = judge(inputs, **sizes)
    generator = torch.Generator().manual_seed(99)
    grad = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    wanted = torch.autograd.grad(
        expected, list(inputs.values()), grad, allow_unused=True, materialize_grads=True
    )
    for backend in ("reference", "torch"):
        out, sel, grads = run(inputs, backend=backend, **sizes)
        assert torch.equal(sel, ids)
        torch.testing.assert_close(out, expected.detach(), rtol=1e-10, atol=1e-12)
        for name, exact in zip(inputs, wanted, strict=True):
            torch.testing.assert_close(grads[name], exact, rtol=1e-9, atol=1e-11, msg=name)


@BOTH_SCORES
def test_equation_9_weighs_the_five_blocks_around_a_selection_block_1_2_2_2_1(backend):
    C, blocks = 15, 4
    one_hot = torch.eye(C, dtype=torch.float64).view(1, C, 1, C)
    weights = _scores(backend, one_hot, 1, blocks, 32, 16, 64)[0, :, 0]
    expected = torch.zeros(C, blocks, dtype=torch.float64)
    for j in range(blocks):
        for offset, weight in zip(range(-1, 4), (1, 2, 2, 2, 1), strict=True):
            if 0 <= 4 * j + offset < C:
                expected[4 * j + offset, j] = weight
    assert torch.equal(weights, expected)


@BOTH_SCORES
@pytest.mark.parametrize(("l", "d", "l_sel"), [(32, 16, 64), (8, 4, 16), (12, 4, 8), (8, 2, 4)])
def test_a_block_score_is_the_overlap_of_its_tokens_with_each_compressed_block(
    backend,
    l,  # noqa: E741
    d,
    l_sel,
):
    blocks = 5
    C = (blocks * l_sel - l) // d + 1
    p = torch.rand(1, 3, 2, C, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    i, j = torch.arange(C)[:, None] * d, torch.arange(blocks) * l_sel
    shared = torch.minimum(i + l, j + l_sel) - torch.maximum(i, j)
    expected = (p.sum(2) @ (shared.clamp_min(0) / d).double())[:, :, None]
    torch.testing.assert_close(_scores(backend, p, 1, blocks, l, d, l_sel), expected)


@pytest.mark.parametrize("pool", [compress, compress_tokens])
@pytest.mark.parametrize(("S", "blocks"), [(1, 0), (7, 0), (8, 1), (11, 1), (12, 2), (33, 7)])
def test_only_whole_blocks_are_compressed_and_each_is_a_mean(pool, S, blocks):
    x = torch.arange(S, dtype=torch.float64).view(1, S, 1, 1)
    means = pool(x, 8, 4)
    assert means.flatten().tolist() == [4 * i + 3.5 for i in range(blocks)]


def test_ties_go_to_the_lower_block():
    scores = torch.zeros(1, 160, 1, 10)
    ids = select(scores, 16, 5)[0, :, 0]
    assert ids[159].tolist() == [0, 1, 2, 8, 9]
    assert ids[40].tolist() == [0, 1, 2, -1, -1]
