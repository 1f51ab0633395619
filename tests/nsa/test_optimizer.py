"""Gradients whose norm is not finite move nothing."""

import pytest
import torch

from nsa.config import build_config
from nsa.optimizer import LossScale, apply_gradients, build_optimizer
from nsa.settings import load_settings
from tests.nsa.runs import ENGINE, TINY, build_trainer, of, read_lines

CPU = torch.device("cpu")
OPTIM = build_config(TINY).optim


def _step(model, optimizer, gradient):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    scale = LossScale("bf16", CPU, load_settings({}))
    return apply_gradients(model, optimizer, scale, rate=0.1, clip=1.0, on_collective=lambda: None)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("gradient", [float("nan"), -float("inf"), 1e30])
def test_neither_weights_nor_moments_move(fused, gradient):
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


@pytest.mark.parametrize(
    ("parallel", "dtype", "fused"),
    [("single", "fp32", False), ("single", "bf16", True), ("fsdp", "fp32", True)],
)
def test_a_run_goes_on_after_one_bad_gradient_and_counts_it(make_order, parallel, dtype, fused):
    engine = ENGINE | {"fused_adamw": fused}
    train = {"dtype": dtype, "parallel": parallel, "engine": engine}
    order = make_order(train=train, checkpoint={"every_steps": 1})
    trainer = build_trainer(order)
    real = trainer._apply

    def poisoned(rate):
        if trainer.step == 2:
            trainer.setup.model.norm.weight.grad.mul_(float("inf"))
        return real(rate)

    trainer._apply = poisoned
    trainer.run()
    lines = read_lines(order.parent)
    told = of(lines, "progress")
    assert [line.get("skipped") for line in told] == [None, True, None, None]
    assert [line.get("skipped_steps") for line in told] == [None, 1, 1, 1]
    assert told[1]["grad_norm"] in ("Infinity", "NaN")
    assert all(isinstance(line["loss"], float) for line in told)
    assert len(of(lines, "checkpoint")) == 4
    weights = trainer.setup.model.state_dict().values()
    assert all(parameter.isfinite().all() for parameter in weights)
