"""What must hold to the last bit: ties, gradients that are zero, and the same under compilers."""

from __future__ import annotations

import pytest
import torch

from nsa.attention import NsaCache, Sizes, decode, nsa_attention
from nsa.attention.compressed import exp2_alike_

FINE = {"l": 2, "d": 2, "l_sel": 2, "n_sel": 8, "w": 20}


def _integers(make_inputs, S, seed, dtype):
    """Small whole numbers: different keys often have equal products with a query."""
    inputs = make_inputs(S, B=1, H=2, G=2, D=16, dtype=dtype, seed=seed)
    whole = {name: (2 * x.detach()).round() for name, x in inputs.items() if name != "gates"}
    return whole | {"gates": inputs["gates"].detach()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_different_keys_with_equal_products_tie(seed, dtype, make_inputs):
    inputs = _integers(make_inputs, 200, seed, dtype)
    _, wanted = nsa_attention(**inputs, **FINE, backend="reference", return_selection=True)
    _, chosen = nsa_attention(**inputs, **FINE, backend="torch", return_selection=True)
    assert torch.equal(chosen, wanted)
    cache = NsaCache(B=1, G=2, D=16, capacity=200, sizes=Sizes(**FINE), dtype=dtype)
    names = [f"{kind}_{branch}" for branch in ("cmp", "sel", "win") for kind in "kv"]
    for t in range(200):
        cache.append(*(inputs[name][:, t : t + 1] for name in names))
        _, ids = decode(inputs["q"][:, t : t + 1], inputs["gates"][:, t : t + 1], cache)
        assert torch.equal(ids[:, 0], wanted[:, t]), t


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("length", [0, 1, 31, 45, 70001])
def test_equal_numbers_have_equal_powers_wherever_they_stand(length, threads, dtype):
    torch.set_num_threads(threads)  # put back by a fixture
    generator = torch.Generator().manual_seed(length)
    for _ in range(20):
        number = torch.randn(1, generator=generator, dtype=dtype)
        powers = exp2_alike_(number.repeat(length))
        assert (powers == powers[:1]).all()
        torch.testing.assert_close(powers, number.exp2().expand(length))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("blocks", [1, 16, 127, 1025])
def test_blocks_with_equal_products_have_equal_shares_of_the_next_token(blocks, dtype):
    generator = torch.Generator().manual_seed(blocks)
    products = torch.randn(3, generator=generator, dtype=dtype)
    which = torch.randint(3, (2, 6, blocks), generator=generator)
    shares = products[which].softmax(-1)
    for row, numbers in zip(shares.flatten(0, 1), which.flatten(0, 1), strict=True):
        for number in numbers.unique():
            assert len(row[numbers == number].unique()) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("S", "w", "zero"),
    [
        (1, 20, ("q", "k_sel", "k_win")),  # one token sees itself
        (8, 20, ("k_cmp",)),  # l tokens: one block
        (11, 20, ("k_cmp",)),  # and no second one until l + d
        (150, 1, ("k_win",)),
    ],
)
def test_a_query_with_one_key_moves_neither_with_its_score(S, w, zero, dtype, small, make_inputs):
    inputs = make_inputs(S, dtype=dtype)
    sizes = small | {"w": w}
    nsa_attention(**inputs, **sizes, backend="torch").square().sum().backward()
    for name in zero:
        assert not inputs[name].grad.any(), name
    assert inputs["v_sel"].grad.any()


def test_scores_that_are_large_cost_gradients_little_of_their_precision(small, make_inputs):
    """As they would where the recomputed shares of a sharp row are taken to add up to 1."""
    inputs = make_inputs(150, D=64, dtype=torch.float32, q_factor=30.0)
    grads = []
    for dtype, backend in ((torch.float32, "torch"), (torch.float64, "reference")):
        leaves = [x.detach().to(dtype).requires_grad_() for x in inputs.values()]
        nsa_attention(*leaves, **small, backend=backend).sin().sum().backward()
        grads.append([leaf.grad.double() for leaf in leaves])
    off = max(float((a - b).norm() / b.norm()) for a, b in zip(*grads, strict=True))
    assert off < 9e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_output_may_be_written_to(dtype, small, make_inputs):
    inputs = make_inputs(33, dtype=dtype)
    twice = nsa_attention(**inputs, **small, backend="torch").mul_(2.0)
    torch.testing.assert_close(twice, 2 * nsa_attention(**inputs, **small, backend="torch"))
