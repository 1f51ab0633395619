"""bf16 on a CPU: native products where there are any, fp32 scores, and nothing left switched."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from nsa.attention import NsaCache, Sizes, decode, precision
from nsa.attention.compressed import compressed_logits
from nsa.attention.precision import native_bf16, products

CPU = torch.device("cpu")
needs_bf16 = pytest.mark.skipif(
    not native_bf16(torch.bfloat16, CPU), reason="this CPU or PyTorch has no bf16 products"
)


def test_only_bf16_on_a_cpu_that_has_it_uses_native_products(monkeypatch):
    monkeypatch.setattr(precision, "_cpu_has_bf16", lambda: True)
    assert native_bf16(torch.bfloat16, CPU)
    assert not native_bf16(torch.float32, CPU)
    assert not native_bf16(torch.float16, CPU)
    assert not native_bf16(torch.bfloat16, torch.device("cuda"))
    monkeypatch.setattr(precision, "_cpu_has_bf16", lambda: False)
    assert not native_bf16(torch.bfloat16, CPU)


@needs_bf16
def test_the_switch_is_put_back_even_after_an_error():
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    with products(CPU, "bf16"):
        assert matmul.fp32_precision == "bf16"
    assert matmul.fp32_precision == before
    with pytest.raises(RuntimeError, match="multiplied"), products(CPU, "bf16"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert matmul.fp32_precision == before


@needs_bf16
def test_products_of_bf16_numbers_are_summed_in_fp32():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator).bfloat16().float() for _ in range(2))
    with products(CPU, "bf16"):
        product = a @ b
    torch.testing.assert_close(product.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-4)


@needs_bf16
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_what_the_process_has_set_for_its_products_changes_nothing(backend, make_inputs, run):
    sizes = {"l": 32, "d": 16, "l_sel": 64, "n_sel": 4, "w": 100}
    inputs = make_inputs(400, B=1, H=6, G=1, D=32, dtype=torch.float32)
    out, sel, grads = run(inputs, backend=backend, **sizes)
    square = torch.linspace(0, 1, 256 * 256).view(256, 256)
    exact = square @ square
    with products(CPU, "bf16"):
        rounded = square @ square
        other, other_sel, other_grads = run(inputs, backend=backend, **sizes)
    assert not torch.equal(rounded, exact)
    assert torch.equal(out, other)
    assert torch.equal(sel, other_sel)
    if backend == "reference":  # its gradients are autograd's
        return
    for name in inputs:
        assert torch.equal(grads[name], other_grads[name]), name


@needs_bf16
def test_a_token_is_not_rounded_either_by_what_the_process_has_set(monkeypatch):
    module = import_module("nsa.attention.decode")
    seen = []

    def logits(*read):
        seen.append(torch.backends.mkldnn.matmul.fp32_precision)
        return compressed_logits(*read)

    monkeypatch.setattr(module, "compressed_logits", logits)
    monkeypatch.setattr(module, "_kernel", lambda: "operations are asked for")
    cache = NsaCache(B=1, G=1, D=16, capacity=3, sizes=Sizes(l=2, d=1, l_sel=2, n_sel=3, w=2))
    cache.append(*torch.randn(6, 1, 3, 1, 16))
    with products(CPU, "bf16"):
        decode(torch.randn(1, 1, 2, 16), torch.rand(1, 1, 2, 3), cache)
    assert seen == ["ieee"]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("q_factor", [1.0, 30.0])
def test_bf16_agrees_with_fp32_on_the_same_numbers_either_way(
    native, q_factor, make_inputs, run, monkeypatch
):
    if native and not native_bf16(torch.bfloat16, CPU):
        pytest.skip("this CPU or PyTorch has no bf16 products")
    monkeypatch.setattr(precision, "_cpu_has_bf16", lambda: native)
    sizes = {"l": 32, "d": 16, "l_sel": 64, "n_sel": 4, "w": 100}
    inputs = make_inputs(400, B=1, H=6, G=1, D=32, dtype=torch.bfloat16, q_factor=q_factor)
    out, sel, grads = run(inputs, backend="torch", **sizes)
    single = {name: x.float() for name, x in inputs.items()}
    expected, ids, wanted = run(single, backend="reference", blocks_in=torch.bfloat16, **sizes)
    assert torch.equal(sel, ids)
    assert (out - expected).norm() < 5e-3 * expected.norm()
    for name in inputs:
        assert (grads[name] - wanted[name]).norm() < 1e-2 * wanted[name].norm(), name
