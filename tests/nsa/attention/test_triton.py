"""The Triton kernels: right under the interpreter, and legal on sm_80 and sm_90."""

import math
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from nsa.attention import BackendUnavailableError, available_backends, nsa_attention

sys.path.insert(0, str(Path(__file__).parent))
from triton_cases import CASES, GATHERED, OTHERS
from triton_programs import INTERPRETED, LIMIT_S, run_program

NAMES = (*CASES, *(f"{name}, gathered" for name in GATHERED))
pytestmark = pytest.mark.timeout(LIMIT_S + 100)
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def interpreted():
    """Result of each case, from one process that interprets the kernels."""
    told = run_program("triton_cases.py", *NAMES, *OTHERS, env=INTERPRETED)
    return {result["case"]: result for result in told}


@pytest.mark.long
@needs_triton
@pytest.mark.parametrize("name", NAMES)
def test_interpreted_kernels_agree_with_the_fp64_reference(interpreted, name):
    result, case = interpreted[name], name.removesuffix(", gathered")
    output, *gradients = result["errors"]
    assert result["ids"]
    assert result["hot"] in (None, True), "the hot block was chosen by many"
    assert output < (2e-3 if case == "fp16" else 1e-5)
    # A softmax that is one-hot leaves gradients of rounding errors: they must be finite.
    assert max(gradients) < {"fp16": 2e-3, "logits times 1000": math.inf}.get(case, 1e-4)


@pytest.mark.long
@needs_triton
@pytest.mark.parametrize("form", ["", ", gathered"], ids=["bits", "gathered"])
def test_interpreted_kernels_serve_at_the_edges(interpreted, form):
    found = {name: interpreted[f"{name}{form}"] for name in OTHERS if "gathered" not in name}
    assert found["a NaN"]["contained"], "it breaks neither other items nor the ids"
    assert found["an empty batch"]["shapes"] == [[0, 80, 4, 8], [0, 80, 2, 4], [0, 80, 2, 8]]
    assert found["one key"]["largest"] == 0.0, "a query with one key moves neither with its score"
    assert found["one key"]["moved"]
    assert "first derivatives only" in found["a second derivative"]["refused"]


# S, capability, dtype, D, l_sel; with more than 32 blocks they are gathered instead of bits.
LAUNCHED = (
    "1500", "2048", "2112", "3001", "1500,80", "2112,80", "2112,80,bfloat16,256,64",
    "4224,80,bfloat16,128,128", "2112,80,float32,128,64",
)  # fmt: skip


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    """Kernels launched and compiled in each case, by a process that compiles for a GPU."""
    cache = {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    told = run_program("triton_launches.py", *LAUNCHED, env=cache)
    return {result["case"]: result for result in told}


@pytest.mark.long
@needs_triton
@pytest.mark.parametrize("case", LAUNCHED)
def test_every_kernel_compiles_to_machine_code_that_fits_even_with_the_largest_blocks(
    launches, case
):
    from nsa.attention.backends import triton_call_reason

    given = case.split(",")
    _, capability, dtype, D, l_sel = given + ["90", "bfloat16", "64", "64"][len(given) - 1 :]
    q = torch.empty(1, 1, 12, int(D), dtype=getattr(torch, dtype))
    assert triton_call_reason(q, 2, int(l_sel)) is None
    assert launches[case]["shared"] <= {"80": 163, "90": 227}[capability] * 1024


@pytest.mark.long
@needs_triton
def test_a_new_length_compiles_nothing_anew(launches):
    assert set(launches["1500"]["compiled"]) == set(launches["1500"]["launched"])
    assert launches["2048"]["compiled"] == launches["3001"]["compiled"] == []


@pytest.mark.long
@needs_triton
@pytest.mark.parametrize("S", [2048, 3001], ids=["bits", "gathered"])
@pytest.mark.parametrize("R", [1, 6, 16])
@pytest.mark.parametrize("D", [64, 128])
def test_ptxas_neither_spills_much_nor_lets_a_product_wait_for_the_other(tmp_path, D, R, S):
    """Half of the time at 2048 tokens was one kernel whose products ptxas had serialised."""
    cache = {"TRITON_CACHE_DIR": str(tmp_path)}
    (told,) = run_program("triton_launches.py", f"{S},90,bfloat16,{D},64,{R}", env=cache)
    assert {row["kernel"] for row in told["machine"]} == set(told["launched"])
    for row in told["machine"]:
        assert not row["serial"], row
        assert row["spilled"] <= 64, row
        assert row["registers"] <= (128 if (row["kernel"], D) == ("band_forward", 64) else 255), row


@pytest.mark.long
@needs_triton
@pytest.mark.parametrize("S", ["2048", "3001"], ids=["bits", "gathered"])
def test_nothing_waits_for_the_gpu(launches, S):
    asking = {"_local_scalar_dense", "item", "nonzero", "masked_select", "repeat_interleave",
              "unique", "is_nonzero", "equal", "bincount", "index"}  # fmt: skip
    assert {"empty", "_to_copy"} & set(launches[S]["torch"])
    assert not asking & set(launches[S]["torch"])


def test_without_a_gpu_the_backend_says_what_it_needs(small, make_inputs):
    reason = available_backends("cpu")["triton"]
    assert "CUDA" in reason or "not installed" in reason
    with pytest.raises(BackendUnavailableError, match="triton"):
        nsa_attention(**make_inputs(20, dtype=torch.float32), backend="triton", **small)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"dtype": torch.float64}, "float64"), ({"D": 300}, "D = 256"), ({"l_sel": 256}, "l_sel"),
        ({"l_sel": 64, "D": 256}, "exceeds"),
        ({"l_sel": 128, "D": 256, "dtype": torch.bfloat16}, "exceeds"), ({"H": 65}, "heads"),
    ],
    ids=["fp64", "wide heads", "long blocks", "large blocks", "large in bf16", "many heads"],
)  # fmt: skip
def test_a_call_that_the_tiles_do_not_cover_is_refused_with_the_reason(change, word):
    from nsa.attention.backends import triton_call_reason

    sizes = {"dtype": torch.float32, "D": 64, "l_sel": 64, "H": 12} | change
    q = torch.empty(1, 1, sizes["H"], sizes["D"], dtype=sizes["dtype"])
    assert word in triton_call_reason(q, 1, sizes["l_sel"])
    fine = torch.empty(1, 1, 16, 64, dtype=torch.bfloat16)
    assert triton_call_reason(fine, 1, 64) is None


