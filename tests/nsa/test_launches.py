"""What a step costs a GPU beside its arithmetic, counted on a CPU: waits for it.

A wait is a number that Python asks a tensor for. What is counted here does not depend on sizes.
"""

from collections import Counter

import pytest
import torch

from tests.nsa.runs import ENGINE, build_trainer

FUSED = ENGINE | {"fused_adamw": True}
_ASKING = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")


@pytest.fixture
def asked(monkeypatch):
    """How often tensors were asked for their numbers, by method."""
    counts = Counter()
    for name in _ASKING:
        real = getattr(torch.Tensor, name)

        def counted(self, *args, real=real, name=name, **more):
            counts[name] += 1
            return real(self, *args, **more)

        monkeypatch.setattr(torch.Tensor, name, counted)
    return counts


@pytest.mark.parametrize(
    ("attention", "dtype", "parts"),
    [
        ({"kind": "dense"}, "fp32", 1),
        ({"kind": "dense"}, "fp16", 2),
        # By the plain equations, which ask for nothing: what is counted is what lies around them.
        ({"backend": "reference"}, "bf16", 1),
        ({"backend": "reference"}, "fp16", 2),
    ],
)
def test_a_step_asks_its_device_for_numbers_once(make_order, asked, attention, dtype, parts):
    train = {"attention": attention, "dtype": dtype, "batch": {"accumulate": parts}}
    trainer = build_trainer(make_order(train={**train, "engine": FUSED, "steps": 2}))
    real, seen = trainer._train_step, []

    def step():
        asked.clear()
        real()
        seen.append(dict(asked))

    trainer._train_step = step
    trainer.run()
    looked_at = int("backend" in attention)  # the selection of every tenth step, from the first
    assert seen == [{"tolist": 1 + looked_at}, {"tolist": 1}]
