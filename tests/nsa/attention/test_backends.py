"""The fast backend, in C and by PyTorch's operations, against the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa.attention import nsa_attention, nsa_attention_varlen
from nsa.attention import plan as plan_module
from nsa.attention.compression import compress_tokens
from nsa.attention.plan import PieceSize
from nsa.attention.precision import exact_products

BACKENDS = pytest.mark.parametrize("backend", ["reference", "torch"])
# fp64 is computed by PyTorch's operations, fp32 with heads of 16 numbers in C.
WAYS = pytest.mark.parametrize(
    ("way", "tolerance"),
    [({"dtype": torch.float64}, 1e-9), ({"dtype": torch.float32, "D": 16}, 2e-5)],
    ids=["operations", "in C"],
)
SHAPES = {
    **{f"S = {S}": {"S": S} for S in (1, 7, 31, 32, 33, 63, 64, 65, 127)},
    **{
        f"H = {H}, G = {G}": {"S": 100, "B": 1, "H": H, "G": G}
        for H, G in ((2, 2), (2, 1), (12, 2), (16, 1))
    },
    "three items": {"S": 170, "B": 3, "H": 6, "G": 3},
}


@WAYS
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_shape_agrees_with_the_reference(shape, way, tolerance, small, make_inputs, agree):
    agree(make_inputs(**shape, **way), tolerance, **small)


@pytest.mark.parametrize(("H", "G"), [(2, 2), (6, 1), (16, 1)])
def test_logits_times_1000_agree_in_fp64(H, G, small, make_inputs, agree):
    inputs = make_inputs(100, B=1, H=H, G=G, q_factor=1000.0)
    # A softmax that is one-hot to the last bit makes ties of the scores, which only equal
    # rounding would settle equally: the compressed logits stay moderate.
    agree(inputs | {"k_cmp": (inputs["k_cmp"] / 1000.0).detach()}, **small)


@WAYS
def test_gates_may_be_zero_and_negative(way, tolerance, small, make_inputs, agree):
    inputs = make_inputs(150, **way)
    with torch.no_grad():
        inputs["gates"].sub_(0.5)
        inputs["gates"][:, ::7] = 0.0
    agree(inputs, tolerance, **small)


@pytest.mark.parametrize("D", [8, 16], ids=["operations", "in C"])
def test_the_sizes_of_the_paper_agree_beyond_the_dense_prefix(D, make_inputs, agree):
    agree(make_inputs(1100, B=1, H=2, G=1, D=D, dtype=torch.float32), 1e-4)


@pytest.mark.parametrize(
    "size",
    [
        PieceSize(span_queries=5, gathered_queries=3, bytes=1),
        PieceSize(span_queries=16, gathered_queries=100, bytes=20_000),
        PieceSize(span_queries=512, gathered_queries=4096, bytes=1 << 26),
    ],
    ids=["tiny", "some pairs together", "as on a GPU"],
)
def test_the_size_of_the_pieces_changes_nothing(size, small, make_inputs, agree, monkeypatch):
    monkeypatch.setitem(plan_module._SIZES, "cpu", size)
    agree(make_inputs(**SHAPES["three items"]), **small)


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_any_sizes_agree_with_the_reference(data):
    d = data.draw(st.integers(1, 5), "d")
    sizes = {
        "d": d,
        "l": d * data.draw(st.integers(1, 4), "l / d"),
        "l_sel": d * data.draw(st.integers(1, 4), "l_sel / d"),
        "n_sel": data.draw(st.integers(3, 7), "n_sel"),
        "w": data.draw(st.integers(1, 80), "w"),
    }
    S, B, G, R = (data.draw(st.integers(1, top), name) for top, name in
                  ((150, "S"), (2, "B"), (2, "G"), (3, "R")))  # fmt: skip
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000), "seed"))
    shapes = [(B, S, G * R, 4), *[(B, S, G, 4)] * 6, (B, S, G * R, 3)]
    leaves = [
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]
    results = []
    for backend in ("torch", "reference"):
        out, sel = nsa_attention(*leaves, backend=backend, return_selection=True, **sizes)
        grads = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
        results.append((sel, out, *(g for g in grads if g is not None)))
    fast, exact = results
    assert torch.equal(fast[0], exact[0])
    for x, y in zip(fast[1:], exact[1:], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-10)


@BACKENDS
@pytest.mark.parametrize(("dtype", "q_factor"), [(torch.float32, 1e6), (torch.bfloat16, 30.0)])
def test_huge_logits_stay_finite(backend, dtype, q_factor, small, make_inputs, run):
    out, _, grads = run(
        make_inputs(130, D=16, dtype=dtype, q_factor=q_factor), backend=backend, **small
    )
    for name, x in {"out": out, **grads}.items():
        assert x.isfinite().all(), name


def test_scores_that_are_large_cost_little_precision(small, make_inputs, agree):
    """As they would where the recomputed shares of a sharp row are taken to add up to 1."""
    inputs = make_inputs(150, B=1, D=16, dtype=torch.float32, q_factor=30.0)
    agree(inputs, 3e-5, **small)
    agree(make_inputs(150, D=20, dtype=torch.float32, q_factor=30.0), 3e-5, **small)


@BACKENDS
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 8e-3), (torch.float16, 1e-3)], ids=str
)
@pytest.mark.parametrize("D", [20, 16], ids=["operations", "in C"])
def test_half_precision_rounds_only_the_result(
    backend, dtype, tolerance, D, small, make_inputs, agree
):
    agree(make_inputs(150, H=12, D=D, dtype=dtype), tolerance, backend=backend, **small)


@BACKENDS
def test_compressed_keys_are_rounded_to_the_dtype_of_q_whoever_compresses(
    backend, small, make_inputs
):
    inputs = {n: x.detach() for n, x in make_inputs(150, dtype=torch.bfloat16).items()}
    exact = [compress_tokens(inputs[n], small["l"], small["d"]) for n in ("k_cmp", "v_cmp")]
    rounded = [x.bfloat16() for x in exact]
    assert not torch.equal(rounded[0].float(), exact[0])
    options = small | {"backend": backend, "return_selection": True}
    wanted = nsa_attention(**inputs, **options)
    for blocks in (exact, rounded):
        got = nsa_attention(**inputs, compressed=tuple(blocks), **options)
        assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True))


@pytest.fixture
def rounded():
    """A process that rounds its products to bf16."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if matmul is None:
        pytest.skip("this PyTorch has no such switch")
    matmul.fp32_precision = "bf16"
    yield matmul
    matmul.fp32_precision = "none"


