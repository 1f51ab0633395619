"""The fast backend against the reference: odd lengths, group sizes, dtypes, huge logits."""

from __future__ import annotations

import pytest
import torch

ODD_LENGTHS = (1, 7, 31, 32, 33, 63, 64, 65, 127)


def _relative(x, y):
    return ((x.double() - y.double()).norm() / y.double().norm().clamp_min(1e-12)).item()


@pytest.mark.parametrize("S", ODD_LENGTHS)
def test_odd_lengths_agree_with_the_reference_in_fp64(S, small, make_inputs, run):
    inputs = make_inputs(S)
    out, sel, grads = run(inputs, backend="torch", **small)
    expected, ids, wanted = run(inputs, backend="reference", **small)
    assert torch.equal(sel, ids)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-13)
    for name in inputs:
        torch.testing.assert_close(grads[name], wanted[name], rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize(("H", "G"), [(2, 2), (2, 1), (6, 1), (12, 2), (16, 1)])
@pytest.mark.parametrize("q_factor", [1.0, 1000.0])
def test_every_group_size_agrees_in_fp64_however_large_the_logits(
    H, G, q_factor, small, make_inputs, run
):
    inputs = make_inputs(100, B=1, H=H, G=G, q_factor=q_factor)
    # A softmax that is one-hot to the last bit makes ties of the scores, which only equal
    # rounding would settle equally: the compressed logits stay moderate.
    inputs |= {"k_cmp": (inputs["k_cmp"] / q_factor).detach()}
    out, sel, grads = run(inputs, backend="torch", **small)
    expected, ids, wanted = run(inputs, backend="reference", **small)
    assert torch.equal(sel, ids)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)
    for name in inputs:
        assert _relative(grads[name], wanted[name]) < 1e-9, name


def test_gates_may_be_zero_and_negative(small, make_inputs, run):
    inputs = make_inputs(150)
    with torch.no_grad():
        inputs["gates"].sub_(0.5)
        inputs["gates"][:, ::7] = 0.0
    out, _, grads = run(inputs, backend="torch", **small)
    expected, _, wanted = run(inputs, backend="reference", **small)
    torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-12)
    for name in inputs:
        torch.testing.assert_close(grads[name], wanted[name], rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("S", [65, 200])
@pytest.mark.parametrize("q_factor", [1.0, 5.0])
def test_fp32_agrees_with_the_fp64_reference(S, q_factor, small, make_inputs, run):
    inputs = make_inputs(S, H=12, dtype=torch.float32, q_factor=q_factor)
    out, sel, grads = run(inputs, backend="torch", **small)
    exact = {name: x.double() for name, x in inputs.items()}
    expected, ids, wanted = run(exact, backend="reference", **small)
    assert torch.equal(sel, ids)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    for name in inputs:
        assert _relative(grads[name], wanted[name]) < 1e-4, name


def test_the_sizes_of_the_paper_agree_beyond_the_dense_prefix(make_inputs, run):
    inputs = make_inputs(1100, B=1, H=2, G=1, D=8, dtype=torch.float32)
    out, sel, grads = run(inputs, backend="torch")
    expected, ids, wanted = run(inputs, backend="reference")
    assert torch.equal(sel, ids)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    for name in inputs:
        assert _relative(grads[name], wanted[name]) < 1e-4, name


@pytest.mark.parametrize("q_factor", [30.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_huge_logits_stay_finite_forward_and_backward(
    backend, dtype, q_factor, small, make_inputs, run
):
    inputs = make_inputs(130, dtype=dtype, q_factor=q_factor)
    out, _, grads = run(inputs, backend=backend, **small)
    assert out.isfinite().all()
    for name, gradient in grads.items():
        assert gradient.isfinite().all(), name


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 8e-3), (torch.float16, 1e-3)], ids=str
)
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_half_precision_is_fp32_inside_and_rounds_only_the_result(
    backend, dtype, tolerance, small, make_inputs, run
):
    inputs = make_inputs(150, H=12, dtype=dtype)
    out, sel, grads = run(inputs, backend=backend, **small)
    single = {name: x.float() for name, x in inputs.items()}
    expected, ids, wanted = run(single, backend="reference", blocks_in=dtype, **small)
    assert out.dtype == dtype
    assert torch.equal(sel, ids)
    assert _relative(out, expected) < tolerance
    for name in inputs:
        assert grads[name].dtype == dtype
        assert _relative(grads[name], wanted[name]) < tolerance, name


