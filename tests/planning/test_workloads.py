"""The copy of a workload's schema is what the workload exports, and is read as others read it."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gonogo.planning.source import (
    load_train_config,
    read_schema,
    schema_documents,
    violations,
    workload_schema,
)

ROOT = Path(__file__).parents[2]
COPY = ROOT / "gonogo" / "planning" / "workloads" / "nsa.train.json"
SCHEMA = schema_documents()["nsa.train"]
NSA = read_schema(SCHEMA)
DEMO = load_train_config("demo")


def test_the_copy_is_what_the_workload_exports() -> None:
    """After a change of nsa: python -m nsa.describe --schema > COPY."""
    done = subprocess.run(
        [sys.executable, "-m", "nsa.describe", "--schema"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert COPY.read_text() == done.stdout


def test_a_foreign_workload_has_no_schema() -> None:
    assert workload_schema("nsa.train") is not None
    assert workload_schema("my.trainer") is None
    assert workload_schema(None) is None


PATHS = [(key,) for key in DEMO] + [
    (key, inner) for key, value in DEMO.items() if isinstance(value, dict) for inner in value
]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from(
        [2**53, 0.5, -1.5, 1e-4, "bf16", "reentrant", "nsa", "x", "", [], {}, {"a": 1}]
    ),
)


@given(
    changes=st.dictionaries(st.sampled_from([*PATHS, ("bogus",), ("engine",)]), VALUES, max_size=3),
    dropped=st.lists(st.sampled_from(PATHS), max_size=1),
    env=st.dictionaries(
        st.sampled_from(["NSA_TB_DISABLE", "NSA_LR", "NSA_BOGUS", "X", "NSA_SDPA_NO_FLASH"]),
        st.sampled_from(["0", "1", "", "1e-4", "x"]),
    ),
)
@example(changes={("seed",): True}, dropped=[], env={})
def test_what_fits_is_what_a_whole_validator_says(
    changes: dict[tuple[str, ...], Any], dropped: list[tuple[str, ...]], env: dict[str, str]
) -> None:
    train = deepcopy(DEMO)
    for path, value in changes.items():
        inner = train if len(path) == 1 else train[path[0]]
        if isinstance(inner, dict):
            inner[path[-1]] = value
    for path in dropped:
        inner = train if len(path) == 1 else train.get(path[0])
        if isinstance(inner, dict):
            inner.pop(path[-1], None)
    whole = {"train": train, "env": env, "world_size": 2}
    found = list(violations(NSA.document, whole))
    errors = list(jsonschema.Draft202012Validator(NSA.document).iter_errors(whole))
    assert bool(found) == bool(errors)
    assert {".".join(row.path) for row in found} >= {
        ".".join(map(str, error.absolute_path))
        for error in errors
        if error.validator not in ("required", "additionalProperties")
    }


def test_a_whole_number_is_one_that_was_written_as_one() -> None:
    """JSON Schema takes 256.0 for a whole number; the trainer does not."""
    train = deepcopy(DEMO)
    train["model"]["dim"] = 256.0
    (row,) = NSA.violations(train, {}, 2)
    assert row.message == "found 256.0; expected a whole number"


TOLD = [
    (("optim", "lr"), "fast", "train.optim.lr", "found 'fast'; expected a number"),
    (("optim", "lr"), 0, "train.optim.lr", "found 0; expected more than 0"),
    (("optim", "lr"), float("inf"), "train.optim.lr", "found inf; expected a number"),
    (("dtype",), "fp13", "train.dtype", "found 'fp13'; expected one of bf16, fp16, fp32"),
    (("seed",), True, "train.seed", "found true; expected a whole number"),
    (("model", "head_dim"), 31, "train.model.head_dim", "found 31; expected an even number"),
    (("model",), 7, "train.model", "found 7; expected a mapping"),
    (("model", "dims"), 7, "train.model.dims", "unknown key 'dims'; did you mean dim?"),
    (("model", "groups"), 3, "train.model.heads", "must be a multiple of model.groups"),
    (("attention", "d"), 5, "train.attention.l", "attention.d must divide attention.l"),
    (("model", "seq_len"), 16, "train.model.seq_len", "a branch without blocks learns nothing"),
    (("optim", "warmup_steps"), 401, "train.optim.decay_steps", "at least optim.warmup_steps"),
    (("batch", "global_seqs"), 3, "train.batch.global_seqs", "shared evenly by ranks"),
    (("parallel",), "single", "world_size", "parallel single means one rank"),
    (("model", "dim"), 128, "train.params", "within 2 %, which is 1230792"),
    (("model", "gradient_checkpointing"), 1, "train.model.gradient_checkpointing", "found 1"),
]


@pytest.mark.parametrize(("path", "value", "where", "said"), TOLD, ids=[row[2] for row in TOLD])
def test_a_violation_says_what_was_found_and_what_was_meant(
    path: tuple[str, ...], value: Any, where: str, said: str
) -> None:
    train = deepcopy(DEMO)
    inner = train if len(path) == 1 else train[path[0]]
    inner[path[-1]] = value
    rows = {".".join(row.path): row.message for row in NSA.violations(train, {}, 2)}
    assert said in rows[where]


@pytest.mark.parametrize(
    ("env", "where", "said"),
    [
        ({"NSA_BOGUS": "1"}, "env.NSA_BOGUS", "unknown key"),
        ({"NSA_TB_DISABEL": "1"}, "env.NSA_TB_DISABEL", "did you mean NSA_TB_DISABLE?"),
        ({"NSA_TB_DISABLE": "yes"}, "env.NSA_TB_DISABLE", "expected one of 0, 1"),
        ({"NSA_DDP_BUCKET_MB": "-1"}, "env.NSA_DDP_BUCKET_MB", "expected int >= 0"),
        ({"NSA_LR": "0.5"}, "env.NSA_LR", "disagrees with optim.lr"),
        ({"NSA_LR": "1e-3"}, None, ""),
        ({"NSA_ACCUM": "2"}, "env.NSA_ACCUM", "disagrees with batch.accumulate"),
        ({"CONFIG": "m7c_125m"}, "env.CONFIG", "disagrees with train.config"),
        ({"CONFIG": "demo", "NCCL_ALGO": "Ring"}, None, ""),
        ({"NSA_SDPA_NO_FLASH": "1", "NSA_SDPA_FLASH_ONLY": "1"}, "env", "exclude each other"),
    ],
)
def test_the_environment_is_checked_beside_the_configuration(
    env: dict[str, str], where: str | None, said: str
) -> None:
    rows = {".".join(row.path): row.message for row in NSA.violations(DEMO, env, 2)}
    assert (rows == {}) if where is None else (said in rows[where])


def test_a_section_that_may_be_left_out_has_a_default_of_its_own() -> None:
    engine = NSA.section_default(("engine",))
    assert engine is not None
    assert not list(NSA.violations({**DEMO, "engine": engine}, {}, 2))
    engine["compile"] = "changed"
    assert NSA.section_default(("engine",)) != engine
    assert NSA.section_default(("model",)) is None
    assert NSA.section_default(("engine", "compile")) is None
    assert json.loads(COPY.read_text())["title"] == "nsa.train"
