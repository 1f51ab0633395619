"""A batch of no sequences: nothing to attend to, and still shapes, dtypes and gradients.

A rank whose share of a batch is empty calls its layers like the others, and averages with them.
"""

from __future__ import annotations

import pytest
import torch

from nsa.attention import NativeSparseAttention, nsa_attention, nsa_attention_varlen

BACKENDS = pytest.mark.parametrize("backend", ["reference", "torch"])
S = 150


def _check(out, ids, inputs, small):
    shape = inputs["q"].shape
    assert (out.shape, out.dtype) == (shape, inputs["q"].dtype)
    assert (ids.shape, ids.dtype) == ((*shape[:-2], 2, small["n_sel"]), torch.int64)
    for name, grad in zip(
        inputs, torch.autograd.grad(out.sum(), list(inputs.values())), strict=True
    ):
        assert (grad.shape, grad.dtype) == (inputs[name].shape, inputs[name].dtype)


@BACKENDS
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_operation_gives_empty_tensors(backend, documents, dtype, small, make_inputs):
    inputs = make_inputs(S, B=0, D=16, dtype=dtype)
    doc_ids = torch.zeros(0, S, dtype=torch.int64) if documents else None
    options = {"backend": backend, "return_selection": True, **small}
    out, ids = nsa_attention(**inputs, doc_ids=doc_ids, **options)
    _check(out, ids, inputs, small)


@BACKENDS
def test_sequences_without_a_token_give_empty_tensors(backend, small, make_inputs):
    inputs = {n: x.detach()[0, :0].requires_grad_() for n, x in make_inputs(5, B=1).items()}
    out, ids = nsa_attention_varlen(
        **inputs, cu_seqlens=torch.tensor([0, 0, 0]), max_seqlen=0,
        backend=backend, return_selection=True, **small,
    )  # fmt: skip
    _check(out, ids, inputs, small)


def test_it_compiles(small, make_inputs):
    inputs = make_inputs(S, B=0, D=16, dtype=torch.float32)
    attend = torch.compile(nsa_attention, fullgraph=True, backend="aot_eager")
    out, ids = attend(**inputs, return_selection=True, **small)
    _check(out, ids, inputs, small)


@pytest.mark.parametrize("compression", ["mean", "mlp"])
@pytest.mark.parametrize("documents", [False, True])
def test_every_weight_of_a_layer_gets_a_gradient_of_zeros(compression, documents, small):
    layer = NativeSparseAttention(32, 4, 2, 16, compression=compression, **small)
    x = torch.zeros(0, S, 32, requires_grad=True)
    y = layer(x, doc_ids=torch.zeros(0, S, dtype=torch.int64) if documents else None)
    y.sum().backward()
    assert y.shape == x.grad.shape == x.shape
    for name, weight in layer.named_parameters():
        assert weight.grad is not None, name
        assert not weight.grad.any(), name


def test_a_cache_of_no_sequences_takes_tokens(small):
    layer = NativeSparseAttention(32, 4, 2, 16, **small)
    cache = layer.start_cache(0, S)
    with torch.no_grad():
        assert layer(torch.zeros(0, S - 1, 32), cache).shape == (0, S - 1, 32)
        assert layer(torch.zeros(0, 1, 32), cache).shape == (0, 1, 32)
    assert cache.length == S
