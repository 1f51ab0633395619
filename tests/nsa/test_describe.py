from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch

from nsa.config import AttentionConfig, build_config, load_config
from nsa.describe import count_memory, describe, pairs_per_token
from nsa.model import build_model
from nsa.model.transformer import next_byte_loss
from tests.nsa.runs import tiny


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


def test_the_long_configuration_fits_one_gpu_of_80_gb_by_count():
    config = build_config(load_config(Path("m7c_125m_32k")))
    assert (config.model.seq_len, config.model.rope_theta) == (32768, 5e5)
    counted = count_memory(config)
    assert counted["total"] == sum(counted[name] for name in ("states", "layers", "ends"))
    assert counted["total"] < 0.6 * 80e9  # what is not counted has room
    forgetting = replace(config, model=replace(config.model, gradient_checkpointing=False))
    assert count_memory(forgetting)["layers"] > 5 * counted["layers"]


@pytest.mark.parametrize(
    ("kind", "dtype", "checkpointing"),
    [("nsa", "fp32", False), ("nsa", "bf16", True), ("dense", "bf16", False)],
)
def test_what_a_step_keeps_is_what_is_counted(kind, dtype, checkpointing):
    model = {"seq_len": 256, "dim": 64, "head_dim": 16, "ffn_width": 176, "layers": 2}
    changes = {"dtype": dtype, "attention": {"kind": kind, "l_sel": 16}}
    changes["model"] = model | {"gradient_checkpointing": checkpointing}
    config = build_config(tiny(**changes))
    net = build_model(config)
    tokens = torch.randint(256, (config.batch.global_seqs, 257))
    kept, own = {}, {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", enabled=dtype == "bf16"):
            loss = next_byte_loss(net(tokens[:, :-1]), tokens[:, 1:])
    loss.backward()
    counted = count_memory(config)
    assert sum(kept.values()) <= counted["layers"] + counted["ends"]
    if not checkpointing:
        assert counted["layers"] + counted["ends"] <= 3 * sum(kept.values())


def test_a_learned_compression_is_multiplied_once_a_block_and_group():
    mapping = load_config(Path("demo"))
    mean = describe(build_config(mapping))
    mapping["attention"]["compression"] = "mlp"
    learned = describe(build_config(mapping))
    layers, groups, head, l, d = 6, 2, 32, 32, 16  # noqa: E741
    perceptron = l * head * 2 * head + 2 * head * head
    more = learned["flops_per_token"]["forward"] - mean["flops_per_token"]["forward"]
    assert more == 2 * 2 * layers * perceptron * groups // d
