import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import rfc8785
import yaml

from nsa.config import CONFIG_DIR, build_config, config_digest, config_mapping, load_config
from nsa.describe import describe
from nsa.errors import BadConfig

BUNDLED = sorted(CONFIG_DIR.glob("*.yaml"))
DEMO: dict[str, Any] = yaml.safe_load((CONFIG_DIR / "demo.yaml").read_text())
ENGINE = {"fused_adamw": True, "compile": False, "keep_checkpoints": 0, "profile_steps": 0}
KEYS = [(key,) for key in DEMO] + [
    (key, inner) for key, value in DEMO.items() if isinstance(value, dict) for inner in value
]


@pytest.mark.parametrize("file", BUNDLED, ids=lambda file: file.stem)
def test_a_bundled_configuration_is_whole_and_counts_its_parameters(file: Path) -> None:
    config = build_config(load_config(file))
    assert config.config == file.stem
    assert describe(config)["params"] == config.params


def test_the_125m_model_has_125_million_parameters_within_two_percent() -> None:
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


@pytest.mark.parametrize("path", KEYS, ids=".".join)
def test_a_missing_key_is_an_error_that_names_it(path: tuple[str, ...]) -> None:
    mapping = copy.deepcopy(DEMO)
    inner = mapping if len(path) == 1 else mapping[path[0]]
    del inner[path[-1]]
    with pytest.raises(BadConfig, match=f"missing key '{path[-1]}'"):
        build_config(mapping)


@pytest.mark.parametrize("section", [None, "model", "optim"])
def test_an_unknown_key_is_an_error_that_names_it(section: str | None) -> None:
    mapping = copy.deepcopy(DEMO)
    (mapping[section] if section else mapping)["seq-len"] = 128
    with pytest.raises(BadConfig, match="unknown key 'seq-len'"):
        build_config(mapping)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        (None, "steps", "40"),
        (None, "steps", True),
        (None, "steps", 0),
        (None, "dtype", "fp8"),
        (None, "parallel", "tp"),
        (None, "engine", None),
        (None, "engine", {"compile": True}),
        (None, "engine", {**ENGINE, "keep_checkpoints": -1}),
        ("model", "dim", 256.0),
        ("model", "groups", 3),
        ("model", "vocab", 255),
        ("model", "seq_len", 31),
        ("model", "gradient_checkpointing", 0),
        ("attention", "kind", "flash"),
        ("optim", "lr", "fast"),
        ("optim", "lr", float("nan")),
        ("optim", "clip", float("inf")),
        ("optim", "beta1", 1.0),
        ("optim", "beta2", -0.1),
        ("optim", "eps", -1e-8),
        ("optim", "weight_decay", -0.01),
        ("optim", "min_lr_ratio", 2.0),
        ("model", "rope_theta", 0),
        ("model", "norm_eps", -1e-5),
        ("model", "init_std", -0.02),
        ("attention", "l", 0),
        ("attention", "d", 15),
        ("attention", "l_sel", 40),
        ("attention", "n_sel", 2),
        ("attention", "w", 0),
        (None, "seed", -1),
        (None, "seed", 2**60),
        (None, "params", 0),
    ],
)
def test_a_value_that_cannot_be_trained_is_an_error(
    section: str | None, key: str, value: object
) -> None:
    mapping = copy.deepcopy(DEMO)
    (mapping[section] if section else mapping)[key] = value
    with pytest.raises(BadConfig):
        build_config(mapping)


def test_the_digest_is_that_of_the_orders_own_bytes_in_canonical_form() -> None:
    through_json = json.loads(json.dumps(DEMO))
    expected = hashlib.sha256(rfc8785.dumps(through_json)).hexdigest()
    assert config_digest(build_config(DEMO)) == expected


def test_the_engine_may_be_left_out_and_its_absence_is_part_of_the_digest() -> None:
    mapping = {**copy.deepcopy(DEMO), "engine": dict(ENGINE)}
    expected = hashlib.sha256(rfc8785.dumps(json.loads(json.dumps(mapping)))).hexdigest()
    assert config_digest(build_config(mapping)) == expected
    assert config_digest(build_config(DEMO)) != expected
    assert build_config(DEMO).engine is None


def test_the_digest_does_not_care_whether_a_whole_number_was_written_as_a_float() -> None:
    mapping = copy.deepcopy(DEMO)
    mapping["model"]["rope_theta"] = 10000
    assert config_digest(build_config(mapping)) == config_digest(build_config(DEMO))


def test_demo_really_selects() -> None:
    config = build_config(DEMO)
    assert config.model.seq_len > config.attention.n_sel * config.attention.l_sel
    assert config.model.seq_len > config.attention.w


def test_the_compression_may_be_left_out_and_is_then_no_part_of_the_digest(
    tiny: dict[str, Any],
) -> None:
    without = build_config(tiny)
    assert "compression" not in config_mapping(without)["attention"]
    digests = {config_digest(without)}
    for name in ("mean", "mlp"):
        told = {**tiny, "attention": {**tiny["attention"], "compression": name}}
        config = build_config(told)
        assert config_mapping(config) == told
        digests.add(config_digest(config))
    assert len(digests) == 3
    for wrong in (None, "max"):
        told = {**tiny, "attention": {**tiny["attention"], "compression": wrong}}
        with pytest.raises(BadConfig, match=r"attention\.compression: expected mean or mlp"):
            build_config(told)
