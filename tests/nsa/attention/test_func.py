"""`torch.func` over the plain equations and a layer of them: grad, jvp and vmap."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, jvp, vmap

from nsa.attention import NativeSparseAttention, nsa_attention
from nsa.attention.rotary import rotate, rotation_table


@pytest.fixture
def layer(small):
    torch.manual_seed(0)
    return NativeSparseAttention(16, 4, 2, 4, backend="reference", **small).double()


def test_gradients_of_single_examples_sum_to_that_of_the_batch(layer):
    x = torch.randn(3, 90, 16, dtype=torch.float64)
    weights = dict(layer.named_parameters())

    def loss(weights, x_SE):
        return functional_call(layer, weights, (x_SE[None],)).square().sum()

    each = vmap(grad(loss), (None, 0))(weights, x)
    layer(x).square().sum().backward()
    for name, weight in layer.named_parameters():
        torch.testing.assert_close(each[name].sum(0), weight.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyTorch's own
def test_a_directional_derivative_is_the_difference_that_it_stands_for(layer):
    x, direction = torch.randn(2, 1, 60, 16, dtype=torch.float64)
    out, change = jvp(layer, (x,), (direction,))
    assert torch.equal(out, layer(x))
    step = 1e-6
    difference = (layer(x + step * direction) - layer(x - step * direction)) / (2 * step)
    torch.testing.assert_close(change, difference, rtol=1e-6, atol=1e-8)


def test_the_operation_is_mapped_over_a_new_dimension(small, make_inputs):
    inputs = make_inputs(100)
    stacked = [torch.stack((x, x.flip(1))).detach() for x in inputs.values()]

    def attend(*tensors):
        return nsa_attention(*tensors, backend="reference", return_selection=True, **small)

    out, ids = vmap(attend)(*stacked)
    for number in range(2):
        wanted, wanted_ids = attend(*(x[number] for x in stacked))
        torch.testing.assert_close(out[number], wanted, rtol=1e-12, atol=1e-13)
        assert torch.equal(ids[number], wanted_ids)


@pytest.mark.parametrize("in_dims", [(0, None), (2, None), (None, 0), (1, 3)], ids=str)
def test_heads_and_tables_are_mapped_over_any_dimension(in_dims):
    x = torch.randn(5, 2, 7, 3, 8, dtype=torch.float64)
    tables = torch.stack([rotation_table(7, 8, base, dtype=x.dtype) for base in range(2, 7)])

    def turned(x_BSND, table):
        return grad(lambda heads: (rotate(heads, table) ** 3).sum())(x_BSND)

    given = [
        whole[0] if dim is None else whole.movedim(0, dim)
        for whole, dim in zip((x, tables), in_dims, strict=True)
    ]
    got = vmap(turned, in_dims)(*given)
    for number in range(5):
        one = (w[0 if d is None else number] for w, d in zip((x, tables), in_dims, strict=True))
        torch.testing.assert_close(got[number], turned(*one), rtol=1e-12, atol=1e-13)
