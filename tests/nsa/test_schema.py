"""What the exported schema refuses is what the trainer refuses, and nothing else."""

import copy
import json
import re
import subprocess
import sys

import jsonschema
import pytest
import torch
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nsa.assignment import launch_from_order
from nsa.attention.backends import available_backends
from nsa.config import AS_IF_ABSENT, CONFIG_DIR, build_config, load_config
from nsa.data import BatchPlan
from nsa.describe import build_schema, describe, schema_text
from nsa.errors import BadConfig
from nsa.ranks import Ranks
from nsa.relations import OF_A_CONFIGURATION, OF_A_RUN, holds, right_side
from nsa.settings import TOGGLES, load_settings
from tests.nsa.runs import ROOT, build_trainer, losses
from tests.nsa.runs import tiny as tiny_with

SCHEMA = build_schema()
SECTIONS = SCHEMA["properties"]["train"]["properties"]
TRAIN = jsonschema.Draft202012Validator(SCHEMA["properties"]["train"])
ENV = jsonschema.Draft202012Validator(SCHEMA["properties"]["env"])
DEMO = yaml.safe_load((CONFIG_DIR / "demo.yaml").read_text())
ENGINE = {"fused_adamw": None, "compile": False, "keep_checkpoints": 0, "profile_steps": 0}
WHOLE = {**DEMO, "engine": ENGINE, "packing": {"documents_apart": False}}
KEYS = [(key,) for key in WHOLE] + [
    (key, inner) for key, value in WHOLE.items() if isinstance(value, dict) for inner in value
]
VALUES = st.one_of(
    st.sampled_from(
        ["nsa", "dense", "fp32", "fp13", "single", "reentrant", "parquet:", "auto", ""]
    ),
    st.integers(-2, 600),
    st.sampled_from([2**53 - 1, 2**53, 1e-4, 0.5, 1.5, -0.5, True, False, None, [], {}]),
)
TEXTS = st.one_of(
    st.sampled_from(
        ["0", "1", "2", "bf16", "none", "1e-4", "1e999", "inf", "nan", "-1", "0.5", "1.0", ""]
    ),
    st.from_regex(r"[0-9.e+-]{1,6}", fullmatch=True),
)


def taken(build, given):
    try:
        build(given)
    except BadConfig:
        return False
    return True


def relation(left):
    return next(row for row in OF_A_RUN if row.left == left)