@BACKENDS
def test_neither_autocast_nor_a_switch_of_the_process_rounds_the_scores(
    backend, small, make_inputs, run, request
):
    inputs = make_inputs(120, B=1, H=6, G=1, D=20, dtype=torch.float32)
    wanted = run(inputs, backend=backend, **small)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        by_autocast = run(inputs, backend=backend, **small)
    request.getfixturevalue("rounded")
    for got in (by_autocast, run(inputs, backend=backend, **small)):
        assert torch.equal(got[0], wanted[0])
        assert torch.equal(got[1], wanted[1])
        if backend == "torch":  # gradients of the reference are autograd's
            assert all(torch.equal(got[2][name], wanted[2][name]) for name in inputs)


def test_the_switch_is_put_back_even_after_an_error(rounded):
    with exact_products(torch.device("cpu")):
        assert rounded.fp32_precision == "ieee"
    with pytest.raises(RuntimeError, match="multiplied"), exact_products(torch.device("cpu")):
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert rounded.fp32_precision == "bf16"


def test_a_second_derivative_is_refused_and_never_zero(small, make_inputs):
    inputs = make_inputs(70)
    out = nsa_attention(**inputs, backend="torch", **small).sum()
    with pytest.raises(NotImplementedError, match=r"first derivatives only.*backend='reference'"):
        torch.autograd.grad(out, list(inputs.values()), create_graph=True)


@WAYS
def test_the_output_may_be_written_to(way, tolerance, small, make_inputs):
    inputs = make_inputs(33, **way)
    twice = nsa_attention(**inputs, **small, backend="torch").mul_(2.0)
    torch.testing.assert_close(twice, 2 * nsa_attention(**inputs, **small, backend="torch"))


@BACKENDS
@pytest.mark.parametrize("form", ["batch", "documents", "sequences"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_empty_batch_gives_empty_tensors_and_gradients(backend, form, dtype, small, make_inputs):
    """A rank whose share of a batch is empty calls its layers like the others."""
    options = {"backend": backend, "return_selection": True, **small}
    if form == "sequences":
        inputs = make_inputs(5, B=1, D=16, dtype=dtype)
        inputs = {n: x.detach()[0, :0].requires_grad_() for n, x in inputs.items()}
        out, ids = nsa_attention_varlen(**inputs, cu_seqlens=torch.tensor([0, 0, 0]), max_seqlen=0,
                                        **options)  # fmt: skip
    else:
        inputs = make_inputs(150, B=0, D=16, dtype=dtype)
        documents = torch.zeros(0, 150, dtype=torch.int64) if form == "documents" else None
        out, ids = nsa_attention(**inputs, doc_ids=documents, **options)
    shape = inputs["q"].shape
    assert (out.shape, out.dtype) == (shape, dtype)
    assert (ids.shape, ids.dtype) == ((*shape[:-2], 2, small["n_sel"]), torch.int64)
    grads = torch.autograd.grad(out.sum(), list(inputs.values()))
    for x, grad in zip(inputs.values(), grads, strict=True):
        assert (grad.shape, grad.dtype) == (x.shape, x.dtype)
