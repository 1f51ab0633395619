"""The kernel in C for the pieces of a plan gives what the equations give, forward and backward."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nsa.attention import Sizes, counters, nsa_attention, torch_backend
from nsa.attention.cpu import library, planned
from nsa.attention.plan import Gathered, Plan

pytestmark = pytest.mark.needs("compiler")
SIZES: tuple[dict[str, int], ...] = (
    {"l": 8, "d": 4, "l_sel": 8, "n_sel": 5, "w": 16},
    {"l": 8, "d": 8, "l_sel": 24, "n_sel": 3, "w": 20},
    {"l": 12, "d": 4, "l_sel": 8, "n_sel": 4, "w": 1},
    {"l": 16, "d": 16, "l_sel": 64, "n_sel": 3, "w": 130},
    {"l": 1, "d": 1, "l_sel": 3, "n_sel": 6, "w": 200},
    {"l": 32, "d": 16, "l_sel": 128, "n_sel": 16, "w": 512},
)
Made = Callable[..., dict[str, Tensor]]
Ran = Callable[..., tuple[Tensor, Tensor, dict[str, Tensor]]]


@pytest.fixture(autouse=True)
def counted() -> None:
    counters.clear()


def _served() -> dict[str, str]:
    return {row.path: row.reason for row in counters.snapshot() if row.operation == "pieces"}


def test_shapes_of_every_kind_are_attended_and_nothing_is_written_beyond_its_room(
    make_inputs: Made, run: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is given its room by its caller: 64 numbers behind that stay as they are."""
    behind: list[Tensor] = []

    def guarded(numbers: int) -> Tensor:
        room = torch.full((numbers + 64,), 12345.0)
        behind.append(room[numbers:])
        return room[:numbers]

    monkeypatch.setattr(planned, "_room", guarded)
    drawn = random.Random(0)
    for seed in range(20):
        d = drawn.choice([1, 2, 4, 8, 16])
        sizes = {
            "l": d * drawn.randint(1, 4), "d": d, "l_sel": d * drawn.randint(1, 9),
            "n_sel": drawn.randint(3, 8), "w": drawn.randint(1, 150),
        }  # fmt: skip
        if sizes["l_sel"] % d or sizes["l"] % d:
            continue
        G, R = drawn.choice([1, 2, 3]), drawn.choice([1, 2, 5, 6, 7, 13])
        shape = {"B": drawn.choice([1, 2]), "H": G * R, "G": G, "D": 16 * drawn.choice([1, 2, 5])}
        inputs = make_inputs(drawn.randint(1, 120), dtype=torch.float32, seed=seed, **shape)
        exact = {name: x.detach().double() for name, x in inputs.items()}
        out, ids, grads = run(inputs, backend="torch", **sizes)
        expected, chosen, wanted = run(exact, backend="reference", **sizes)
        assert torch.equal(ids, chosen)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
        for name, grad in grads.items():
            torch.testing.assert_close(grad.double(), wanted[name], rtol=1e-4, atol=5e-5)
    assert "c" in _served()
    assert len(behind) >= 40
    assert all((numbers == 12345.0).all() for numbers in behind)


def _laid(x: Tensor, how: str) -> Tensor:
    """The same numbers, in memory of another order."""
    if how == "heads first":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "batch last":
        return x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
    if how == "part of more":
        return torch.cat((x, x, x), -1)[..., : x.shape[-1]]
    if how == "backwards":
        return x.flip(1).contiguous().flip(1)
    return x.contiguous()


@pytest.mark.parametrize("how", ["heads first", "batch last", "part of more", "backwards"])
def test_queries_and_gradients_are_read_where_they_lie(how: str, make_inputs: Made) -> None:
    inputs = make_inputs(150, H=6, D=16, dtype=torch.float32)
    given = torch.randn(inputs["q"].shape)
    results = []
    for each in ("as made", how):
        leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
        out = nsa_attention(**{**leaves, "q": _laid(leaves["q"], each)}, **SIZES[0])
        grads = torch.autograd.grad(out, list(leaves.values()), _laid(given, each))
        results.append((out, *grads))
    assert _served() == {"c": ""}
    for name, plain, other in zip(("out", *inputs), *results, strict=True):
        assert torch.equal(plain, other), name


