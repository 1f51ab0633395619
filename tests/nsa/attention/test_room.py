"""Nothing that the PyTorch backend makes grows with the square of the sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nsa.attention import selection, torch_backend

SIZES = {"l": 8, "d": 4, "l_sel": 8, "n_sel": 5, "w": 20}
Made = Callable[..., dict[str, Tensor]]
Ran = Callable[..., tuple[Tensor, Tensor, dict[str, Tensor]]]


@pytest.fixture(params=["in C", "by operations"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that attends over the pieces."""
    if request.param == "in C":
        assert not isinstance(torch_backend.cpu_kernel(), str)
    else:
        monkeypatch.setattr(torch_backend, "cpu_kernel", lambda: "operations are asked for")


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is in memory together."""
    monkeypatch.setattr(selection, "_SCORES_AT_ONCE", 2**12)
    monkeypatch.setattr(selection, "_MARKS_AT_ONCE", 2**13)


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("S", [5, 39, 40, 41, 400])
@pytest.mark.parametrize("B", [1, 3])
def test_parts_change_no_bit(
    S: int, B: int, request: pytest.FixtureRequest, make_inputs: Made, run: Ran
) -> None:
    inputs = make_inputs(S, B=B, D=16, dtype=torch.float32)
    for name in ("k_cmp", "v_cmp"):  # ties between blocks of equal text
        inputs[name] = inputs[name].detach().roll(1, 1)
        inputs[name][:, S // 2 :] = inputs[name][:, S // 2 : S // 2 + 1]
    out, ids, grads = run(inputs, backend="torch", **SIZES)
    request.getfixturevalue("in_parts")
    out_of_parts, ids_of_parts, grads_of_parts = run(inputs, backend="torch", **SIZES)
    assert torch.equal(ids, ids_of_parts)
    assert torch.equal(out, out_of_parts)
    for name, grad in grads.items():
        assert torch.equal(grad, grads_of_parts[name]), name


class Largest(TorchDispatchMode):
    """The most numbers in one tensor that any operation gave."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = (x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))
        self.numbers = max(self.numbers, *made, 0)
        return out


@pytest.mark.usefixtures("by", "in_parts")
def test_four_times_the_tokens_are_four_times_the_room(make_inputs: Made, run: Ran) -> None:
    found = []
    for S in (256, 1024):
        inputs = make_inputs(S, B=1, D=16, dtype=torch.float32)
        with Largest() as largest:
            run(inputs, backend="torch", **SIZES)
        found.append(largest.numbers)
    assert found[1] <= 4.1 * found[0], found
