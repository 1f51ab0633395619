"""Foreign kernels for prefix and window: who is asked, who serves, and what the counters say."""

import sys
from types import SimpleNamespace

import pytest
import torch

from nsa.attention import Kernels, counters, dense_attention, nsa_attention, use_kernels
from nsa.attention import kernels as kernels_module
from nsa.attention.kernels import (
    FLASH_ATTN,
    PIECES,
    SDPA,
    SDPA_FLASH,
    Choice,
    attend_causally,
    choose_kernel,
    flash_share,
)


@pytest.fixture(autouse=True)
def _fresh():
    counters.clear()
    yield
    counters.clear()
    use_kernels(Kernels())


def _counts():
    return {(row.operation, row.path): (row.calls, row.reason) for row in counters.snapshot()}


@pytest.mark.parametrize("S", [5, 64, 65, 150])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-5)])
def test_the_prefix_by_sdpa_gives_the_same(
    S, dtype, tolerance, small, make_inputs, agree, monkeypatch
):
    monkeypatch.setattr(kernels_module, "_flash_reason", lambda q: "")
    monkeypatch.setattr(kernels_module, "_windows_missing", lambda: "too old")
    agree(make_inputs(S, H=6, dtype=dtype), tolerance, **small)
    assert _counts()["prefix", SDPA_FLASH] == (1, "")
    assert _counts()["window", PIECES] == (1, "too old")


def test_both_parts_by_a_foreign_kernel_join_into_the_same_result(
    small, make_inputs, agree, monkeypatch
):
    def flash_attn_func(q, k, v, *, softmax_scale, causal, window_size):
        assert causal
        S = q.shape[1]
        t, s = torch.arange(S)[:, None], torch.arange(S)
        hidden = (s > t) | ((s <= t - window_size[0] - 1) & (window_size[0] >= 0))
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
        logits = softmax_scale * torch.einsum("bshd,bkhd->bhsk", q, k)
        weights = logits.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("bhsk,bkhd->bshd", weights, v)

    monkeypatch.setattr(kernels_module, "_flash_reason", lambda q: "")
    monkeypatch.setattr(kernels_module, "_flash_attn_missing", lambda: "")
    package = SimpleNamespace(flash_attn_func=flash_attn_func)
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    agree(make_inputs(150), kernels=Kernels(flash_attn=True), **small)
    assert _counts()["prefix", FLASH_ATTN] == (1, "")
    assert _counts()["window", FLASH_ATTN] == (1, "")


@pytest.fixture
def half_on_cuda():
    """What the choice looks at of a tensor that flash kernels could serve."""
    return SimpleNamespace(
        device=torch.device("cuda"), dtype=torch.bfloat16, shape=(1, 100, 12, 64)
    )


@pytest.mark.parametrize("window", [True, False])
def test_half_precision_on_cuda_is_served_by_flash_unless_it_is_switched_off(
    window, half_on_cuda, monkeypatch
):
    def chosen(**asked):
        return tuple(choose_kernel(Kernels(**asked), half_on_cuda, window=window))

    assert kernels_module._windows_missing() == ""
    assert chosen() == (SDPA, "")
    monkeypatch.setattr(kernels_module, "_windows_missing", lambda: "too old")
    assert chosen() == ((PIECES, "too old") if window else (SDPA, ""))
    monkeypatch.undo()
    monkeypatch.setattr(kernels_module, "_flash_attn_missing", lambda: "")
    assert chosen(flash_attn=True) == (FLASH_ATTN, "")
    monkeypatch.setattr(kernels_module, "_flash_attn_missing", lambda: "it is not installed")
    assert chosen(flash_attn=True) == (SDPA, "it is not installed")
    monkeypatch.setattr(torch.backends.cuda, "flash_sdp_enabled", lambda: False)
    assert chosen() == (PIECES, "flash SDPA is switched off")