def test_large_scores_are_attended_as_softmax_attends_them(make_inputs: Made, run: Ran) -> None:
    """So large that a row's maximum has to be taken off; gradients are small differences then."""
    inputs = make_inputs(150, B=1, D=16, dtype=torch.float32, q_factor=30.0)
    out, ids, grads = run(inputs, backend="torch", **SIZES[0])
    assert _served() == {"c": ""}
    exact = {name: x.detach().double() for name, x in inputs.items()}
    expected, chosen, wanted = run(exact, backend="torch", **SIZES[0])
    assert torch.equal(ids, chosen)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
    for name, grad in grads.items():
        assert (grad.double() - wanted[name]).norm() <= 1e-4 * wanted[name].norm(), name


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_told_in_its_row_and_later(
    value: float, make_inputs: Made, run: Ran
) -> None:
    """A loss that is none must show; what comes before the row does not change by a bit."""
    inputs = make_inputs(150, B=1, D=16, dtype=torch.float32)
    clean, _, _ = run(inputs, backend="torch", **SIZES[0])
    for name in ("q", "k_sel", "v_win"):
        spoiled = {each: x.detach().clone() for each, x in inputs.items()}
        spoiled[name][:, 130, 0] = value
        out, _, grads = run(spoiled, backend="torch", **SIZES[0])
        assert torch.equal(out[:, :128], clean[:, :128]), name
        assert not out[:, 130].isfinite().all(), name
        assert not grads[name].isfinite().all() or name == "v_win", name


def test_the_future_moves_no_bit(make_inputs: Made) -> None:
    inputs = {k: x.detach() for k, x in make_inputs(200, D=16, dtype=torch.float32).items()}
    before = nsa_attention(**inputs, **SIZES[0])
    for until in (1, 40, 65, 130, 199):
        other = make_inputs(200, D=16, dtype=torch.float32, seed=1)
        later = {k: torch.cat((x[:, :until], other[k][:, until:]), 1) for k, x in inputs.items()}
        assert torch.equal(nsa_attention(**later, **SIZES[0])[:, :until], before[:, :until])
    assert _served() == {"c": ""}