def test_caller_compressed_keys_are_used_and_get_the_gradient(small, make_inputs):
    from nsa.attention import nsa_attention

    inputs = make_inputs(90)
    C = (90 - small["l"]) // small["d"] + 1
    generator = torch.Generator().manual_seed(5)
    made = [torch.randn(2, C, 2, 8, generator=generator).double() for _ in range(2)]
    results = {}
    for backend in ("reference", "torch"):
        blocks = [x.clone().requires_grad_() for x in made]
        out = nsa_attention(**inputs, compressed=tuple(blocks), backend=backend, **small)
        results[backend] = (out, *torch.autograd.grad(out.square().sum(), blocks))
    for got, wanted in zip(results["torch"], results["reference"], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)
    assert results["torch"][1].abs().sum() > 0


def test_strided_inputs_and_an_expanded_gradient_change_nothing(small, make_inputs):
    from nsa.attention import nsa_attention

    inputs = make_inputs(100)
    strided = {
        n: x.detach().transpose(1, 2).contiguous().transpose(1, 2) for n, x in inputs.items()
    }
    strided = {n: x.requires_grad_() for n, x in strided.items()}
    gradients = []
    for leaves in (inputs, strided):
        out = nsa_attention(**leaves, backend="torch", **small)
        gradients.append(torch.autograd.grad(out.sum(), list(leaves.values())))
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_autocast_does_not_round_the_scores(backend, small, make_inputs, run):
    inputs = make_inputs(100, dtype=torch.float32)
    out, sel, grads = run(inputs, backend=backend, **small)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        other, other_sel, other_grads = run(inputs, backend=backend, **small)
    assert torch.equal(out, other)
    assert torch.equal(sel, other_sel)
    for name in inputs:
        assert _relative(other_grads[name], grads[name]) < 1e-6 or backend == "reference", name


def test_checkpointing_gives_the_same_gradients(small, make_inputs):
    from torch.utils.checkpoint import checkpoint

    from nsa.attention import nsa_attention

    inputs = make_inputs(130)
    names = list(inputs)

    def attention(*tensors):
        return nsa_attention(**dict(zip(names, tensors, strict=True)), backend="torch", **small)

    leaves = list(inputs.values())
    plain = torch.autograd.grad(attention(*leaves).square().sum(), leaves)
    again = checkpoint(attention, *leaves, use_reentrant=False)
    for x, y in zip(plain, torch.autograd.grad(again.square().sum(), leaves), strict=True):
        assert torch.equal(x, y)


def test_a_second_derivative_is_refused_and_never_zero(small, make_inputs):
    from nsa.attention import nsa_attention

    inputs = make_inputs(70)
    out = nsa_attention(**inputs, backend="torch", **small).sum()
    with pytest.raises(NotImplementedError, match=r"first derivatives only.*backend='reference'"):
        torch.autograd.grad(out, list(inputs.values()), create_graph=True)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_compressed_keys_are_rounded_to_the_dtype_of_q_whoever_compresses(
    backend, small, make_inputs
):
    from nsa.attention import nsa_attention
    from nsa.attention.compression import compress_tokens

    inputs = {n: x.detach() for n, x in make_inputs(150, dtype=torch.bfloat16).items()}
    exact = [compress_tokens(inputs[n], small["l"], small["d"]) for n in ("k_cmp", "v_cmp")]
    rounded = [x.bfloat16() for x in exact]
    assert not torch.equal(rounded[0].float(), exact[0])
    options = small | {"backend": backend, "return_selection": True}
    out, ids = nsa_attention(**inputs, **options)
    for blocks in (exact, rounded):
        other, other_ids = nsa_attention(**inputs, compressed=tuple(blocks), **options)
        assert torch.equal(other, out)
        assert torch.equal(other_ids, ids)