def test_a_window_is_given_to_flash_as_the_tokens_before_the_query(make_inputs, monkeypatch):
    from torch.nn.attention import varlen

    seen = {}

    def varlen_attn(q, k, v, edges_q, edges_k, most_q, most_k, **options):
        seen.update(options, shape=q.shape, edges=edges_q.tolist(), most=most_k)
        return q

    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    inputs = make_inputs(30, B=2, H=6, G=2)
    q = inputs["q"]
    out = attend_causally("window", Choice(path=SDPA), q, inputs["k_win"], inputs["v_win"], 0.5, 20)
    assert torch.equal(out, q)
    assert seen["window_size"] == (19, 0)
    assert seen["edges"] == [0, 30, 60]
    assert seen["scale"] == 0.5
    assert seen["shape"] == (60, 6, 8)
    assert _counts() == {("window", SDPA_FLASH): (1, "")}


def test_a_wish_that_the_cpu_cannot_grant_is_counted_with_its_reason(small, make_inputs):
    inputs = make_inputs(80, dtype=torch.float32)
    with torch.no_grad():
        for _ in range(3):
            nsa_attention(**inputs, kernels=Kernels(flash_attn=True), **small)
        dense_attention(
            inputs["q"], inputs["k_sel"], inputs["v_sel"], kernels=Kernels(flash_attn=True)
        )
    counts = _counts()
    assert counts["attention", "torch"] == (3, "the caller chooses its kernels")
    for operation, path in (("window", PIECES), ("prefix", PIECES)):
        assert counts[operation, path][0] == 3
        assert "CUDA" in counts[operation, path][1]
    assert counts["dense", SDPA_FLASH][0] == 1
    assert "CUDA" in counts["dense", SDPA_FLASH][1]


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "no flash"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_kernel_that_is_counted_is_the_one_that_a_profiler_sees(dtype, flash, make_inputs):
    inputs = make_inputs(40, H=6, G=2, dtype=dtype)
    before = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(flash)
    try:
        with torch.profiler.profile() as profile:
            dense_attention(inputs["q"], inputs["k_sel"], inputs["v_sel"])
    finally:
        torch.backends.cuda.enable_flash_sdp(before)
    ran = {event.key for event in profile.key_averages()}
    assert ("aten::_scaled_dot_product_flash_attention_for_cpu" in ran) is flash
    assert ("aten::_scaled_dot_product_attention_math" in ran) is not flash
    path = SDPA_FLASH if flash else "sdpa:math"
    assert _counts() == {("dense", path): (1, "")}
    assert flash_share(counters.snapshot()) == float(flash)


def test_the_share_of_flash_counts_calls_of_dense_operations_only():
    assert flash_share(counters.snapshot()) is None
    for operation, path, calls in (
        ("attention", "torch", 5),
        ("prefix", FLASH_ATTN, 1),
        ("window", SDPA_FLASH, 1),
        ("window", PIECES, 3),
        ("dense", "sdpa:cudnn", 1),
    ):
        for _ in range(calls):
            counters.count(operation, path)
    assert flash_share(counters.snapshot()) == pytest.approx(2 / 6, abs=1e-6)
    counters.clear()
    counters.count("attention", "triton")
    assert flash_share(counters.snapshot()) is None


def test_dense_attention_is_causal_attention_over_groups(make_inputs):
    inputs = {n: x.detach() for n, x in make_inputs(40, H=6, G=2).items()}
    q, k, v = (inputs[name].transpose(1, 2) for name in ("q", "k_sel", "v_sel"))
    logits = q @ k.repeat_interleave(3, 1).transpose(2, 3) / 8**0.5
    weights = logits.masked_fill(torch.ones(40, 40).triu(1).bool(), -torch.inf).softmax(-1)
    expected = (weights @ v.repeat_interleave(3, 1)).transpose(1, 2)
    got = dense_attention(inputs["q"], inputs["k_sel"], inputs["v_sel"])
    torch.testing.assert_close(got, expected)
