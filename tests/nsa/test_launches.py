"""What a step costs a GPU beside its arithmetic, counted on a CPU: operations, and waits for it.

A wait is a number that Python asks a tensor for. What is counted here does not depend on sizes.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa.sections import Stopwatch, between_s

ENGINE = {"fused_adamw": True, "compile": False, "keep_checkpoints": 0, "profile_steps": 0}
_ASKING = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often tensors were asked for their numbers, by method."""
    counts: Counter[str] = Counter()
    for name in _ASKING:
        real = getattr(torch.Tensor, name)

        def counted(self: Any, *args: Any, real: Any = real, name: str = name, **more: Any) -> Any:
            counts[name] += 1
            return real(self, *args, **more)

        monkeypatch.setattr(torch.Tensor, name, counted)
    return counts


def _dense(tiny: dict[str, Any], **more: Any) -> dict[str, Any]:
    attention = {**tiny["attention"], "kind": "dense"}
    return {"attention": attention, "engine": ENGINE, "steps": 3, **more}


def _sparse(tiny: dict[str, Any], **more: Any) -> dict[str, Any]:
    """By the plain equations, which ask for nothing: what is counted is what lies around them."""
    attention = {**tiny["attention"], "kind": "nsa", "backend": "reference"}
    return {"attention": attention, "engine": ENGINE, "steps": 3, **more}


@pytest.mark.parametrize("kind", [_dense, _sparse])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_asks_its_device_for_numbers_once(
    make_order: Callable[..., Path],
    helpers: Any,
    tiny: dict[str, Any],
    asked: Counter[str],
    kind: Callable[..., dict[str, Any]],
    dtype: str,
    parts: int,
) -> None:
    batch = {"global_seqs": 4, "accumulate": parts}
    trainer = helpers.build_trainer(make_order(train=kind(tiny, dtype=dtype, batch=batch)))
    real, seen = trainer._train_step, []

    def step() -> None:
        asked.clear()
        real()
        seen.append(dict(asked))

    trainer._train_step = step
    trainer.run()
    looked_at = int(kind is _sparse)  # the selection of every tenth step, from the first
    assert seen == [{"tolist": 1 + looked_at}, {"tolist": 1}, {"tolist": 1}]


def test_gates_come_in_the_same_transfer(
    make_order: Callable[..., Path], helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = helpers.build_trainer(make_order(train={"engine": ENGINE, "steps": 2}))
    reads: list[int] = []
    trainer._boot()
    real = trainer.rig.ranks.add_up_and_read

    def read(shared: torch.Tensor, own: torch.Tensor) -> Any:
        reads.append(own.numel())
        return real(shared, own)

    monkeypatch.setattr(trainer.rig.ranks, "add_up_and_read", read)
    trainer._open_data()
    trainer._train_step()
    trainer.at_end.close()
    trainer.stacks.close()
    trainer.heart.close()
    # Norm, skipped, and entropy and share of two layers.
    assert reads == [2 + 2 * 2]


def test_moments_on_a_cpu_are_its_clock() -> None:
    watch = Stopwatch(torch.device("cpu"))
    assert 0 <= between_s(watch.now(), watch.now()) < 1