@pytest.mark.parametrize("sizes", [SIZES[0], SIZES[3], SIZES[4]], ids=str)
def test_of_equal_blocks_the_lowest_are_selected(sizes: dict[str, int], make_inputs: Made) -> None:
    """Repeated text gives equal keys, and these equal scores to the last bit, wherever they are."""
    period = 2 * max(sizes["l"], sizes["l_sel"])
    once = make_inputs(period, B=1, H=6, G=1, D=16, dtype=torch.float32)
    again = {name: x.detach().repeat(1, 12, *[1] * (x.dim() - 2)) for name, x in once.items()}
    _, ids = nsa_attention(**again, return_selection=True, **sizes)
    assert _served() == {"c": ""}
    apart = period // sizes["l_sel"]
    whole = -(-(sizes["l"] // sizes["d"] - 1) // (sizes["l_sel"] // sizes["d"]))
    for t in range(6 * period, 12 * period, 7):
        chosen = [block for block in ids[0, t, 0].tolist() if block >= 0]
        free = [block for block in chosen if 0 < block < t // sizes["l_sel"] - 1]
        for block in free:
            earlier = block - apart
            assert earlier <= whole or earlier in chosen, (t, block)


def test_a_row_computes_alike_among_any_others() -> None:
    """Later queries that chose a block move no bit."""
    functions, t, D = planned.load_functions(), 30, 32
    assert not isinstance(functions, str)
    q, k, v = torch.randn(1, 1, 64, 1, D), *torch.randn(2, 1, 64, D)
    for key, keys in itertools.product((0, 2, 40), (2, 6, 16)):
        found = []
        for before, after in itertools.product((0, 2, 5, 11), (0, 1, 3, 4)):
            among = Gathered(
                n=0, k0=key, k1=key + keys, queries=torch.arange(t - before, t + after + 1)
            )
            out, total = torch.zeros(1, 1, 64, 1, D), torch.zeros(1, 64)
            plan = Plan(spans=(), gathered=(among,))
            planned.attend(functions, q, k / D, v, plan, None, out, total)
            found.append(torch.cat((out[0, 0, t, 0], total[0, t, None])))
        assert all(torch.equal(one, found[0]) for one in found), (key, keys)


@pytest.mark.parametrize("R", [1, 6, 13])
def test_equal_keys_get_equal_scores_in_every_place(R: int) -> None:
    functions, S, D = planned.load_functions(), 181, 16
    assert not isinstance(functions, str)
    q = torch.randn(1, 1, S, R, D)
    k = torch.randn(1, 1, D).expand(1, S, D).contiguous()
    read = (q, k, k, torch.empty_like(q), torch.zeros(1, S * R), Sizes(l=1, d=1, l_sel=1))
    scores = planned.compressed_attend(functions, *read, start=0, stretch=(0, S), factor=1.0)
    for t in range(S):
        seen = scores[0, t, : t + 1]
        assert torch.equal(seen, seen[:1].expand_as(seen)), t


def test_threads_change_no_bit(make_inputs: Made, run: Ran) -> None:
    inputs = make_inputs(180, B=2, D=16, dtype=torch.float32)
    alone, _, grads = run(inputs, backend="torch", **SIZES[0])
    torch.set_num_threads(2)
    out, _, again = run(inputs, backend="torch", **SIZES[0])
    assert torch.equal(out, alone)
    assert all(torch.equal(again[name], grad) for name, grad in grads.items())
    assert _served() == {"c": ""}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_fp32(
    dtype: torch.dtype, make_inputs: Made, run: Ran
) -> None:
    inputs = make_inputs(200, B=1, D=16, dtype=dtype)
    out, ids, grads = run(inputs, backend="torch", **SIZES[0])
    assert _served() == {"c": ""}
    exact = {name: x.detach().double() for name, x in inputs.items()}
    expected, chosen, wanted = run(exact, backend="reference", blocks_in=dtype, **SIZES[0])
    assert torch.equal(ids, chosen)
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=rounding, atol=1e-5)
    for name in ("k_sel", "v_sel", "k_win", "v_win"):
        torch.testing.assert_close(grads[name].double(), wanted[name], rtol=2 * rounding, atol=4e-3)


def test_what_it_cannot_serve_goes_through_pytorch_and_says_why(make_inputs: Made) -> None:
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("computes in fp32, not torch.float64", {"D": 16, "dtype": torch.float64}),
        ("a head has 20", {"D": 20, "dtype": torch.float32}),
        ("60 heads of a group, not 61", {"H": 61, "G": 1, "D": 16, "dtype": torch.float32}),
    )
    for why, shape in cases:
        counters.clear()
        nsa_attention(**make_inputs(20, B=1, **shape), **SIZES[0])
        assert why in _served()["torch"]
    counters.clear()
    torch.set_num_threads(3)
    inputs = make_inputs(20, B=1, D=16, dtype=torch.float32)
    nsa_attention(**inputs, **SIZES[0])
    assert "3 threads for 2 groups" in _served()["torch"]


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """A machine on which the kernel has not been asked for; called, it is one again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _forget()
    yield _forget
    _forget()


def _forget() -> None:
    for each in (library.load_library, planned.load_functions, torch_backend.cpu_kernel):
        each.cache_clear()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("query - s->w + 1", "query - s->w"),
        *(
            pytest.param(right, wrong, marks=pytest.mark.long)
            for right, wrong in (
                ("x->dk + first * D", "x->dv + first * D"),
                ("9.618437357674640e-3f", "9.2e-3f"),
                ("t->lone[i] ? (vec){0} : said", "said * 1.01f"),
                ("counts[o] * heads[j * apart + o]", "counts[o] * heads[j * apart]"),
                ("+ t.offset[i]", ""),
                ("(query + 1 - s->l) / s->d + 1", "query + 1"),
            )
        ),
    ],
)
def test_a_kernel_that_is_wrong_here_does_not_serve(
    right: str,
    wrong: str,
    anew: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_inputs: Made,
) -> None:
    source = planned.KERNEL.source.read_text()
    assert right in source
    changed = tmp_path / "pieces.c"
    changed.write_text(source.replace(right, wrong))
    monkeypatch.setattr(planned, "KERNEL", planned.KERNEL._replace(source=changed))
    inputs = make_inputs(40, D=16, dtype=torch.float32)
    out = nsa_attention(**inputs, **SIZES[0])
    assert "does not give what PyTorch's operations give" in _served()["torch"]
    exact = {name: x.double() for name, x in inputs.items()}
    expected = nsa_attention(**exact, **SIZES[0])
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_by_choice_pytorch_serves(
    anew: Callable[[], None], monkeypatch: pytest.MonkeyPatch, make_inputs: Made, run: Ran
) -> None:
    inputs = make_inputs(120, D=16, dtype=torch.float32)
    monkeypatch.setenv("NSA_CPU_KERNELS", "0")
    out, ids, grads = run(inputs, backend="torch", **SIZES[0])
    assert "switches it off" in _served()["torch"]
    counters.clear()
    monkeypatch.delenv("NSA_CPU_KERNELS")
    anew()
    by_c, chosen, wanted = run(inputs, backend="torch", **SIZES[0])
    assert _served() == {"c": ""}
    assert torch.equal(ids, chosen)
    torch.testing.assert_close(out, by_c, rtol=1e-5, atol=1e-5)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-4, atol=3e-5)


def test_what_a_thread_raises_is_raised(make_inputs: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(40, D=16, dtype=torch.float32)
    nsa_attention(**inputs, **SIZES[0])

    def full(numbers: int) -> Tensor:
        raise MemoryError(f"no room for {numbers}")

    monkeypatch.setattr(planned, "_room", full)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with pytest.raises(MemoryError, match="no room"):
            nsa_attention(**inputs, **SIZES[0])
