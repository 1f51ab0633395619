"""If the judge lets a rerun resume from a checkpoint, `nsa` does; else it would end with 4."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gonogo.judge.follow_up.decide import keeps_checkpoints  # noqa: E402 - torch may be missing
from gonogo.planning.source import bundled_plan, parse_plan  # noqa: E402
from nsa.checkpoint import differences  # noqa: E402

BEFORE: dict[str, Any] = {
    "model": {"seq_len": 64, "gradient_checkpointing": False},
    "attention": {"backend": "auto", "n_sel": 3},
    "packing": None,
    "optim": {"lr": 0.1},
    "batch": {"global_seqs": 4, "accumulate": 1},
    "engine": {"compile": False},
    "data": "fineweb_edu",
    "loader": {"revision": "0" * 40, "batch_limit_s": 60.0},
    "eval": {"every_steps": 10},
    "steps": 100,
    "seed": 1,
    "dtype": "fp32",
    "parallel": "ddp",
}
CHANGES: list[dict[str, Any]] = [
    {"model": {"seq_len": 128}},
    {"model": {"gradient_checkpointing": True}},
    {"attention": {"n_sel": 4}},
    {"packing": {"kind": "documents"}},
    {"optim": {"lr": 0.2}},
    {"batch": {"global_seqs": 2}},
    {"batch": {"accumulate": 2}},
    {"engine": {"compile": True}},
    {"attention": {"backend": "torch"}},
    {"loader": {"revision": "1" * 40}},
    {"loader": {"batch_limit_s": 90.0}},
    {"eval": {"every_steps": 5}},
    {"steps": 200},
    {"data": "synthetic"},
    {"seed": 2},
    {"dtype": "bf16"},
    {"parallel": "fsdp"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_what_the_judge_lets_go_on_the_trainer_goes_on_with(change: dict[str, Any]) -> None:
    after = dict(BEFORE)
    for name, value in change.items():
        after[name] = {**BEFORE[name], **value} if isinstance(BEFORE[name], dict) else value
    other_batch = after["batch"]["global_seqs"] != BEFORE["batch"]["global_seqs"]
    refused = bool(list(differences(BEFORE, after))) or other_batch
    plan = parse_plan(bundled_plan("demo"))
    assert keeps_checkpoints(plan, {"train": change}) is not refused
