"""The layer: what it computes is what its parts compute, whatever way the tokens come."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nsa.attention import NativeSparseAttention, NsaCache, Sizes, nsa_attention
from nsa.attention.compression import build_compression
from nsa.attention.projection import project

COMPRESSIONS = ("mean", "mlp")
HEADS, GROUPS, D, DIM = 4, 2, 8, 24


def _layer(small, compression="mean", **options):
    torch.manual_seed(0)
    layer = NativeSparseAttention(
        DIM, HEADS, GROUPS, D, compression=compression, rope_theta=100.0, **small, **options
    )
    return layer.double()


def _tokens(S, B=2):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(B, S, DIM, generator=generator, dtype=torch.float64)


def _turned(x, positions):
    """Rotary embedding as complex numbers: dimensions m and m + D/2 are one of them."""
    frequencies = 100.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    turn = torch.polar(torch.ones(1, dtype=torch.float64), positions[:, None] * frequencies)
    turned = torch.complex(x[..., : D // 2], x[..., D // 2 :]) * turn[:, None, :]
    return torch.cat((turned.real, turned.imag), dim=-1)


def _phi(layer, which, x_BSGD, l, d):  # noqa: E741
    """φ of one block after the other, from the weights."""
    B, S, G, _ = x_BSGD.shape
    blocks = []
    for first in range(0, S - l + 1, d):
        block = x_BSGD[:, first : first + l]
        if not hasattr(layer.compression, "keys"):
            blocks.append(block.mean(1))
            continue
        mlp = getattr(layer.compression, which)
        placed = block.transpose(1, 2) + mlp.position
        hidden = placed.reshape(B, G, l * D) @ mlp.w_in.weight.T + mlp.w_in.bias
        hidden = hidden / (1 + torch.exp(-hidden))
        blocks.append(hidden @ mlp.w_out.weight.T + mlp.w_out.bias)
    return torch.stack(blocks, dim=1) if blocks else x_BSGD[:, :0]


def _from_its_parts(layer, x, small):
    B, S, _ = x.shape

    def heads(linear):
        return (x @ linear.weight.T).unflatten(-1, (-1, D))

    k, v = (
        {name: heads(linear) for name, linear in weights.items()}
        for weights in (layer.w_k, layer.w_v)
    )
    gates = (1 / (1 + torch.exp(-(x @ layer.gate.weight.T + layer.gate.bias)))).view(B, S, HEADS, 3)
    k_blocks, v_blocks = (
        _phi(layer, which, part["compressed"], small["l"], small["d"])
        for which, part in (("keys", k), ("values", v))
    )
    places = torch.arange(S, dtype=torch.float64)
    q, k_sel, k_win = (
        _turned(part, places) for part in (heads(layer.w_q), k["selected"], k["window"])
    )
    turned = _turned(k_blocks, places[: k_blocks.shape[1]] * small["d"])
    out = nsa_attention(
        q, k["compressed"], v["compressed"], k_sel, v["selected"], k_win, v["window"], gates,
        compressed=(turned, v_blocks), backend="reference", **small,
    )  # fmt: skip
    return out.reshape(B, S, -1) @ layer.w_o.weight.T


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(("S", "backend"), [(1, "torch"), (7, "torch"), (90, "reference")])
def test_the_layer_is_its_projections_rotations_and_the_operation(S, backend, compression, small):
    layer, x = _layer(small, compression, backend=backend), _tokens(S)
    torch.testing.assert_close(layer(x), _from_its_parts(layer, x, small), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_weight_gets_the_gradient_of_the_plain_equations(compression, small):
    layer, x = _layer(small, compression), _tokens(90)
    parameters = dict(layer.named_parameters())
    got, wanted = (
        torch.autograd.grad(out.sin().sum(), list(parameters.values()))
        for out in (layer(x), _from_its_parts(layer, x, small))
    )
    for name, one, other in zip(parameters, got, wanted, strict=True):
        assert other.abs().max() > 1e-6, name
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("prompt", [1, 7, 41])
def test_token_after_token_gives_what_the_whole_sequence_gives(prompt, compression, small):
    layer, x = _layer(small, compression), _tokens(70)
    wanted = layer(x)
    cache = layer.start_cache(2, capacity=70)
    parts = [layer(x[:, :prompt], cache)]
    parts.append(layer(x[:, prompt : prompt + 5], cache))  # several at once, too
    with pytest.raises(ValueError, match="holds 70 tokens"):
        layer(x, cache)  # of which none is kept
    parts += [layer(x[:, t : t + 1], cache) for t in range(prompt + 5, 70)]
    torch.testing.assert_close(torch.cat(parts, dim=1), wanted, rtol=1e-10, atol=1e-11)
    kept = (cache.k_blocks, cache.v_blocks, cache.k_sel, cache.v_sel, cache.k_ring, cache.v_ring)
    assert not any(tensor.requires_grad for tensor in kept), "decoding keeps no graph"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_documents_are_each_as_if_alone(compression, small):
    layer, x = _layer(small, compression), _tokens(90)
    lengths = ((40, 1, 49), (90,))
    doc_ids = torch.tensor([[n for n, k in enumerate(row) for _ in range(k)] for row in lengths])
    apart = layer(x, doc_ids=doc_ids)
    for begin, end in ((0, 40), (40, 41), (41, 90)):
        torch.testing.assert_close(
            apart[:1, begin:end], layer(x[:1, begin:end]), rtol=1e-10, atol=1e-11
        )
    torch.testing.assert_close(apart[1:], layer(x[1:]), rtol=1e-10, atol=1e-11)
    assert torch.equal(apart, layer(x, doc_ids=lengths))


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"heads": 3}, "heads=3 groups=2"), ({"head_dim": 7}, "even"),
        ({"dim": 0}, "at least 1.*dim=0"), ({"heads": 0}, "at least 1.*heads=0"),
        ({"rope_theta": 0.0}, "rope_theta must be more than 0"), ({"l": 30}, "d must divide l"),
        ({"compression": "max"}, "mean or mlp"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(wrong, word):
    sizes = {"dim": DIM, "heads": HEADS, "groups": GROUPS, "head_dim": D}
    with pytest.raises(ValueError, match=word):
        NativeSparseAttention(**(sizes | wrong))


def test_tokens_of_another_shape_and_caches_that_do_not_fit_are_refused(small):
    layer, x = _layer(small), _tokens(5)
    with pytest.raises(ValueError, match=r"x must be \[B, S, dim\], got \(5, 16\)"):
        layer(torch.randn(5, 16))
    with pytest.raises(ValueError, match="no doc_ids"):
        layer(x, layer.start_cache(2, 5), torch.zeros(2, 5, dtype=torch.int64))
    other = NsaCache(B=2, G=GROUPS, D=D, capacity=60, dtype=torch.float64, sizes=Sizes())
    with pytest.raises(ValueError, match="the cache is for"):
        layer(x, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_learned_compression_computes_in_fp32_whatever_the_input(dtype, small):
    torch.manual_seed(0)
    phi = build_compression("mlp", D, small["l"], small["d"])
    k, v = torch.randn(2, 1, 40, 2, D).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = phi(k, v)
    for one, other in zip(got, phi.double()(k.double(), v.double()), strict=True):
        assert one.dtype == torch.float32
        assert one.shape == (1, math.floor((40 - small["l"]) / small["d"]) + 1, 2, D)
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


def test_the_projections_are_one_product_and_give_what_each_gives(small):
    layer, x = _layer(small), _tokens(9)
    layers = [layer.w_q, *layer.w_k.values(), *layer.w_v.values(), layer.gate]
    products = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "linear"):
                products.append(func)
            return func(*args, **(kwargs or {}))

    with Products():
        together = project(x, layers)
    assert len(products) == 1
    for got, each in zip(together, layers, strict=True):
        torch.testing.assert_close(got, each(x), rtol=1e-12, atol=1e-13)


def test_a_layer_with_a_hook_is_called_as_it_is(small):
    layer = _layer(small)
    called = []
    layer.w_q.register_forward_hook(lambda *_: called.append(1))
    layer(_tokens(9))
    assert called == [1]