def test_the_command_prints_a_schema_without_loading_torch():
    code = (
        "import runpy, sys; sys.argv = ['nsa.describe', '--schema'];\n"
        "try: runpy.run_module('nsa.describe', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == schema_text()
    assert json.loads(schema_text()) == SCHEMA
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SECTIONS["attention"]["properties"]["backend"]["enum"] == [
        "auto", *available_backends()
    ]  # fmt: skip


@pytest.mark.parametrize("file", sorted(CONFIG_DIR.glob("*.yaml")), ids=lambda file: file.stem)
def test_bundled_configurations_fit(file):
    whole = {"train": load_config(file), "env": {}, "world_size": 2}
    jsonschema.Draft202012Validator(SCHEMA).validate(whole)
    assert all(holds(row, whole) for row in (*OF_A_CONFIGURATION, *OF_A_RUN))


@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
@example(changes={("model", "gradient_checkpointing"): "reentrant"})
@example(changes={("model", "gradient_checkpointing"): 1})
@example(changes={("engine", "fused_adamw"): True})
@example(changes={("attention", "kind"): "dense", ("attention", "l"): 17})
@example(changes={("data",): "synthetic\n"})
def test_the_trainer_takes_what_fits_and_refuses_what_does_not(changes):
    mapping = copy.deepcopy(WHOLE)
    for path, value in changes.items():
        inner = mapping if len(path) == 1 else mapping[path[0]]
        if isinstance(inner, dict):
            inner[path[-1]] = value
    fits = TRAIN.is_valid(mapping) and all(
        holds(row, {"train": mapping}) for row in OF_A_CONFIGURATION
    )
    assert taken(build_config, mapping) is fits


@pytest.mark.parametrize("path", [*KEYS, ("bogus",), ("model", "bogus")], ids=".".join)
def test_missing_and_unknown_keys_do_not_fit(path):
    mapping = copy.deepcopy(WHOLE)
    inner = mapping if len(path) == 1 else mapping[path[0]]
    if inner.pop(path[-1], None) is None and path[-1] not in ENGINE:
        inner[path[-1]] = 1
    assert TRAIN.is_valid(mapping) is (path in (("engine",), ("packing",)))


@given(
    env=st.dictionaries(
        st.sampled_from([*TOGGLES, "NSA_BOGUS", "NCCL_ALGO", "CONFIG"]), TEXTS, max_size=3
    )
)
@example(env={"NSA_SDPA_NO_FLASH": "1", "NSA_SDPA_FLASH_ONLY": "1"})
@example(env={"NSA_SDPA_NO_FLASH": "1", "NSA_SDPA_FLASH_ONLY": "0"})
@example(env={"NSA_LR": "2e-4", "NSA_SCALER_GROWTH_FACTOR": "1.0"})
@example(env={"NSA_LR": "2e-4\n"})
def test_the_trainer_takes_the_environment_that_fits(env):
    assert taken(load_settings, env) is ENV.is_valid(env)


@settings(max_examples=16)
@given(
    attention=st.sampled_from(
        [{"kind": "dense"}, {}, {"compression": "mean"}, {"compression": "mlp"}]
    ),
    sizes=st.tuples(*[st.integers(1, 6)] * 4),
    width=st.integers(1, 40),
    vocab=st.integers(256, 300),
)
def test_the_stated_size_is_what_the_model_counts(attention, sizes, width, vocab):
    layers, groups, times, half = sizes
    shape = {"dim": 8, "layers": layers, "heads": groups * times, "groups": groups}
    shape |= {"head_dim": 2 * half, "ffn_width": width, "vocab": vocab}
    attention = {"kind": "nsa"} | attention
    mapping = DEMO | {
        "model": DEMO["model"] | shape, "attention": DEMO["attention"] | attention
    }  # fmt: skip
    counted = describe(build_config(mapping))["params"]
    (row,) = [
        row
        for row in OF_A_RUN
        if row.left == "train.params"
        and all(attention.get(name.rpartition(".")[2]) == value for name, value in row.when.items())
    ]
    assert right_side(row, {"train": mapping}) == counted
    assert holds(row, {"train": {**mapping, "params": round(counted * 1.019)}})
    assert not holds(row, {"train": {**mapping, "params": round(counted * 1.03) + 1}})


@pytest.mark.parametrize(
    ("name", "value"), [("NSA_LR", "0.02"), ("NSA_ACCUM", "2"), ("CONFIG", "demo")]
)
def test_an_environment_that_disagrees_is_refused_by_relation_and_launch(
    make_order, tiny, name, value
):
    file = make_order()
    agreeing = {"NSA_LR": "1e-2", "NSA_ACCUM": "1", "CONFIG": "tiny"}
    launch_from_order(file, load_settings(agreeing))
    row = relation(f"env.{name}")
    assert holds(row, {"train": tiny, "env": agreeing})
    with pytest.raises(BadConfig, match=r"disagrees|but the order says"):
        launch_from_order(file, load_settings({name: value}))
    assert not holds(row, {"train": tiny, "env": {name: value}})


@pytest.mark.parametrize(("world_size", "fits"), [(1, True), (2, True), (3, False), (4, False)])
def test_a_batch_that_cannot_be_shared_is_refused_by_relation_and_plan(world_size, fits):
    mapping = tiny_with(batch={"global_seqs": 4, "accumulate": 2})
    whole = {"train": mapping, "world_size": world_size}
    assert holds(relation("train.batch.global_seqs"), whole) is fits
    if not fits:
        with pytest.raises(BadConfig, match="cannot be shared"):
            BatchPlan.of(build_config(mapping), rank=0, world_size=world_size)


def test_one_process_means_one_rank_for_relation_and_ranks(tiny):
    row = relation("world_size")
    assert not holds(row, {"train": tiny, "world_size": 2})
    assert holds(row, {"train": {**tiny, "parallel": "ddp"}, "world_size": 2})
    pair = load_settings({"RANK": "0", "WORLD_SIZE": "2"})
    with pytest.raises(BadConfig, match="single with 2 ranks"):
        Ranks(pair, "single", torch.device("cpu"), lambda: None)


def test_the_default_of_a_section_is_whole_and_trains_as_if_it_were_absent(train_here):
    for name in AS_IF_ABSENT:
        assert build_config({**DEMO, name: SECTIONS[name]["default"]})
    whole = train_here("whole", train={"engine": dict(AS_IF_ABSENT["engine"])})
    assert losses(train_here("absent")) == losses(whole)


@pytest.mark.filterwarnings("ignore:find_unused_parameters")
@pytest.mark.parametrize(
    ("parallel", "more", "fails"),
    [
        ("ddp", {}, True),
        ("ddp", {"NSA_DDP_DISABLE_GC": "1"}, False),
        ("ddp", {"NSA_DDP_STATIC_GRAPH": "1", "NSA_DDP_FIND_UNUSED": "0"}, False),
        ("fsdp", {}, False),
    ],
    ids=["unused", "no checkpointing", "static graph", "fsdp"],
)
def test_reentrant_checkpointing_fails_as_in_the_field_and_fsdp_answers(
    make_order, parallel, more, fails
):
    train = {"parallel": parallel, "model": {"gradient_checkpointing": "reentrant"}, "steps": 2}
    trainer = build_trainer(make_order(train=train), {"NSA_DDP_FIND_UNUSED": "1"} | more)
    if not fails:
        trainer.run()
        return
    with pytest.raises(RuntimeError, match=re.escape("mark a variable ready only once")):
        trainer.run()
    torch.distributed.destroy_process_group()
