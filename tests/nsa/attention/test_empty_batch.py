"""A batch of no sequences: nothing to attend to, and still shapes, dtypes and gradients.

A rank whose share of a batch is empty calls its layers like the others, and averages with them.
"""

from __future__ import annotations

import pytest
import torch

from nsa.attention import nsa_attention, nsa_attention_varlen

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
