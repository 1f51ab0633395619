"""The pieces of a branch cover each pair that attends exactly once, however they are cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa.attention import nsa_attention
from nsa.attention import plan as plan_module
from nsa.attention.plan import PieceSize, window_plan
from nsa.attention.selection import selected_ids, selected_plan


def _counts(plan, S):
    """How often each (query, key) pair is attended by spans and gathered queries of one (b, g)."""
    counts = torch.zeros(S, S, dtype=torch.int64)
    for span in plan.spans:
        scores = torch.zeros(1, span.t1 - span.t0, 1, span.k1 - span.k0)
        plan.hide(scores, span)
        counts[span.t0 : span.t1, span.k0 : span.k1] += scores[0, :, 0] == 0
    for gathered in plan.gathered:
        counts[gathered.queries, gathered.k0 : gathered.k1] += 1
    return counts


@pytest.mark.parametrize("S", [1, 5, 64, 100])
@pytest.mark.parametrize("w", [1, 2, 7, 64, 200])
@pytest.mark.parametrize("length", [4, 16, 64])
def test_a_window_plan_covers_the_window_once(S, w, length):
    t, s = torch.arange(S)[:, None], torch.arange(S)[None]
    expected = (s <= t) & (s > t - w)
    assert torch.equal(_counts(window_plan(S, w, length), S), expected.long())


@pytest.mark.parametrize("S", [65, 100, 128, 150])
def test_a_selected_plan_covers_the_tokens_of_the_selected_blocks_once(S):
    l_sel, n_sel, start = 16, 4, 64
    generator = torch.Generator().manual_seed(S)
    own = torch.arange(start, S) // l_sel
    draw = torch.rand(1, 1, S - start, 1, generator=generator)
    free = 1 + (draw * (own - 2).view(1, 1, -1, 1)).long()
    ids = selected_ids(free, S, l_sel, n_sel)[0, :, 0]
    expected = torch.zeros(S, S, dtype=torch.int64)
    for t in range(S):
        for s in range(t + 1):
            expected[t, s] = int(s // l_sel in ids[t].tolist())
    assert torch.equal(_counts(selected_plan(free, S, l_sel), S), expected)


@pytest.mark.parametrize(
    "size",
    [
        PieceSize(span_queries=5, gathered_queries=3, bytes=1),
        PieceSize(span_queries=16, gathered_queries=100, bytes=20_000),
        PieceSize(span_queries=512, gathered_queries=4096, bytes=1 << 26),
    ],
    ids=["tiny", "some pairs together", "as on a GPU"],
)
def test_the_size_of_the_pieces_changes_nothing(size, small, make_inputs, run, monkeypatch):
    inputs = make_inputs(170, B=3, H=6, G=3)
    expected, ids, wanted = run(inputs, backend="reference", **small)
    monkeypatch.setitem(plan_module._SIZES, "cpu", size)
    out, sel, grads = run(inputs, backend="torch", **small)
    assert torch.equal(sel, ids)
    torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-12)
    for name in inputs:
        torch.testing.assert_close(grads[name], wanted[name], rtol=1e-9, atol=1e-12, msg=name)


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_any_sizes_agree_with_the_reference(data):
    d = data.draw(st.integers(1, 5), "d")
    sizes = {
        "d": d,
        "l": d * data.draw(st.integers(1, 4), "l / d"),
        "l_sel": d * data.draw(st.integers(1, 4), "l_sel / d"),
        "n_sel": data.draw(st.integers(3, 7), "n_sel"),
        "w": data.draw(st.integers(1, 80), "w"),
    }
    S, B, G, R = (data.draw(st.integers(1, top), name) for top, name in
                  ((150, "S"), (2, "B"), (2, "G"), (3, "R")))  # fmt: skip
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000), "seed"))
    shapes = [(B, S, G * R, 4), *[(B, S, G, 4)] * 6, (B, S, G * R, 3)]
    leaves = [
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]
    results = []
    for backend in ("torch", "reference"):
        out, sel = nsa_attention(*leaves, backend=backend, return_selection=True, **sizes)
        grads = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
        results.append((out, sel, *(g for g in grads if g is not None)))
    fast, exact = results
    assert torch.equal(fast[1], exact[1])
    for x, y in zip(fast[2:] + fast[:1], exact[2:] + exact[:1], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-10)
