from math import prod
from pathlib import Path

import pytest

from nsa.config import AttentionConfig, build_config, load_config
from nsa.describe import describe, pairs_per_token


def test_pairs_are_those_of_the_definition():
    config = AttentionConfig(kind="nsa", backend="auto", l=8, d=4, l_sel=8, n_sel=4, w=16)
    compressed = selected = window = 0
    for t in range(50):
        compressed += sum(i * 4 + 8 - 1 <= t for i in range(50))
        chosen = {0, t // 8, max(0, t // 8 - 1)}
        chosen |= set(sorted(set(range(t // 8 + 1)) - chosen)[: 4 - len(chosen)])
        selected += sum(s // 8 in chosen for s in range(t + 1))
        window += min(16, t + 1)
    expected = {"compressed": compressed, "selected": selected, "window": window}
    found = pairs_per_token(config, 50)
    assert {name: mean * 50 for name, mean in found.items()} == pytest.approx(expected)


def test_the_field_model_costs_about_six_flops_per_parameter_and_token_to_train():
    told = describe(build_config(load_config(Path("m7c_125m"))))
    assert 6 <= told["flops_per_token"]["train"] / told["params"] <= 8
    assert told["tokens_per_step"] == 4096
    assert told["shapes"]["embedding.weight"] == [256, 768]
    assert sum(prod(shape) for shape in told["shapes"].values()) == told["params"]


def test_a_learned_compression_is_multiplied_once_a_block_and_group():
    mapping = load_config(Path("demo"))
    mean = describe(build_config(mapping))
    mapping["attention"]["compression"] = "mlp"
    learned = describe(build_config(mapping))
    layers, groups, head, l, d = 3, 2, 32, 32, 16  # noqa: E741
    perceptron = l * head * 2 * head + 2 * head * head
    more = learned["flops_per_token"]["forward"] - mean["flops_per_token"]["forward"]
    assert more == 2 * 2 * layers * perceptron * groups // d
