"""Packed documents: each is attended as if it were alone."""

from __future__ import annotations

import pytest
import torch

from nsa.attention import nsa_attention
from nsa.attention.packing import document_lengths

LENGTHS = ((70, 1, 33, 33, 13), (150,))


def _doc_ids():
    rows = [[n for n, length in enumerate(item) for _ in range(length)] for item in LENGTHS]
    return torch.tensor(rows)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_each_document_gives_what_it_gives_alone(backend, small, make_inputs):
    inputs = make_inputs(150)
    doc_ids = _doc_ids()
    options = {"backend": backend, "return_selection": True, **small}
    out, sel = nsa_attention(**inputs, doc_ids=doc_ids, **options)
    grads = torch.autograd.grad(out.square().sum(), list(inputs.values()))
    for b, lengths in enumerate(LENGTHS):
        begin = 0
        for length in lengths:
            place = (slice(b, b + 1), slice(begin, begin + length))
            alone = {n: x.detach()[place].requires_grad_() for n, x in inputs.items()}
            wanted, ids = nsa_attention(**alone, **options)
            torch.testing.assert_close(out[place], wanted, rtol=1e-12, atol=1e-13)
            assert torch.equal(sel[place], ids)
            wanted_grads = torch.autograd.grad(
                wanted.square().sum(), list(alone.values()), allow_unused=True
            )
            for got, expected in zip(grads, wanted_grads, strict=True):
                expected = torch.zeros_like(got[place]) if expected is None else expected
                torch.testing.assert_close(got[place], expected, rtol=1e-10, atol=1e-12)
            begin += length


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_another_document_moves_nothing(backend, small, make_inputs):
    inputs = {n: x.detach() for n, x in make_inputs(150).items()}
    doc_ids = _doc_ids()
    out = nsa_attention(**inputs, doc_ids=doc_ids, backend=backend, **small)
    inputs["k_sel"][0, :70] += 5.0
    inputs["v_win"][0, 104:] *= -3.0
    moved = nsa_attention(**inputs, doc_ids=doc_ids, backend=backend, **small)
    assert torch.equal(out[0, 70:104], moved[0, 70:104])
    assert not torch.equal(out[0, :70], moved[0, :70])


def test_one_document_is_the_unpacked_operation(small, make_inputs):
    inputs = make_inputs(90)
    doc_ids = torch.full((2, 90), 7)
    assert torch.equal(
        nsa_attention(**inputs, doc_ids=doc_ids, **small), nsa_attention(**inputs, **small)
    )


def test_a_document_is_a_run_even_when_a_number_comes_back():
    assert document_lengths(torch.tensor([[4, 4, 9, 4], [1, 1, 1, 1]])) == [[2, 1, 1], [4]]


def test_documents_with_caller_compressed_keys_or_a_wrong_shape_are_refused(small, make_inputs):
    inputs = make_inputs(20)
    C = (20 - small["l"]) // small["d"] + 1
    blocks = (torch.zeros(2, C, 2, 8), torch.zeros(2, C, 2, 8))
    doc_ids = torch.zeros(2, 20, dtype=torch.int64)
    with pytest.raises(ValueError, match="exclude"):
        nsa_attention(**inputs, doc_ids=doc_ids, compressed=blocks, **small)
    with pytest.raises(ValueError, match="doc_ids"):
        nsa_attention(**inputs, doc_ids=doc_ids[:, :-1], **small)
