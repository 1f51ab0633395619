"""The pieces of a branch cover each pair that attends exactly once, however they are cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa.attention.plan import window_plan
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


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(S=st.integers(1, 100), w=st.integers(1, 120), length=st.sampled_from([4, 16, 64]))
def test_a_window_plan_covers_the_window_once(S, w, length):
    t, s = torch.arange(S)[:, None], torch.arange(S)[None]
    expected = (s <= t) & (s > t - w)
    assert torch.equal(_counts(window_plan(S, w, length), S), expected.long())


@pytest.mark.parametrize("S", [65, 128, 150])
def test_a_selected_plan_covers_the_tokens_of_the_selected_blocks_once(S):
    l_sel, n_sel, start = 16, 4, 64
    generator = torch.Generator().manual_seed(S)
    own = torch.arange(start, S) // l_sel
    draw = torch.rand(1, 1, S - start, 1, generator=generator)
    free = 1 + (draw * (own - 2).view(1, 1, -1, 1)).long()
    ids = selected_ids(free, S, l_sel, n_sel)[0, :, 0]
    s = torch.arange(S)
    chosen = (s[None, :, None] // l_sel == ids[:, None]).any(-1)
    assert torch.equal(
        _counts(selected_plan(free, S, l_sel), S), (chosen & (s <= s[:, None])).long()
    )
