"""Within a compiler attention is one operator of its graph, and computes what it does outside."""

import pytest
import torch

from nsa.attention import NativeSparseAttention, counters, nsa_attention, nsa_attention_varlen
from nsa.attention.network import Block
from nsa.attention.operator import attend

# PyTorch's compiler warns about itself.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch.compiler.reset()


def _inputs(make_inputs, small, S, **options):
    """As the operator takes them: compressed keys and values instead of those of each token."""
    inputs = make_inputs(S, **options)
    C = max(0, (S - small["l"]) // small["d"] + 1)
    for name in ("k_cmp", "v_cmp"):
        inputs[name] = inputs[name].detach()[:, :C].clone().requires_grad_()
    return list(inputs.values())


@pytest.mark.parametrize("S", [5, 40])
def test_pytorch_finds_nothing_wrong_with_the_operator(S, small, make_inputs):
    inputs = _inputs(make_inputs, small, S, B=1, dtype=torch.float32)
    options = {**small, "scale": 0.3, "want_ids": True, "backend": "torch"}
    found = torch.library.opcheck(attend, tuple(inputs), options)
    assert set(found.values()) == {"SUCCESS"}


def test_a_whole_block_is_one_graph_with_the_same_values_and_gradients(small):
    torch.manual_seed(0)
    layer = NativeSparseAttention(24, 4, 2, 8, **small)
    block = Block(layer, 24, 40, 1e-5)
    x = torch.randn(2, 40, 24, requires_grad=True)
    leaves = [x, *block.parameters()]
    plain = block(x)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(compiled, plain, rtol=1e-6, atol=1e-6)
    wanted = torch.autograd.grad(plain.sin().sum(), leaves)
    for one, other in zip(torch.autograd.grad(compiled.sin().sum(), leaves), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_lengths_that_change_are_served_by_one_graph(small, make_inputs):
    graphs = []

    def keep(graph, _inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(
        lambda *tensors: nsa_attention(*tensors, return_selection=True, **small),
        fullgraph=True,
        backend=keep,
        dynamic=True,
    )
    for S in (70, 90, 131):
        inputs = make_inputs(S)
        out, ids = compiled(*inputs.values())
        wanted, wanted_ids = nsa_attention(**inputs, return_selection=True, **small)
        torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-13)
        assert torch.equal(ids, wanted_ids)
    assert len(graphs) == 1
    assert "nsa_attention.attend" in graphs[0].code


def test_within_a_graph_calls_are_counted_and_scores_stay_exact(small, make_inputs):
    inputs = make_inputs(100, dtype=torch.float32)
    compiled = torch.compile(
        lambda *x: nsa_attention(*x, **small), fullgraph=True, backend="aot_eager"
    )
    wanted = nsa_attention(**inputs, **small)
    counters.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            assert torch.equal(compiled(*inputs.values()), wanted)
    assert [row.calls for row in counters.snapshot() if row.operation == "attention"] == [3]


def test_packed_documents_are_left_out_of_the_graph(small, make_inputs):
    inputs = {name: x.detach() for name, x in make_inputs(60, B=1).items()}
    doc_ids = torch.tensor([[0] * 25 + [1] * 35])
    compiled = torch.compile(
        lambda *x: 2 * nsa_attention(*x, doc_ids=doc_ids, **small), backend="aot_eager"
    )
    wanted = 2 * nsa_attention(**inputs, doc_ids=doc_ids, **small)
    assert torch.equal(compiled(*inputs.values()), wanted)
    flat = [x[0] for x in inputs.values()]
    edges = torch.tensor([0, 25, 60], dtype=torch.int32)
    varlen = torch.compile(
        lambda *x: 2 * nsa_attention_varlen(*x, edges, 35, **small), backend="aot_eager"
    )
    assert torch.equal(varlen(*flat), wanted[0])
