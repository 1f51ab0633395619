import hashlib
from pathlib import Path

import pytest
import rfc8785

from nsa.config import CONFIG_DIR, build_config, config_digest, config_mapping, load_config
from nsa.describe import describe
from nsa.errors import BadConfig
from tests.nsa.runs import ENGINE, TINY, tiny

BUNDLED = sorted(CONFIG_DIR.glob("*.yaml"))
KEYS = [(key,) for key in TINY] + [
    (key, inner) for key, value in TINY.items() if isinstance(value, dict) for inner in value
]


@pytest.mark.parametrize("file", BUNDLED, ids=lambda file: file.stem)
def test_a_bundled_configuration_is_whole_and_counts_its_parameters(file):
    config = build_config(load_config(file))
    assert config.config == file.stem
    assert describe(config)["params"] == config.params


def test_the_125m_model_has_125_million_parameters_within_two_percent():
    config = build_config(load_config(Path("m7c_125m")))
    assert abs(describe(config)["params"] / 125e6 - 1) <= 0.02
    model, nsa = config.model, config.attention
    assert (model.dim, model.layers, model.heads, model.groups) == (768, 12, 12, 2)
    assert (model.head_dim, model.vocab, model.seq_len) == (64, 256, 2048)
    assert (nsa.l, nsa.d, nsa.l_sel, nsa.n_sel, nsa.w) == (32, 16, 64, 16, 512)
    assert config.batch.global_seqs * model.seq_len == 4096
    optim = config.optim
    assert (optim.lr, optim.warmup_steps, config.seed) == (2e-4, 2000, 1337)
    assert (optim.weight_decay, optim.clip, config.eval.every_steps) == (0.01, 1.0, 1000)
    assert (config.dtype, config.steps) == ("bf16", 50_000)


def test_a_missing_or_an_unknown_key_is_an_error_that_names_it():
    for path in KEYS:
        mapping = tiny()
        del (mapping if len(path) == 1 else mapping[path[0]])[path[-1]]
        with pytest.raises(BadConfig, match=f"missing key '{path[-1]}'"):
            build_config(mapping)
    for changes in ({"seq-len": 1}, {"model": {"seq-len": 1}}, {"optim": {"seq-len": 1}}):
        with pytest.raises(BadConfig, match="unknown key 'seq-len'"):
            build_config(tiny(**changes))


WRONG = {
    "": {
        "steps": ("40", True, 0), "dtype": ("fp8",), "parallel": ("tp",), "params": (0,),
        "seed": (-1, 2**60),
        "engine": (None, {"compile": True}, ENGINE | {"keep_checkpoints": -1}),
    },
    "model": {
        "dim": (256.0,), "groups": (3,), "vocab": (255,), "seq_len": (7,), "rope_theta": (0,),
        "gradient_checkpointing": (0,), "norm_eps": (-1e-5,), "init_std": (-0.02,),
    },
    "attention": {
        "kind": ("flash",), "l": (0,), "d": (3,), "l_sel": (10,), "n_sel": (2,), "w": (0,),
        "compression": (None, "max"),
    },
    "optim": {
        "lr": ("fast", float("nan")), "clip": (float("inf"),), "beta1": (1.0,), "beta2": (-0.1,),
        "eps": (-1e-8,), "weight_decay": (-0.01,), "min_lr_ratio": (2.0,),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [(s, key, value) for s, keys in WRONG.items() for key, row in keys.items() for value in row],
)
def test_a_value_that_cannot_be_trained_is_an_error(section, key, value):
    mapping = tiny()
    (mapping[section] if section else mapping)[key] = value
    with pytest.raises(BadConfig):
        build_config(mapping)


def test_the_digest_is_of_the_canonical_form_and_what_is_left_out_is_part_of_it():
    digests = set()
    for changes in (
        {},
        {"engine": ENGINE},
        *({"attention": {"compression": x}} for x in ("mean", "mlp")),
    ):
        config = build_config(tiny(**changes))
        assert config_mapping(config) == tiny(**changes)
        digests.add(config_digest(config))
        assert config_digest(config) == hashlib.sha256(rfc8785.dumps(tiny(**changes))).hexdigest()
    assert len(digests) == 4
    assert build_config(TINY).engine is None
    # A whole number may be written for a float.
    whole = build_config(tiny(model={"rope_theta": 10000}))
    assert config_digest(whole) == config_digest(build_config(TINY))


def test_demo_really_selects():
    config = build_config(load_config(Path("demo")))
    assert config.model.seq_len > config.attention.n_sel * config.attention.l_sel
    assert config.model.seq_len > config.attention.w
