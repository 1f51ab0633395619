"""Packed documents: each is attended as if it were alone."""

from __future__ import annotations

import itertools

import pytest
import torch

from nsa.attention import MlpCompression, nsa_attention, nsa_attention_varlen
from nsa.attention.packing import attend_sequences, document_lengths

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
    with pytest.raises(ValueError, match="excludes"):
        nsa_attention(**inputs, doc_ids=doc_ids, compressed=blocks, **small)
    with pytest.raises(ValueError, match="doc_ids"):
        nsa_attention(**inputs, doc_ids=doc_ids[:, :-1], **small)


def _laid_end_to_end(make_inputs, lengths, **options):
    inputs = make_inputs(sum(lengths), B=1, **options)
    edges = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return {n: x.detach()[0].requires_grad_() for n, x in inputs.items()}, edges


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("lengths", [(70, 1, 0, 33, 33, 13), (150,)], ids=str)
def test_sequences_laid_end_to_end_are_each_as_if_alone(backend, lengths, small, make_inputs):
    inputs, edges = _laid_end_to_end(make_inputs, lengths)
    options = {"backend": backend, "return_selection": True, **small}
    out, sel = nsa_attention_varlen(
        **inputs, cu_seqlens=edges, max_seqlen=max(lengths), scale=0.7, **options
    )
    grads = torch.autograd.grad(out.sin().sum(), list(inputs.values()))
    for begin, end in itertools.pairwise(edges.tolist()):
        if begin == end:
            continue
        alone = {n: x.detach()[None, begin:end].requires_grad_() for n, x in inputs.items()}
        wanted, ids = nsa_attention(**alone, scale=0.7, **options)
        torch.testing.assert_close(out[None, begin:end], wanted, rtol=1e-12, atol=1e-13)
        assert torch.equal(sel[None, begin:end], ids)
        wanted_grads = torch.autograd.grad(
            wanted.sin().sum(), list(alone.values()), materialize_grads=True, allow_unused=True
        )
        for got, expected in zip(grads, wanted_grads, strict=True):
            torch.testing.assert_close(got[None, begin:end], expected, rtol=1e-10, atol=1e-12)


def test_the_number_of_calls_does_not_grow_with_the_number_of_sequences(small, make_inputs):
    calls = []
    lengths = [1 + (7 * n) % 200 for n in range(300)]

    def attend(x):
        calls.append(x.shape)
        return (x.cumsum(1),)

    x = torch.randn(sum(lengths), 3, dtype=torch.float64)
    (got,) = attend_sequences(attend, [x], lengths)
    wanted = torch.cat([part.cumsum(0) for part in x.split(lengths)])
    assert torch.equal(got, wanted)
    assert len(calls) <= 7
    assert sum(shape[0] * shape[1] for shape in calls) < 1.5 * len(x)


def test_a_compression_is_applied_to_each_document_by_itself(small, make_inputs):
    torch.manual_seed(0)
    phi = MlpCompression(8, small["l"], small["d"]).double()
    inputs = make_inputs(150)
    out = nsa_attention(**inputs, doc_ids=_doc_ids(), compression=phi, **small)
    for begin, end in ((0, 70), (71, 104), (104, 137)):
        place = (slice(0, 1), slice(begin, end))
        alone = {n: x[place] for n, x in inputs.items()}
        blocks = phi(alone["k_cmp"], alone["v_cmp"])
        torch.testing.assert_close(
            out[place], nsa_attention(**alone, compressed=blocks, **small), rtol=1e-12, atol=1e-13
        )
    out.square().sum().backward()
    for name, parameter in phi.named_parameters():
        # The same vector added to every key moves no softmax.
        assert parameter.grad.abs().max() > 1e-6 or name == "keys.w_out.bias", name


@pytest.mark.parametrize(
    ("edges", "longest", "word"),
    [
        ([0, 5, 19], 20, "20 tokens"),
        ([1, 20], 20, "from 0"),
        ([0, 15, 10, 20], 20, "rise"),
        ([0, 5, 20], 10, "max_seqlen"),
        ([[0, 20]], 20, "integers"),
    ],
)
def test_edges_that_do_not_fit_are_refused(edges, longest, word, small, make_inputs):
    inputs, _ = _laid_end_to_end(make_inputs, (20,))
    with pytest.raises(ValueError, match=word):
        nsa_attention_varlen(**inputs, cu_seqlens=torch.tensor(edges), max_seqlen=longest, **small)


def test_no_sequence_at_all_is_an_empty_result(small, make_inputs):
    inputs, _ = _laid_end_to_end(make_inputs, (20,))
    none = {n: x[:0] for n, x in inputs.items()}
    out, sel = nsa_attention_varlen(
        **none, cu_seqlens=torch.tensor([0, 0]), max_seqlen=0, return_selection=True, **small
    )
    assert out.shape == (0, 4, 8)
    assert sel.shape == (0, 2, small["n_sel"])
