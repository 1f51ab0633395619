"""The rule of forced blocks is one object: change it, and everything that selects follows."""

from typing import get_type_hints

import pytest
import torch

from nsa.attention import NsaCache, Sizes, decode, nsa_attention, selection_rule
from nsa.attention.checks import check_sizes
from nsa.attention.selection_rule import RULE, SelectionRule
from nsa.config import AttentionConfig
from nsa.model.statistics import selection_stats
from tests.nsa.attention.conftest import BRANCHES

RULES = [RULE, SelectionRule(first=2, recent=3), SelectionRule(first=1, recent=1),
         SelectionRule(first=3, recent=2)]  # fmt: skip
SIZES = {"l": 8, "d": 4, "l_sel": 8, "n_sel": 6, "w": 20}


def test_the_papers_rule_is_the_first_block_the_own_and_the_one_before():
    assert (RULE.first, RULE.recent, RULE.least, RULE.free(16)) == (1, 2, 3, 13)
    assert [RULE.forced(c) for c in range(4)] == [[0], [0, 1], [0, 1, 2], [0, 2, 3]]
    assert SelectionRule(first=2, recent=3).forced(7) == [0, 1, 5, 6, 7]
    for first, recent in ((0, 2), (1, 0)):
        with pytest.raises(ValueError, match="its own block and the first"):
            SelectionRule(first=first, recent=recent)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_backend_and_decoding_follow_the_rule(rule, make_inputs, agree, monkeypatch):
    monkeypatch.setattr(selection_rule, "RULE", rule)
    S, l_sel, n_sel = 110, SIZES["l_sel"], SIZES["n_sel"]
    inputs = make_inputs(S, B=1)
    out, ids, _ = agree(inputs, **SIZES)
    chosen_freely = rule.free(n_sel) == 0
    for t in range(S):
        c = t // l_sel
        for group in ids[0, t].tolist():
            selected = [j for j in group if j >= 0]
            assert len(selected) == min(n_sel, c + 1)
            assert set(rule.forced(c)) <= set(selected)
            freely = [j for j in selected if j not in rule.forced(c)]
            lowest = list(range(rule.first, rule.first + len(freely)))
            chosen_freely |= c >= n_sel and freely != lowest
    assert chosen_freely
    cache = NsaCache(B=1, G=2, D=8, capacity=S, sizes=Sizes(**SIZES), dtype=torch.float64)
    for t in range(S):
        token = {name: x.detach()[:, t : t + 1] for name, x in inputs.items()}
        cache.append(*(token[name] for name in BRANCHES))
        step, step_ids = decode(token["q"], token["gates"], cache)
        assert torch.equal(step_ids[:, 0], ids[:, t]), t
    torch.testing.assert_close(step[:, 0], out[:, -1], rtol=1e-11, atol=1e-12)
    assert selection_stats(ids, l_sel)[0] > 0 or rule.free(n_sel) == 0


def test_sizes_and_configuration_want_room_for_what_is_forced(monkeypatch, make_inputs):
    (bounds,) = get_type_hints(AttentionConfig, include_extras=True)["n_sel"].__metadata__
    assert bounds.at_least == RULE.least  # nsa.config knows no torch, so it says the number itself
    monkeypatch.setattr(selection_rule, "RULE", SelectionRule(first=2, recent=3))
    check_sizes(8, 4, 8, 5, 20)
    with pytest.raises(ValueError, match="n_sel must be at least 5: so many are forced"):
        nsa_attention(**make_inputs(20), **{**SIZES, "n_sel": 4})
