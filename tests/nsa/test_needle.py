"""A trained tiny model finds a byte pattern beyond its window, and does it through selection.

The weights are those of `python -m bench.needle --steps 700 --save tests/data/needle.pt`; what is
measured here is what the attention of today does with them.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.needle import PATTERN, closed, load_trained, needles, retrieved

FILE = Path(__file__).parents[1] / "data" / "needle.pt"
COUNT = 32


@pytest.fixture(scope="module")
def trained():
    return load_trained(FILE)[0]


def test_the_pattern_stands_beyond_the_window_and_most_blocks_are_not_selected():
    _, config = load_trained(FILE)
    tokens = needles(32, config, torch.Generator().manual_seed(0), repeats=0)
    S, attention = config.model.seq_len, config.attention
    starts = (tokens == 255).nonzero()[:, 1].view(32, 2)
    assert (S - PATTERN - 1 - starts[:, 0]).min() > attention.w + PATTERN
    assert attention.n_sel * attention.l_sel <= S / 4


def test_the_pattern_is_retrieved_and_not_without_the_selected_branch(trained):
    _, config = load_trained(FILE)
    assert retrieved(trained, config, COUNT) >= 0.95
    with closed(trained, "selected"):
        assert retrieved(trained, config, COUNT) < 0.2
    assert retrieved(trained, config, COUNT) >= 0.95


def test_a_selection_that_misses_the_pattern_costs_the_answer(trained, monkeypatch):
    _, config = load_trained(FILE)
    for block in trained.layers():
        # Nothing but the first block and the two nearest: no free choice.
        monkeypatch.setattr(block.attention, "sizes", replace(block.attention.sizes, n_sel=3))
    assert retrieved(trained, config, COUNT) < 0.3
