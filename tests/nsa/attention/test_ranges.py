"""Selected ids become token ranges: V1 and V2 agree with the definition on every pattern."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa.attention.decode import positions_in, ranges_v1, ranges_v2


def _tokens(ids, t, l_sel):
    return [s for s in range(t + 1) if s // l_sel in set(ids)]


def _v2(ids, t, l_sel):
    rows = ranges_v2(torch.tensor([ids]), torch.tensor([t]), l_sel)[0].tolist()
    real = [tuple(row) for row in rows if row != [0, 0]]
    assert rows[len(real) :] == [[0, 0]] * (len(ids) - len(real)), "padding stands at the end"
    return real


PATTERNS = {
    "ascending": ([0, 1, 2], 40),
    "gaps between": ([0, 2, 4], 40),
    "missing ids inside": ([0, -1, 2, -1, 3], 40),
    "missing ids first": ([-1, -1, 0], 3),
    "out of range inside a run": ([0, 1, 99, 2], 40),
    "beyond the query": ([0, 1, 5, 6], 20),
    "current block cut at t": ([2], 17),
    "only what does not exist": ([-1, 7, 99], 5),
    "doubles": ([1, 1, 0, 0], 30),
    "descending": ([4, 3, 1], 39),
    "very negative": ([-(2**40), 0], 1),
    "nearly int64": ([2**40, 0], 1),
}


@pytest.mark.parametrize(("ids", "t"), PATTERNS.values(), ids=PATTERNS)
def test_named_patterns_give_the_same_ranges_in_both_versions(ids, t):
    expected = ranges_v1(ids, t, 8)
    assert _v2(ids, t, 8) == expected
    assert [s for start, end in expected for s in range(start, end)] == _tokens(ids, t, 8)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    ids=st.lists(st.integers(-3, 20), min_size=1, max_size=12),
    t=st.integers(0, 100),
    l_sel=st.integers(1, 9),
)
def test_any_pattern_gives_merged_ranges_of_exactly_the_selected_tokens(ids, t, l_sel):
    ranges = ranges_v1(ids, t, l_sel)
    assert _v2(ids, t, l_sel) == ranges
    assert all(0 <= start < end <= t + 1 for start, end in ranges)
    assert all(ranges[n][1] < ranges[n + 1][0] for n in range(len(ranges) - 1))
    assert [s for start, end in ranges for s in range(start, end)] == _tokens(ids, t, l_sel)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(ids=st.lists(st.integers(-2, 9), min_size=1, max_size=8), t=st.integers(0, 60))
def test_positions_are_the_tokens_of_the_ranges(ids, t):
    place, real = positions_in(ranges_v2(torch.tensor([ids]), torch.tensor([t]), 8), t + 1)
    assert place[0][real[0]].tolist() == _tokens(ids, t, 8)


def test_many_queries_at_once_have_each_their_own_position():
    ids = torch.tensor([[[0, 1, -1]], [[0, 1, -1]]])
    ranges = ranges_v2(ids, torch.tensor([[3], [12]]), 8)
    assert ranges[:, 0].tolist() == [[[0, 4], [0, 0], [0, 0]], [[0, 13], [0, 0], [0, 0]]]
