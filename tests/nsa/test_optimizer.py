"""Gradients whose norm is not finite move nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa.config import OptimConfig
from nsa.optimizer import LossScale, Update, apply_gradients, build_optimizer
from nsa.settings import load_settings

CPU = torch.device("cpu")
OPTIM = OptimConfig(
    lr=0.1,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    weight_decay=0.1,
    clip=1.0,
    warmup_steps=0,
    decay_steps=10,
    min_lr_ratio=0.1,
)


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, gradient: float) -> Update:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    scale = LossScale("bf16", CPU, load_settings({}))
    return apply_gradients(model, optimizer, scale, rate=0.1, clip=1.0, on_collective=lambda: None)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("gradient", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_neither_weights_nor_moments_move(fused: bool, gradient: float) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = build_optimizer(model, OPTIM, CPU, fused=fused)
    assert _step(model, optimizer, 0.5).skipped.item() == 0
    before = [parameter.detach().clone() for parameter in model.parameters()]
    moments = [
        {name: value.clone() for name, value in state.items()} for state in optimizer.state.values()
    ]
    update = _step(model, optimizer, gradient)
    assert update.skipped.item() == 1
    assert not update.grad_norm.isfinite()
    for was, now in zip(before, model.parameters(), strict=True):
        assert torch.equal(was, now)
        assert now.grad is None
    for was_state, state in zip(moments, optimizer.state.values(), strict=True):
        assert all(torch.equal(was_state[name], state[name]) for name in was_state)
    # What comes after is as if the bad one had never been.
    assert _step(model, optimizer, 0.5).skipped.item() == 0
    assert {state["step"].item() for state in optimizer.state.values()} == {2}
    assert not torch.equal(before[0], next(model.parameters()))


@pytest.mark.parametrize("parallel", ["single", "fsdp"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_run_goes_on_after_one_bad_gradient_and_counts_it(
    make_order: Callable[..., Path], helpers: Any, parallel: str, dtype: str, fused: bool
) -> None:
    engine = {"fused_adamw": fused, "compile": False, "keep_checkpoints": 0, "profile_steps": 0}
    order = make_order(
        train={"dtype": dtype, "parallel": parallel, "engine": engine, "steps": 5},
        checkpoint={"every_steps": 1},
    )
    trainer = helpers.build_trainer(order)
    real = trainer._apply

    def poisoned(rate: float) -> Update:
        if trainer.step == 3:
            gradient: Any = trainer.rig.model.norm.weight.grad
            gradient.mul_(float("inf"))
        update: Update = real(rate)
        return update

    trainer._apply = poisoned
    trainer.run()
    lines = helpers.read_lines(order.parent)
    told = [line for line in lines if line["msg"] == "progress"]
    assert [line.get("skipped") for line in told] == [None, None, True, None, None]
    assert [line.get("skipped_steps") for line in told] == [None, None, 1, 1, 1]
    assert told[2]["grad_norm"] in ("Infinity", "NaN")
    assert all(isinstance(line["loss"], float) for line in told)
    assert len([line for line in lines if line["msg"] == "checkpoint"]) == 5
    assert all(parameter.isfinite().all() for parameter in trainer.rig.model.state_dict().values())
