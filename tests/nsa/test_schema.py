"""What the exported schema refuses is what the trainer refuses, and nothing else."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nsa.attention.backends import available_backends
from nsa.config import AS_IF_ABSENT, CONFIG_DIR, build_config, load_config
from nsa.data import BatchPlan
from nsa.describe import describe
from nsa.errors import BadConfig
from nsa.launch import launch_from_order
from nsa.ranks import Ranks
from nsa.relations import OF_A_CONFIGURATION, OF_A_RUN, Relation, holds, right_side
from nsa.schema import build_schema, schema_text
from nsa.settings import TOGGLES, load_settings

ROOT = Path(__file__).parents[2]
SCHEMA = build_schema()
TRAIN = jsonschema.Draft202012Validator(SCHEMA["properties"]["train"])
ENV = jsonschema.Draft202012Validator(SCHEMA["properties"]["env"])
DEMO: dict[str, Any] = yaml.safe_load((CONFIG_DIR / "demo.yaml").read_text())
ENGINE = {"fused_adamw": None, "compile": False, "keep_checkpoints": 0, "profile_steps": 0}
PHI = ({"compression": "mean"}, {"compression": "mlp"})
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


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(schema_text()) == SCHEMA


def test_the_command_prints_it_without_loading_torch() -> None:
    code = (
        "import runpy, sys; sys.argv = ['nsa.describe', '--schema'];\n"
        "try: runpy.run_module('nsa.describe', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == schema_text()


@pytest.mark.parametrize("file", sorted(CONFIG_DIR.glob("*.yaml")), ids=lambda file: file.stem)
def test_bundled_configurations_fit(file: Path) -> None:
    whole = {"train": load_config(file), "env": {}, "world_size": 2}
    jsonschema.Draft202012Validator(SCHEMA).validate(whole)
    assert all(holds(row, whole) for row in (*OF_A_CONFIGURATION, *OF_A_RUN))


@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
@example(changes={("model", "gradient_checkpointing"): "reentrant"})
@example(changes={("model", "gradient_checkpointing"): 1})
@example(changes={("engine", "fused_adamw"): True})
@example(changes={("attention", "kind"): "dense", ("attention", "l"): 17})
@example(changes={("data",): "synthetic\n"})
def test_the_trainer_takes_what_fits_and_refuses_what_does_not(
    changes: dict[tuple[str, ...], Any],
) -> None:
    mapping = copy.deepcopy(WHOLE)
    for path, value in changes.items():
        inner = mapping if len(path) == 1 else mapping[path[0]]
        if isinstance(inner, dict):
            inner[path[-1]] = value
    fits = TRAIN.is_valid(mapping) and all(
        holds(row, {"train": mapping}) for row in OF_A_CONFIGURATION
    )
    try:
        build_config(mapping)
        taken = True
    except BadConfig:
        taken = False
    assert taken is fits


@pytest.mark.parametrize("path", [*KEYS, ("bogus",), ("model", "bogus")], ids=".".join)
def test_missing_and_unknown_keys_do_not_fit(path: tuple[str, ...]) -> None:
    mapping = copy.deepcopy(WHOLE)
    inner = mapping if len(path) == 1 else mapping[path[0]]
    if inner.pop(path[-1], None) is None and path[-1] not in ENGINE:
        inner[path[-1]] = 1
    assert TRAIN.is_valid(mapping) is (path in (("engine",), ("packing",)))


TEXTS = st.one_of(
    st.sampled_from(
        ["0", "1", "2", "", "bf16", "none", "1e-4", "1e999", "inf", "nan", "-1", "0.5", "1.0"]
    ),
    st.from_regex(r"[0-9.e+-]{1,6}", fullmatch=True),
)


@given(
    env=st.dictionaries(
        st.sampled_from([*TOGGLES, "NSA_BOGUS", "NCCL_ALGO", "CONFIG"]), TEXTS, max_size=3
    )
)
@example(env={"NSA_SDPA_NO_FLASH": "1", "NSA_SDPA_FLASH_ONLY": "1"})
@example(env={"NSA_SDPA_NO_FLASH": "1", "NSA_SDPA_FLASH_ONLY": "0"})
@example(env={"NSA_LR": "2e-4", "NSA_SCALER_GROWTH_FACTOR": "1.0"})
@example(env={"NSA_LR": "2e-4\n"})
def test_the_trainer_takes_the_environment_that_fits(env: dict[str, str]) -> None:
    try:
        load_settings(env)
        taken = True
    except BadConfig:
        taken = False
    assert taken is ENV.is_valid(env)


@pytest.mark.parametrize(
    "attention",
    [{"kind": "dense"}, *({"kind": "nsa", **phi} for phi in ({}, *PHI))],
    ids=["dense", "absent", "mean", "mlp"],
)
@settings(max_examples=8)
@given(
    sizes=st.tuples(*[st.integers(1, 6)] * 4),
    width=st.integers(1, 40),
    vocab=st.integers(256, 300),
)
def test_the_stated_size_is_what_the_model_counts(
    attention: dict[str, str], sizes: tuple[int, ...], width: int, vocab: int
) -> None:
    layers, groups, times, half = sizes
    shape = {"dim": 8, "layers": layers, "heads": groups * times, "groups": groups}
    mapping = {
        **DEMO,
        "model": {
            **DEMO["model"], **shape, "head_dim": 2 * half, "ffn_width": width, "vocab": vocab
        },
        "attention": {**DEMO["attention"], **attention},
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


def relation(left: str) -> Relation:
    return next(row for row in OF_A_RUN if row.left == left)


@pytest.mark.parametrize(
    ("env", "left"),
    [
        ({"NSA_LR": "0.02"}, "env.NSA_LR"),
        ({"NSA_ACCUM": "2"}, "env.NSA_ACCUM"),
        ({"CONFIG": "demo"}, "env.CONFIG"),
    ],
)
def test_an_environment_that_disagrees_is_refused_by_relation_and_launch(
    make_order: Callable[..., Path], tiny: dict[str, Any], env: dict[str, str], left: str
) -> None:
    file = make_order()
    agreeing = {"NSA_LR": "1e-2", "NSA_ACCUM": "1", "CONFIG": "tiny"}
    launch_from_order(file, load_settings(agreeing))
    assert holds(relation(left), {"train": tiny, "env": agreeing})
    with pytest.raises(BadConfig, match=r"disagrees|but the order says"):
        launch_from_order(file, load_settings(env))
    assert not holds(relation(left), {"train": tiny, "env": env})


@pytest.mark.parametrize(("world_size", "fits"), [(1, True), (2, True), (3, False), (4, False)])
def test_a_batch_that_cannot_be_shared_is_refused_by_relation_and_plan(
    tiny: dict[str, Any], world_size: int, fits: bool
) -> None:
    tiny["batch"] = {"global_seqs": 4, "accumulate": 2}
    found = holds(relation("train.batch.global_seqs"), {"train": tiny, "world_size": world_size})
    assert found is fits
    if not fits:
        with pytest.raises(BadConfig, match="cannot be shared"):
            BatchPlan.of(build_config(tiny), rank=0, world_size=world_size)


def test_one_process_means_one_rank_for_relation_and_ranks(tiny: dict[str, Any]) -> None:
    assert not holds(relation("world_size"), {"train": tiny, "world_size": 2})
    assert holds(relation("world_size"), {"train": {**tiny, "parallel": "ddp"}, "world_size": 2})
    settings = load_settings({"RANK": "0", "WORLD_SIZE": "2"})
    with pytest.raises(BadConfig, match="single with 2 ranks"):
        Ranks(settings, "single", torch.device("cpu"), lambda: None)


def test_the_attention_backends_are_those_there_are() -> None:
    named = SCHEMA["properties"]["train"]["properties"]["attention"]["properties"]["backend"]
    assert named == {"enum": ["auto", *available_backends()]}


@pytest.mark.parametrize("name", AS_IF_ABSENT)
def test_the_default_of_a_section_is_whole(name: str) -> None:
    section = SCHEMA["properties"]["train"]["properties"][name]
    assert build_config({**DEMO, name: section["default"]})


def test_an_absent_engine_and_its_default_train_the_same(train_here: Any) -> None:
    absent = train_here("absent")
    whole = train_here("whole", train={"engine": dict(AS_IF_ABSENT["engine"])})
    losses = [
        [row["loss"] for row in lines if row["msg"] == "progress"] for lines in (absent, whole)
    ]
    assert losses[0] == losses[1]


@pytest.mark.filterwarnings("ignore:find_unused_parameters")
@pytest.mark.parametrize(
    ("parallel", "env", "fails"),
    [
        ("ddp", {"NSA_DDP_FIND_UNUSED": "1"}, True),
        ("ddp", {"NSA_DDP_FIND_UNUSED": "1", "NSA_DDP_DISABLE_GC": "1"}, False),
        ("ddp", {"NSA_DDP_STATIC_GRAPH": "1"}, False),
        ("fsdp", {"NSA_DDP_FIND_UNUSED": "1"}, False),
    ],
    ids=["unused", "no checkpointing", "static graph", "fsdp"],
)
def test_reentrant_checkpointing_fails_as_in_the_field_and_fsdp_answers(
    make_order: Callable[..., Path],
    helpers: Any,
    tiny: dict[str, Any],
    parallel: str,
    env: dict[str, str],
    fails: bool,
) -> None:
    model = {**tiny["model"], "gradient_checkpointing": "reentrant"}
    order = make_order(train={"parallel": parallel, "model": model, "steps": 2})
    trainer = helpers.build_trainer(order, env)
    if not fails:
        trainer.run()
        return
    with pytest.raises(RuntimeError, match=re.escape("mark a variable ready only once")):
        trainer.run()
    torch.distributed.destroy_process_group()
