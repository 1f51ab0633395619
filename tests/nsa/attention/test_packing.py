"""Packed documents and sequences laid end to end: each is attended as if it were alone."""

import itertools

import pytest
import torch

from nsa.attention import nsa_attention, nsa_attention_varlen
from nsa.attention.packing import attend_sequences, document_lengths

BACKENDS = pytest.mark.parametrize("backend", ["reference", "torch"])
LENGTHS = (70, 1, 33, 33, 13)
DOC_IDS = torch.tensor([[n for n, length in enumerate(LENGTHS) for _ in range(length)], [7] * 150])


def _check_alone(inputs, parts, out, ids, grads, backend, sizes):
    """Values, ids and gradients of the places `parts` are those of each alone."""
    for place in parts:
        alone = {n: x.detach()[place].requires_grad_() for n, x in inputs.items()}
        wanted, wanted_ids = nsa_attention(**alone, backend=backend, return_selection=True, **sizes)
        torch.testing.assert_close(out[place], wanted, rtol=1e-12, atol=1e-13)
        assert torch.equal(ids[place], wanted_ids)
        wanted_grads = torch.autograd.grad(
            wanted.sin().sum(), list(alone.values()), materialize_grads=True, allow_unused=True
        )
        for got, expected in zip(grads, wanted_grads, strict=True):
            torch.testing.assert_close(got[place], expected, rtol=1e-10, atol=1e-12)


@BACKENDS
def test_each_document_gives_what_it_gives_alone(backend, small, make_inputs):
    inputs = make_inputs(150)
    options = {"backend": backend, "return_selection": True, **small}
    out, ids = nsa_attention(**inputs, doc_ids=DOC_IDS, **options)
    grads = torch.autograd.grad(out.sin().sum(), list(inputs.values()))
    edges = itertools.pairwise(itertools.accumulate(LENGTHS, initial=0))
    parts = [(slice(0, 1), slice(*edge)) for edge in edges] + [(slice(1, 2), slice(None))]
    _check_alone(inputs, parts, out, ids, grads, backend, small)
    moved = {n: x.detach().clone() for n, x in inputs.items()}
    moved["k_sel"][0, :70] += 5.0
    moved["v_win"][0, 104:] *= -3.0
    other = nsa_attention(**moved, doc_ids=DOC_IDS, backend=backend, **small)
    assert torch.equal(out[0, 70:104], other[0, 70:104])
    assert not torch.equal(out[0, :70], other[0, :70])


@BACKENDS
@pytest.mark.parametrize("lengths", [(70, 1, 0, 33, 33, 13), (150,)], ids=str)
def test_sequences_laid_end_to_end_are_each_as_if_alone(backend, lengths, small, make_inputs):
    inputs = make_inputs(sum(lengths), B=1)
    flat = {n: x[0] for n, x in inputs.items()}
    edges = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    sizes = {**small, "scale": 0.7}
    out, ids = nsa_attention_varlen(
        **flat, cu_seqlens=edges, max_seqlen=max(lengths), backend=backend, return_selection=True,
        **sizes,
    )  # fmt: skip
    grads = torch.autograd.grad(out.sin().sum(), list(inputs.values()))
    pairs = itertools.pairwise(edges.tolist())
    parts = [(slice(0, 1), slice(begin, end)) for begin, end in pairs if begin < end]
    _check_alone(inputs, parts, out[None], ids[None], grads, backend, sizes)


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


def test_the_number_of_calls_does_not_grow_with_the_number_of_sequences():
    calls = []
    lengths = [1 + (7 * n) % 200 for n in range(300)]

    def attend(x):
        calls.append(x.shape)
        return (x.cumsum(1),)

    x = torch.randn(sum(lengths), 3, dtype=torch.float64)
    (got,) = attend_sequences(attend, [x], lengths)
    assert torch.equal(got, torch.cat([part.cumsum(0) for part in x.split(lengths)]))
    assert len(calls) <= 7
    assert sum(shape[0] * shape[1] for shape in calls) < 1.5 * len(x)


@pytest.mark.parametrize(
    ("edges", "longest", "word"),
    [
        ([0, 5, 19], 20, "20 tokens"), ([1, 20], 20, "from 0"), ([0, 15, 10, 20], 20, "rise"),
        ([0, 5, 20], 10, "max_seqlen"), ([[0, 20]], 20, "integers"),
    ],
)  # fmt: skip
def test_edges_that_do_not_fit_are_refused(edges, longest, word, small, make_inputs):
    flat = {n: x[0] for n, x in make_inputs(20, B=1).items()}
    with pytest.raises(ValueError, match=word):
        nsa_attention_varlen(**flat, cu_seqlens=torch.tensor(edges), max_seqlen=longest, **small)
