"""What must hold to the last bit: ties, gradients that are zero, and results in parts."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nsa.attention import NsaCache, Sizes, decode, nsa_attention, selection
from nsa.attention.compressed import exp2_alike_
from tests.nsa.attention.conftest import BRANCHES

FINE = {"l": 2, "d": 2, "l_sel": 2, "n_sel": 8, "w": 20}
ROOM = {"l": 8, "d": 4, "l_sel": 8, "n_sel": 5, "w": 20}
# fp64 is computed by PyTorch's operations, fp32 with heads of 16 numbers in C.
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32], ids=["operations", "in C"]
)


@DTYPES
@pytest.mark.parametrize("seed", range(2))
def test_different_keys_with_equal_products_tie(seed, dtype, make_inputs):
    """Small whole numbers: different keys often have equal products with a query."""
    inputs = make_inputs(130, B=1, H=2, G=2, D=16, dtype=dtype, seed=seed)
    inputs = {
        n: x.detach() if n == "gates" else (2 * x.detach()).round() for n, x in inputs.items()
    }
    _, wanted = nsa_attention(**inputs, **FINE, backend="reference", return_selection=True)
    _, chosen = nsa_attention(**inputs, **FINE, backend="torch", return_selection=True)
    assert torch.equal(chosen, wanted)
    cache = NsaCache(B=1, G=2, D=16, capacity=130, sizes=Sizes(**FINE), dtype=dtype)
    for t in range(130):
        cache.append(*(inputs[name][:, t : t + 1] for name in BRANCHES))
        _, ids = decode(inputs["q"][:, t : t + 1], inputs["gates"][:, t : t + 1], cache)
        assert torch.equal(ids[:, 0], wanted[:, t]), t


@pytest.mark.parametrize(
    "sizes",
    [ROOM, {**ROOM, "l_sel": 64, "n_sel": 3}, {"l": 1, "d": 1, "l_sel": 3, "n_sel": 6, "w": 20}],
    ids=str,
)
@DTYPES
def test_of_equal_blocks_the_lowest_are_selected(sizes, dtype, make_inputs):
    """Repeated text gives equal keys, and these equal scores to the last bit, wherever they are."""
    period = 2 * max(sizes["l"], sizes["l_sel"])
    once = make_inputs(period, B=1, H=6, G=1, D=16, dtype=dtype)
    again = {name: x.detach().repeat(1, 8, *[1] * (x.dim() - 2)) for name, x in once.items()}
    _, ids = nsa_attention(**again, return_selection=True, **sizes)
    apart = period // sizes["l_sel"]
    whole = -(-(sizes["l"] // sizes["d"] - 1) // (sizes["l_sel"] // sizes["d"]))
    for t in range(4 * period, 8 * period, 7):
        chosen = [block for block in ids[0, t, 0].tolist() if block >= 0]
        for block in (block for block in chosen if 0 < block < t // sizes["l_sel"] - 1):
            assert block - apart <= whole or block - apart in chosen, (t, block)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("length", [0, 31, 45, 70001])
def test_equal_numbers_have_equal_powers_wherever_they_stand(length, threads, dtype):
    torch.set_num_threads(threads)  # put back by a fixture
    for number in torch.randn(4, 1, generator=torch.Generator().manual_seed(1), dtype=dtype):
        powers = exp2_alike_(number.repeat(length))
        assert (powers == powers[:1]).all()
        torch.testing.assert_close(powers, number.exp2().expand(length))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["operations", "in C"])
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
    inputs = make_inputs(S, D=16, dtype=dtype)
    nsa_attention(**inputs, **(small | {"w": w}), backend="torch").square().sum().backward()
    for name in zero:
        assert not inputs[name].grad.any(), name
    assert inputs["v_sel"].grad.any()


def _equal(one, other):
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])
    for name, grad in one[2].items():
        assert torch.equal(grad, other[2][name]), name


@pytest.fixture
def in_parts(monkeypatch):
    """Little is in memory together."""
    monkeypatch.setattr(selection, "_SCORES_AT_ONCE", 2**12)
    monkeypatch.setattr(selection, "_MARKS_AT_ONCE", 2**13)


@DTYPES
@pytest.mark.parametrize(("S", "B"), [(5, 1), (40, 3), (41, 1), (300, 3)])
def test_parts_change_no_bit(S, B, dtype, request, make_inputs, run):
    inputs = make_inputs(S, B=B, D=16, dtype=dtype)
    for name in ("k_cmp", "v_cmp"):  # ties between blocks of equal text
        inputs[name] = inputs[name].detach().roll(1, 1)
        inputs[name][:, S // 2 :] = inputs[name][:, S // 2 : S // 2 + 1]
    whole = run(inputs, backend="torch", **ROOM)
    request.getfixturevalue("in_parts")
    _equal(run(inputs, backend="torch", **ROOM), whole)


class Largest(TorchDispatchMode):
    """The most numbers in one tensor that any operation gave."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = (x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor))
        self.numbers = max(self.numbers, *made, 0)
        return out


@DTYPES
@pytest.mark.usefixtures("in_parts")
def test_four_times_the_tokens_are_four_times_the_room(dtype, make_inputs, run):
    found = []
    for S in (200, 800):
        with Largest() as largest:
            run(make_inputs(S, B=1, D=16, dtype=dtype), backend="torch", **ROOM)
        found.append(largest.numbers)
    assert found[1] <= 4.1 * found[0], found


@DTYPES
def test_threads_change_no_bit(dtype, make_inputs, run):
    inputs = make_inputs(180, B=2, D=16, dtype=dtype)
    alone = run(inputs, backend="torch", **ROOM)
    torch.set_num_threads(2)
    _equal(run(inputs, backend="torch", **ROOM), alone)
