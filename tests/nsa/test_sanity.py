"""Does the ordered model's miniature compute, and is one that does not refused?"""

import json
from pathlib import Path

import pytest
import torch

from nsa import sanity
from nsa.config import build_config, load_config
from nsa.sanity import check, miniature
from nsa.settings import load_settings

CPU = [torch.device("cpu")]
DEMO = Path(sanity.__file__).parent / "configs" / "demo.yaml"


def test_the_miniature_keeps_all_but_layers_length_and_vocabulary():
    config = build_config(load_config(DEMO))
    small = miniature(config)
    assert (small.model.layers, small.model.seq_len, small.model.vocab) == (1, 64, 256)
    assert (small.model.dim, small.attention, small.dtype) == (256, config.attention, config.dtype)
    found = check(config, CPU, load_settings())
    assert found["passed"], found
    assert json.loads(json.dumps(found))["rows"][0]["gradient"] > 0


@pytest.mark.parametrize("broken", ["not-a-number", "raises"])
def test_a_model_that_does_not_compute_says_so(broken, monkeypatch):
    def loss(logits, _):
        if broken == "raises":
            raise RuntimeError("CUDA error: an illegal memory access")
        return logits.sum() * float("nan")

    monkeypatch.setattr(sanity, "next_byte_loss", loss)
    found = check(build_config(load_config(DEMO)), CPU, load_settings())
    assert not found["passed"]
    assert ("nan" if broken == "not-a-number" else "illegal memory") in found["text"]
