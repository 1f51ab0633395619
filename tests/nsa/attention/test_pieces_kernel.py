"""The kernel in C for the pieces of a plan: its memory, its layouts, and when it serves.

That its numbers are right is in test_backends and test_exactness.
"""

import itertools
import random

import pytest
import torch

from nsa.attention import Sizes, counters, nsa_attention, torch_backend
from nsa.attention.cpu import library, pieces
from nsa.attention.plan import Gathered, Plan

pytestmark = pytest.mark.needs("compiler")
SIZES = {"l": 8, "d": 4, "l_sel": 8, "n_sel": 5, "w": 16}


@pytest.fixture(autouse=True)
def counted():
    counters.clear()


def _served():
    return {row.path: row.reason for row in counters.snapshot() if row.operation == "pieces"}


def test_shapes_of_every_kind_are_attended_and_nothing_is_written_beyond_its_room(
    make_inputs, agree, monkeypatch
):
    """The kernel is given its room by its caller: 64 numbers behind that stay as they are."""
    behind = []

    def guarded(numbers):
        room = torch.full((numbers + 64,), 12345.0)
        behind.append(room[numbers:])
        return room[:numbers]

    monkeypatch.setattr(pieces, "_room", guarded)
    drawn = random.Random(0)
    for seed in range(20):
        d = drawn.choice([1, 2, 4, 8, 16])
        sizes = {
            "l": d * drawn.randint(1, 4), "d": d, "l_sel": d * drawn.randint(1, 9),
            "n_sel": drawn.randint(3, 8), "w": drawn.randint(1, 150),
        }  # fmt: skip
        G, R = drawn.choice([1, 2, 3]), drawn.choice([1, 2, 5, 6, 7, 13])
        shape = {"B": drawn.choice([1, 2]), "H": G * R, "G": G, "D": 16 * drawn.choice([1, 2, 5])}
        inputs = make_inputs(drawn.randint(1, 120), dtype=torch.float32, seed=seed, **shape)
        agree(inputs, 1e-4, **sizes)
    assert "c" in _served()
    assert len(behind) >= 40
    assert all((numbers == 12345.0).all() for numbers in behind)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_told_in_its_row_and_later(value, make_inputs, run):
    """A loss that is none must show; what comes before the row does not change by a bit."""
    inputs = make_inputs(150, B=1, D=16, dtype=torch.float32)
    clean, _, _ = run(inputs, backend="torch", **SIZES)
    for name in ("q", "k_sel", "v_win"):
        spoiled = {each: x.detach().clone() for each, x in inputs.items()}
        spoiled[name][:, 130, 0] = value
        out, _, grads = run(spoiled, backend="torch", **SIZES)
        assert torch.equal(out[:, :128], clean[:, :128]), name
        assert not out[:, 130].isfinite().all(), name
        assert not grads[name].isfinite().all() or name == "v_win", name


def test_a_row_computes_alike_among_any_others():
    """Later queries that chose a block move no bit."""
    functions, t, D = pieces.load_functions(), 30, 32
    q, k, v = torch.randn(3, 1, 64, D)
    for key, keys in itertools.product((0, 40), (2, 6, 16)):
        found = []
        for before, after in itertools.product((0, 2, 11), (0, 1, 4)):
            queries = torch.arange(t - before, t + after + 1)
            plan = Plan(spans=(), gathered=(Gathered(n=0, k0=key, k1=key + keys, queries=queries),))
            out, total = torch.zeros(1, 64, D), torch.zeros(1, 64)
            pieces.add_pieces(functions, q, k / D, v, plan, None, out, total)
            found.append(torch.cat((out[0, t], total[0, t, None])))
        assert all(torch.equal(one, found[0]) for one in found), (key, keys)


@pytest.mark.parametrize("R", [1, 6, 13])
def test_equal_keys_get_equal_scores_in_every_place(R):
    functions, S, D = pieces.load_functions(), 181, 16
    q = torch.randn(1, S * R, D)
    k = torch.randn(1, 1, D).expand(1, S, D).contiguous()
    read = (q, k, k, S, torch.empty_like(q), torch.zeros(1, S * R), Sizes(l=1, d=1, l_sel=1))
    scores = pieces.compressed_attend(functions, *read, start=0, stretch=(0, S), factor=1.0)
    for t in range(S):
        seen = scores[0, t, : t + 1]
        assert torch.equal(seen, seen[:1].expand_as(seen)), t


def test_what_it_cannot_serve_goes_through_pytorch_and_says_why(make_inputs):
    for threads, why, shape in (
        (1, "computes in fp32, not torch.float64", {"D": 16, "dtype": torch.float64}),
        (1, "a head has 20", {"D": 20, "dtype": torch.float32}),
        (1, "60 heads of a group, not 61", {"H": 61, "G": 1, "D": 16, "dtype": torch.float32}),
        (3, "3 threads for 2 groups", {"D": 16, "dtype": torch.float32}),
    ):
        counters.clear()
        torch.set_num_threads(threads)
        nsa_attention(**make_inputs(20, B=1, **shape), **SIZES)
        assert why in _served()["torch"]


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """A machine on which the kernel has not been asked for."""
    cached = (library.load_library, pieces.load_functions, torch_backend.cpu_kernel)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for each in cached:
        each.cache_clear()
    yield
    for each in cached:
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
@pytest.mark.usefixtures("anew")
def test_a_kernel_that_is_wrong_here_does_not_serve(
    right, wrong, tmp_path, monkeypatch, make_inputs
):
    source = pieces.KERNEL.source.read_text()
    assert right in source
    changed = tmp_path / "pieces.c"
    changed.write_text(source.replace(right, wrong))
    monkeypatch.setattr(pieces, "KERNEL", pieces.KERNEL._replace(source=changed))
    inputs = make_inputs(40, D=16, dtype=torch.float32)
    out = nsa_attention(**inputs, **SIZES)
    assert "does not give what PyTorch's operations give" in _served()["torch"]
    expected = nsa_attention(**{name: x.double() for name, x in inputs.items()}, **SIZES)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_what_a_thread_raises_is_raised(make_inputs, monkeypatch):
    inputs = make_inputs(40, D=16, dtype=torch.float32)
    nsa_attention(**inputs, **SIZES)

    def full(numbers):
        raise MemoryError(f"no room for {numbers}")

    monkeypatch.setattr(pieces, "_room", full)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with pytest.raises(MemoryError, match="no room"):
            nsa_attention(**inputs, **SIZES)
