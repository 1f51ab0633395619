"""fp32 products stay exact, whatever the process has set for its linear layers."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from nsa.attention import NsaCache, Sizes, decode
from nsa.attention.compressed import compressed_logits
from nsa.attention.precision import exact_products

CPU = torch.device("cpu")


@pytest.fixture
def rounded():
    """A process that rounds its products to bf16."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if matmul is None:
        pytest.skip("this PyTorch has no such switch")
    matmul.fp32_precision = "bf16"
    yield matmul
    matmul.fp32_precision = "none"


def test_the_switch_is_put_back_even_after_an_error(rounded):
    with exact_products(CPU):
        assert rounded.fp32_precision == "ieee"
    assert rounded.fp32_precision == "bf16"
    with pytest.raises(RuntimeError, match="multiplied"), exact_products(CPU):
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert rounded.fp32_precision == "bf16"


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_what_the_process_has_set_for_its_products_changes_nothing(
    backend, small, make_inputs, run, request
):
    inputs = make_inputs(120, B=1, H=6, G=1, D=20, dtype=torch.float32)
    out, sel, grads = run(inputs, backend=backend, **small)
    request.getfixturevalue("rounded")
    other, other_sel, other_grads = run(inputs, backend=backend, **small)
    assert torch.equal(out, other)
    assert torch.equal(sel, other_sel)
    if backend == "torch":  # gradients of the reference are autograd's
        assert all(torch.equal(grads[name], other_grads[name]) for name in inputs)


def test_a_token_is_not_rounded_either(rounded, monkeypatch):
    module = import_module("nsa.attention.decode")
    seen = []

    def logits(*read):
        seen.append(rounded.fp32_precision)
        return compressed_logits(*read)

    monkeypatch.setattr(module, "compressed_logits", logits)
    monkeypatch.setattr(module, "_kernel", lambda: "operations are asked for")
    cache = NsaCache(B=1, G=1, D=16, capacity=3, sizes=Sizes(l=2, d=1, l_sel=2, n_sel=3, w=2))
    cache.append(*torch.randn(6, 1, 3, 1, 16))
    decode(torch.randn(1, 1, 2, 16), torch.rand(1, 1, 2, 3), cache)
    assert seen == ["ieee"]


@pytest.mark.parametrize("D", [20, 32], ids=["operations", "kernel in C"])
@pytest.mark.parametrize("q_factor", [1.0, 30.0])
def test_bf16_agrees_with_fp32_on_the_same_numbers(D, q_factor, small, make_inputs, run):
    inputs = make_inputs(200, B=1, H=6, G=1, D=D, dtype=torch.bfloat16, q_factor=q_factor)
    out, sel, grads = run(inputs, backend="torch", **small)
    single = {name: x.float() for name, x in inputs.items()}
    expected, ids, wanted = run(single, backend="reference", blocks_in=torch.bfloat16, **small)
    assert torch.equal(sel, ids)
    assert (out - expected).norm() < 5e-3 * expected.norm()
    for name in inputs:
        assert (grads[name] - wanted[name]).norm() < 1e-2 * wanted[name].norm(), name