def test_a_gpu_with_little_shared_memory_serves_what_fits(monkeypatch):
    from nsa.attention import backends

    monkeypatch.setattr(backends, "_shared_bytes", lambda _device: 99 * 1024)
    for width, l_sel, serves in ((64, 64, True), (128, 64, False), (64, 128, True)):
        q = torch.empty(1, 1, 12, width, dtype=torch.bfloat16)
        assert (backends.triton_call_reason(q, 2, l_sel) is None) is serves


@pytest.mark.gpu
@needs_triton
@on_gpu
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-4), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)],
    ids=str,
)
@pytest.mark.parametrize(("H", "G"), [(12, 2), (4, 4), (16, 1)])
@pytest.mark.parametrize(("S", "bits"), [(1, 32), (33, 32), (1025, 32), (1500, 32), (1500, 0)])
def test_compiled_kernels_agree_with_the_reference(
    S, bits, H, G, dtype, tolerance, make_inputs, run, monkeypatch
):
    from nsa.attention.compression import compress_tokens
    from nsa.attention.gpu import function
    from nsa.attention.precision import exact_products

    monkeypatch.setattr(function, "MOST_BLOCKS_AS_BITS", bits)
    inputs = {n: x.detach().cuda() for n, x in make_inputs(S, H=H, G=G, D=64, dtype=dtype).items()}
    # Both start from the same rounded blocks, else near ties would be decided by that rounding.
    blocks = tuple(compress_tokens(inputs[n], 32, 16).to(dtype) for n in ("k_cmp", "v_cmp"))
    exact = tuple(x.float() for x in blocks)
    single = {n: x.float() for n, x in inputs.items()}
    out, sel, grads = run(inputs, backend="triton", compressed=blocks)
    with exact_products(torch.device("cuda")):
        expected, ids, wanted = run(single, backend="reference", compressed=exact)
    same = (sel == ids).all(-1)
    assert same.float().mean() > 0.99
    rows = same[..., None].repeat_interleave(H // G, 2).expand_as(out)
    assert (out - expected)[rows].norm() <= tolerance * expected[rows].norm()
    for name in inputs:
        size = wanted[name].norm().clamp_min(1e-2 * wanted[name].numel() ** 0.5)
        slack = 1 if same.all() else 30  # a query between two equal blocks moves its own row
        assert (grads[name] - wanted[name]).norm() <= slack * tolerance * size, name


@pytest.mark.gpu
@needs_triton
@on_gpu
@pytest.mark.parametrize("bits", [32, 0], ids=["bits", "gathered"])
def test_compiled_kernels_repeat_bit_by_bit(bits, make_inputs, run, monkeypatch):
    from nsa.attention.gpu import function

    monkeypatch.setattr(function, "MOST_BLOCKS_AS_BITS", bits)
    inputs = make_inputs(1500, H=12, G=2, D=64, dtype=torch.bfloat16)
    inputs = {n: x.detach().cuda() for n, x in inputs.items()}
    first, second = (run(inputs, backend="triton") for _ in range(2))
    assert torch.equal(first[0], second[0])
    for name in inputs:
        assert torch.equal(first[2][name], second[2][name]), name


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("S", [33, 1500])
def test_flash_kernels_for_prefix_and_window_agree_with_the_pieces(
    S, make_inputs, run, monkeypatch
):
    from nsa.attention import torch_backend
    from nsa.attention.kernels import PIECES, Choice

    inputs = make_inputs(S, H=12, G=2, D=64, dtype=torch.bfloat16)
    inputs = {n: x.detach().cuda() for n, x in inputs.items()}
    out, sel, grads = run(inputs, backend="torch")
    monkeypatch.setattr(torch_backend, "choose_kernel", lambda *_, **__: Choice(PIECES))
    expected, ids, wanted = run(inputs, backend="torch")
    assert torch.equal(sel, ids)
    assert (out - expected).norm() <= 2e-2 * expected.norm()
    for name in inputs:
        size = wanted[name].norm().clamp_min(1e-2 * wanted[name].numel() ** 0.5)
        assert (grads[name] - wanted[name]).norm() <= 2e-2 * size, name
