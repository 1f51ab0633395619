"""Generation with a cache gives what the batched operation gives, and reads no more."""

from importlib import import_module

import pytest
import torch

from nsa.attention import NsaCache, Sizes, decode, nsa_attention, prefill
from nsa.attention.compressed import compressed_logits
from tests.nsa.attention.conftest import BRANCHES


def _cache(inputs, sizes, capacity=None, **options):
    B, S, G, D = inputs["k_sel"].shape
    dtype = inputs["k_sel"].dtype
    return NsaCache(
        B=B, G=G, D=D, capacity=capacity or S, sizes=Sizes(**sizes), dtype=dtype, **options
    )


def _step(inputs, t):
    return {name: x.detach()[:, t : t + 1] for name, x in inputs.items()}


def _append(cache, token):
    cache.append(*(token[name] for name in BRANCHES))


def _decode_all(inputs, cache, out, ids, tolerance, **options):
    """Every position gives the rows of a batched result."""
    for t in range(cache.length, out.shape[1]):
        token = _step(inputs, t)
        _append(cache, token)
        step, step_ids = decode(token["q"], token["gates"], cache, **options)
        assert torch.equal(step_ids[:, 0], ids[:, t]), t
        torch.testing.assert_close(step[:, 0], out[:, t], rtol=tolerance, atol=tolerance)


