"""What must hold for NSA whatever computes it: causality, limits, symmetry, gradients."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from nsa.attention import nsa_attention

# fp64 is computed by PyTorch's operations, fp32 with heads of 16 numbers in C.
WAYS = pytest.mark.parametrize(
    ("backend", "made"),
    [("reference", {}), ("torch", {}), ("torch", {"dtype": torch.float32, "D": 16})],
    ids=["reference", "torch", "torch in C"],
)
BACKENDS = pytest.mark.parametrize("backend", ["reference", "torch"])
CUTS = (1, 7, 8, 15, 16, 33, 63, 64, 65, 100, 128, 159)


def _call(inputs, backend, sizes):
    with torch.no_grad():
        return nsa_attention(**inputs, backend=backend, return_selection=True, **sizes)


def _only(branch, inputs):
    gates = torch.zeros_like(inputs["gates"])
    gates[..., branch] = 1.0
    return inputs | {"gates": gates}


def _dense(inputs, branch):
    q, k, v = (inputs[name].transpose(1, 2) for name in ("q", f"k_{branch}", f"v_{branch}"))
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).detach()


@WAYS
def test_the_future_moves_neither_output_nor_selection(backend, made, small, make_inputs):
    inputs, other = make_inputs(160, **made), make_inputs(160, seed=1, **made)
    out, sel = _call(inputs, backend, small)
    for cut in CUTS:
        mixed = {n: torch.cat((x[:, :cut], 50 * other[n][:, cut:]), 1) for n, x in inputs.items()}
        moved, moved_sel = _call(mixed, backend, small)
        assert torch.equal(sel[:, :cut], moved_sel[:, :cut]), cut
        assert (out[:, :cut] - moved[:, :cut]).abs().max() < 1e-6, cut
        assert not torch.equal(out[:, cut:], moved[:, cut:]), cut
        if backend == "torch":
            for branch in (0, 2):  # these two to the last bit
                one, two = (_call(_only(branch, x), backend, small)[0] for x in (inputs, mixed))
                assert torch.equal(one[:, :cut], two[:, :cut]), (branch, cut)


@WAYS
def test_every_branch_is_causal_attention_where_it_sees_everything(
    backend, made, small, make_inputs
):
    inputs = make_inputs(120, **made)
    full = small["n_sel"] * small["l_sel"]
    selected, _ = _call(_only(1, inputs), backend, small)
    dense = _dense(inputs, "sel")
    torch.testing.assert_close(selected[:, :full], dense[:, :full])
    assert (selected[:, full:] - dense[:, full:]).abs().max() > 1e-2
    for w in (120, 500):
        window, _ = _call(_only(2, inputs), backend, small | {"w": w})
        torch.testing.assert_close(window, _dense(inputs, "win"))
    compressed, _ = _call(_only(0, inputs), backend, small | {"l": 1, "d": 1})
    torch.testing.assert_close(compressed, _dense(inputs, "cmp"))


@BACKENDS
def test_a_query_that_sees_no_compressed_block_gets_zero_and_no_gradient(
    backend, small, make_inputs
):
    inputs = _only(0, make_inputs(40))
    out = nsa_attention(**inputs, backend=backend, **small)
    first = small["l"] - 1
    (gradient,) = torch.autograd.grad(out.square().sum(), inputs["q"])
    assert not out[:, :first].any()
    assert not gradient[:, :first].any()
    assert gradient[:, first + small["d"] :].abs().amin(dim=(0, 2)).max() > 0


@BACKENDS
def test_batch_items_are_independent_and_heads_of_a_group_alike(backend, small, make_inputs):
    inputs = make_inputs(130, B=3, H=6)
    out, sel = _call(inputs, backend, small)
    for b in range(3):
        alone, ids = _call({n: x[b : b + 1] for n, x in inputs.items()}, backend, small)
        torch.testing.assert_close(out[b : b + 1], alone, rtol=1e-12, atol=1e-13)
        assert torch.equal(sel[b : b + 1], ids)
    order = [2, 0, 1, 5, 3, 4]
    permuted = inputs | {n: inputs[n][:, :, order] for n in ("q", "gates")}
    moved, moved_sel = _call(permuted, backend, small)
    torch.testing.assert_close(out[:, :, order], moved, rtol=1e-12, atol=1e-13)
    assert torch.equal(sel, moved_sel)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "number"), [("q", math.nan), ("k_cmp", -math.nan), ("k_cmp", math.inf)], ids=str
)
def test_a_nan_breaks_neither_other_items_nor_the_ids(dtype, name, number, small, make_inputs):
    inputs = {n: x.detach() for n, x in make_inputs(150, D=16, dtype=dtype).items()}
    whole = _call(inputs, "torch", small)
    broken = inputs | {name: inputs[name].clone()}
    broken[name][1, 100] = number
    out, sel = _call(broken, "torch", small)
    assert torch.equal(out[0], whole[0][0])
    assert torch.equal(sel[0], whole[1][0])
    assert (sel[:, small["n_sel"] * small["l_sel"] :].diff(dim=-1) > 0).all()
    assert torch.equal(sel[..., -1].max(-1).values, sel[..., -1].min(-1).values)


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("H", "key"), [(2, 0.0), (6, 0.37), (16, 0.37)])
def test_equal_keys_select_the_lowest_blocks(backend, dtype, H, key, small, make_inputs):
    inputs = make_inputs(250, B=1, H=H, G=1, dtype=dtype)
    direction = torch.arange(1, 9, dtype=dtype) * key
    inputs |= {"k_cmp": torch.zeros_like(inputs["k_cmp"]) + direction}
    _, sel = _call(inputs, backend, small | {"n_sel": 5})
    # Block 0 is overlapped by one compressed block less, and is forced anyway.
    for t in range(5 * small["l_sel"], 250):
        c = t // small["l_sel"]
        assert sel[0, t, 0].tolist() == [0, 1, 2, c - 1, c], t


def test_blocks_chosen_by_all_and_by_none_get_their_gradient(small, make_inputs, agree):
    S, l_sel = 250, small["l_sel"]
    inputs = make_inputs(S, B=1, H=6, G=1)
    with torch.no_grad():
        inputs["q"].abs_()
        inputs["k_cmp"] *= 0.1
        inputs["k_cmp"][:, 7 * l_sel : 8 * l_sel] += 3.0
    _, sel, _ = agree(_only(1, inputs), **small)
    assert (sel[0, 10 * l_sel :, 0] == 7).any(-1).all()
    # Only the last queries count now: a block that none of them chose gets exactly nothing.
    tail = nsa_attention(**_only(1, inputs), **small)[:, 12 * l_sel :].square().sum()
    chosen = set(sel[0, 12 * l_sel :].flatten().tolist())
    assert len(chosen) < -(-S // l_sel)
    for gradient in torch.autograd.grad(tail, (inputs["k_sel"], inputs["v_sel"])):
        for j, block in enumerate(gradient.split(l_sel, dim=1)):
            assert bool(block.abs().max() > 0) == (j in chosen), j