SIZES = (
    {"l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20},
    {"l": 32, "d": 4, "l_sel": 4, "n_sel": 5, "w": 9},
    {"l": 8, "d": 8, "l_sel": 24, "n_sel": 3, "w": 20},
    {"l": 12, "d": 4, "l_sel": 8, "n_sel": 4, "w": 1},
    {"l": 1, "d": 1, "l_sel": 3, "n_sel": 6, "w": 200},
)


@pytest.mark.parametrize(
    ("dtype", "D", "tolerance"),
    [
        (torch.float64, 8, 1e-12), (torch.float32, 8, 2e-6), (torch.float32, 16, 2e-6),
        (torch.bfloat16, 16, 2e-2),
    ],
    ids=["fp64", "fp32", "fp32 in C", "bf16 in C"],
)  # fmt: skip
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_position_equals_the_batched_result(dtype, D, tolerance, sizes, make_inputs):
    inputs = make_inputs(110, H=6, G=2, D=D, dtype=dtype)
    out, ids = nsa_attention(**inputs, return_selection=True, **sizes)
    cache = _cache(inputs, sizes)
    assert cache.k_blocks.dtype == dtype  # rounded as the batched operation rounds
    _decode_all(inputs, cache, out, ids, tolerance)


@pytest.mark.parametrize("reading", ["v1", "v2"])
def test_merged_ranges_give_the_same(reading, small, make_inputs):
    inputs = make_inputs(110, B=1)
    out, ids = nsa_attention(**inputs, return_selection=True, **small)
    _decode_all(inputs, _cache(inputs, small), out, ids, 1e-12, reading=reading)


@pytest.mark.parametrize("S", [1, 7, 8, 65, 130])
def test_batched_and_sequential_prefill_give_the_same_output_and_the_same_cache(
    S, small, make_inputs
):
    inputs = make_inputs(S + 5)
    prompt = {name: x.detach()[:, :S] for name, x in inputs.items()}
    caches = [_cache(inputs, small) for _ in range(2)]
    outs = [
        prefill(**prompt, cache=cache, batched=batched)
        for cache, batched in zip(caches, (True, False), strict=True)
    ]
    torch.testing.assert_close(*outs, rtol=1e-11, atol=1e-12)
    out, ids = nsa_attention(**inputs, return_selection=True, **small)
    for cache in caches:
        _decode_all(inputs, cache, out, ids, 1e-12)


def test_a_token_reads_only_its_blocks_selected_tokens_and_window(small, make_inputs):
    inputs = make_inputs(150, B=1, G=1)
    cache = _cache(inputs, small, capacity=300)
    prefill(**{name: x.detach() for name, x in inputs.items()}, cache=cache)
    last = _step(inputs, 149)
    out, ids = decode(last["q"], last["gates"], cache)
    chosen = set(ids[0, 0, 0].tolist())
    unread = [s for s in range(300) if s // small["l_sel"] not in chosen or s > 149]
    cache.k_sel[:, :, unread] = cache.v_sel[:, :, unread] = torch.nan
    cache.k_blocks[:, cache.blocks :] = cache.v_blocks[:, cache.blocks :] = torch.nan
    assert torch.equal(decode(last["q"], last["gates"], cache)[0], out)
    assert len(unread) >= 300 - small["n_sel"] * small["l_sel"]
    assert cache.blocks == (150 - small["l"]) // small["d"] + 1
    assert cache.k_ring.shape[2] == small["w"]


def test_a_full_an_empty_and_a_used_cache_are_refused(small, make_inputs):
    inputs = {name: x.detach() for name, x in make_inputs(10).items()}
    cache = _cache(inputs, small)
    with pytest.raises(ValueError, match="append"):
        decode(inputs["q"][:, :1], inputs["gates"][:, :1], cache)
    prefill(**inputs, cache=cache)
    with pytest.raises(ValueError, match="holds 10 tokens, not 11"):
        _append(cache, _step(inputs, 0))
    with pytest.raises(ValueError, match="empty cache"):
        prefill(**inputs, cache=cache)


@pytest.mark.parametrize("dim", range(4))
def test_tokens_of_another_shape_are_refused_and_nothing_of_them_is_kept(small, make_inputs, dim):
    inputs = {key: x.detach() for key, x in make_inputs(10).items()}
    cache, token = _cache(inputs, small), _step(inputs, 0)
    for name in ("k_cmp", "v_sel", "k_win"):
        twice = torch.cat([token[name]] * 2, dim=dim)
        one = token[name].select(dim, 0).unsqueeze(dim)  # would be spread over all
        for other in (twice, one):
            if other.shape != token[name].shape:
                with pytest.raises(ValueError, match=r"expected \("):
                    _append(cache, token | {name: other})
    assert cache.length == 0
    assert not cache.k_sel.any()


@pytest.mark.parametrize("begun_in_it", [False, True])
def test_a_cache_is_filled_in_inference_mode_and_without_it_and_keeps_no_buffer(
    begun_in_it, small, make_inputs
):
    inputs = {name: x.detach() for name, x in make_inputs(60).items()}
    out, _ = nsa_attention(**inputs, **small, return_selection=True)
    with torch.inference_mode(begun_in_it):
        cache = _cache(inputs, small)
    buffers = {name: x[:, :1].clone() for name, x in inputs.items()}
    for t in range(60):
        for name, buffer in buffers.items():
            buffer.copy_(inputs[name][:, t : t + 1])
        with torch.inference_mode(t % 7 < 3):
            _append(cache, buffers)
            step, _ = decode(buffers["q"], buffers["gates"], cache)
        torch.testing.assert_close(step[:, 0].clone(), out[:, t], rtol=1e-12, atol=1e-12)


def test_a_token_is_not_rounded_by_a_switch_of_the_process(monkeypatch):
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if matmul is None:
        pytest.skip("this PyTorch has no such switch")
    module, seen = import_module("nsa.attention.decode"), []

    def logits(*read):
        seen.append(matmul.fp32_precision)
        return compressed_logits(*read)

    monkeypatch.setattr(module, "compressed_logits", logits)
    monkeypatch.setattr(module, "_kernel", lambda: "operations are asked for")
    cache = NsaCache(B=1, G=1, D=16, capacity=3, sizes=Sizes(l=2, d=1, l_sel=2, n_sel=3, w=2))
    cache.append(*torch.randn(6, 1, 3, 1, 16))
    matmul.fp32_precision = "bf16"
    try:
        decode(torch.randn(1, 1, 2, 16), torch.rand(1, 1, 2, 3), cache)
    finally:
        matmul.fp32_precision = "none"
    assert seen == ["ieee"]
