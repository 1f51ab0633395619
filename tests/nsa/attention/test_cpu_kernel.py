"""The kernel in C gives what PyTorch's operations give, and serves only where it does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from nsa.attention import NsaCache, Sizes, counters, decode, nsa_attention
from nsa.attention.cpu import library, token
from nsa.attention.settings import c_compiler

BRANCHES = [f"{kind}_{branch}" for branch in ("cmp", "sel", "win") for kind in "kv"]
SIZES = (
    {"l": 8, "d": 4, "l_sel": 8, "n_sel": 5, "w": 16},
    {"l": 32, "d": 4, "l_sel": 4, "n_sel": 5, "w": 9},
    {"l": 8, "d": 8, "l_sel": 24, "n_sel": 3, "w": 20},
    {"l": 12, "d": 4, "l_sel": 8, "n_sel": 4, "w": 1},
    {"l": 1, "d": 1, "l_sel": 3, "n_sel": 6, "w": 200},
)
needs_compiler = pytest.mark.needs("compiler")


@pytest.fixture(autouse=True)
def counted() -> None:
    counters.clear()


def _served() -> dict[str, str]:
    return {row.path: row.reason for row in counters.snapshot() if row.operation == "decode"}


def _cache_of(inputs, sizes, tokens):
    B, S, G, D = inputs["k_sel"].shape
    dtype = inputs["k_sel"].dtype
    cache = NsaCache(B=B, G=G, D=D, capacity=S, sizes=Sizes(**sizes), dtype=dtype)
    if tokens:
        cache.append(*(inputs[name].detach()[:, :tokens] for name in BRANCHES))
    return cache


def _last(inputs, cache, **options):
    at = cache.length - 1
    return decode(
        *(inputs[name].detach()[:, at : at + 1] for name in ("q", "gates")), cache, **options
    )


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [SIZES[0], SIZES[1], SIZES[3]], ids=str)
def test_of_equal_blocks_the_lowest_are_selected(sizes, dtype, make_inputs):
    inputs = make_inputs(24, B=1, H=6, G=1, D=16, dtype=dtype)
    again = {name: x.detach().repeat(1, 14, *[1] * (x.dim() - 2)) for name, x in inputs.items()}
    cache = _cache_of(again, sizes, 336)
    _, ids = _last(again, cache)
    assert _served() == {"c": ""}
    period, own = 24 // sizes["l_sel"], 336 // sizes["l_sel"] - 1
    whole = -(-(sizes["l"] // sizes["d"] - 1) // (sizes["l_sel"] // sizes["d"]))
    free = [block for block in ids.flatten().tolist() if 0 < block < own - 1]
    for block in free:
        earlier = block - period
        assert earlier < whole or earlier == 0 or earlier in free, (block, free)


@needs_compiler
def test_large_scores_are_attended_as_softmax_attends_them(make_inputs):
    inputs = make_inputs(100, B=1, H=4, G=2, D=16, dtype=torch.float32)
    inputs = {name: x.detach() * (300 if name[0] in "qk" else 1) for name, x in inputs.items()}
    exact = {name: x.double() for name, x in inputs.items()}
    expected = nsa_attention(**exact, backend="reference", **SIZES[0])
    out, _ = _last(inputs, _cache_of(inputs, SIZES[0], 100))
    torch.testing.assert_close(out.double(), expected[:, -1:], rtol=1e-4, atol=1e-4)
    assert _served() == {"c": ""}


@needs_compiler
def test_shapes_of_every_kind_are_attended_and_nothing_is_written_beyond_its_room(
    monkeypatch,
):
    """The kernel is given its room by its caller: 64 numbers behind that stay as they are."""
    behind: list[torch.Tensor] = []
    empty = torch.empty

    def guarded(*shape, **options):
        if len(shape) > 1:
            return empty(*shape, **options)
        room = empty(shape[0] + 64, **options)
        behind.append(room[shape[0] :].fill_(12345.0))
        return room[: shape[0]]

    drawn = random.Random(0)
    for seed in range(40):
        d = drawn.choice([1, 2, 3, 4, 8])
        sizes = Sizes(
            l=d * drawn.randint(1, 40), d=d, l_sel=d * drawn.randint(1, 10),
            n_sel=drawn.randint(3, 9), w=drawn.randint(1, 70),
        )  # fmt: skip
        B, G, R = drawn.choice([1, 2]), drawn.choice([1, 2, 3]), drawn.choice([1, 2, 5, 6, 7, 13])
        D, S = 16 * drawn.choice([1, 2, 3, 4, 8]), drawn.randint(1, 400)
        made = torch.Generator().manual_seed(seed)
        cache = NsaCache(B=B, G=G, D=D, capacity=S + drawn.randint(0, 30), sizes=sizes)
        cache.append(*torch.randn(6, B, S, G, D, generator=made))
        q = torch.randn(B, 1, G * R, D, generator=made)
        gates = torch.rand(B, 1, G * R, 3, generator=made)
        with monkeypatch.context() as patched:
            patched.setattr(token.torch, "empty", guarded)
            out, ids = decode(q, gates, cache)
        expected, chosen = decode(q, gates, cache, reading="v2")
        assert torch.equal(ids, chosen), (sizes, S)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert len(behind) >= 40
    assert all((numbers == 12345.0).all() for numbers in behind)


@needs_compiler
def test_scale_strides_and_inference_mode_change_nothing(make_inputs):
    inputs = make_inputs(60, B=2, H=4, G=2, D=16, dtype=torch.float32)
    cache = _cache_of(inputs, SIZES[0], 60)
    q, gates = (inputs[name].detach()[:, -1:] for name in ("q", "gates"))
    assert not q.is_contiguous()
    with torch.inference_mode():
        out, ids = decode(q, gates, cache, scale=0.7)
    expected, chosen = _decoding_by_operations(q, gates, cache, 0.7)
    torch.testing.assert_close(out, expected, rtol=2e-6, atol=2e-6)
    assert torch.equal(ids, chosen)
    assert _served()["c"] == ""


def _decoding_by_operations(q, gates, cache, scale):
    return decode(q, gates, cache, scale=scale, reading="v2")


def test_what_it_cannot_serve_goes_through_pytorch_and_says_why(make_inputs):
    cases = (
        ({"D": 8, "dtype": torch.float32}, "16 numbers"),
        ({"D": 16, "dtype": torch.float64}, "float64"),
        ({"D": 16, "dtype": torch.float16}, "float16"),
    )
    for made, why in cases:
        counters.clear()
        inputs = make_inputs(20, H=4, G=2, **made)
        _last(inputs, _cache_of(inputs, SIZES[0], 20))
        assert list(_served()) == ["torch"]
        assert why in _served()["torch"]
    inputs = make_inputs(20, B=5, H=4, G=2, D=16, dtype=torch.float32)
    cache = _cache_of(inputs, SIZES[0], 20)
    torch.set_num_threads(2)
    try:
        assert "2 threads" in token.call_reason(
            inputs["q"].detach(), inputs["gates"].detach(), cache
        )
    finally:
        torch.set_num_threads(1)


@needs_compiler
@pytest.mark.parametrize(
    ("q", "gates"),
    [
        ((2, 1, 4, 16), (2, 1, 4, 3)), ((1, 2, 4, 16), (1, 2, 4, 3)), ((1, 1, 5, 16), (1, 1, 5, 3)),
        ((1, 1, 4, 32), (1, 1, 4, 3)), ((1, 1, 4, 16), (1, 1, 4, 1)), ((1, 1, 1, 16), (1, 1, 1, 3)),
        ((4, 16), (4, 3)),
    ],
    ids=str,
)  # fmt: skip
def test_a_token_that_is_not_of_its_cache_is_refused(q, gates, make_inputs):
    """In C it would read what lies behind the cache, and answer with that."""
    inputs = make_inputs(20, B=1, H=4, G=2, D=16, dtype=torch.float32)
    cache = _cache_of(inputs, SIZES[0], 20)
    with pytest.raises(ValueError, match=r"^(q is|gates are) \("):
        decode(torch.ones(q), torch.ones(gates), cache)
    assert _served() == {}
    _last(inputs, cache)
    assert "c" in _served()


@pytest.fixture
def quickly_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its speed is of no matter: a fifth of the time."""
    monkeypatch.setattr(library, "_FLAGS", ("-O0", *library._FLAGS[1:]))


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A machine on which the kernel has not been asked for."""
    from importlib import import_module

    decoding = import_module("nsa.attention.decode")
    asked = (library.load_library, token.load_functions, decoding._kernel)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for each in asked:
        each.cache_clear()
    yield decoding._kernel
    for each in asked:
        each.cache_clear()


@pytest.mark.long
@needs_compiler
def test_it_is_compiled_once_and_kept_from_others(anew, tmp_path):
    assert isinstance(anew(), dict)
    (built,) = (tmp_path / "gonogo" / "nsa-cpu").iterdir()
    made_at = built.stat().st_mtime_ns
    assert built.parent.stat().st_mode & 0o077 == 0
    compiler = [c_compiler() or ""]
    assert library.build_library(compiler, built.parent, token.KERNEL) == built
    assert built.stat().st_mtime_ns == made_at
    other = tmp_path / "other.c"
    other.write_text(f"{token.KERNEL.source.read_text()}\nint other;\n")
    changed = token.KERNEL._replace(source=other)
    assert library.build_library(compiler, built.parent, changed) != built


@pytest.mark.usefixtures("quickly_compiled")
@needs_compiler
@pytest.mark.long
def test_a_kernel_that_is_wrong_here_does_not_serve(anew, tmp_path, monkeypatch, make_inputs):
    wrong = tmp_path / "decode.c"
    source = token.KERNEL.source.read_text()
    wrong.write_text(source.replace("1.6666665459e-1f", "1.6e-1f"))
    monkeypatch.setattr(token, "KERNEL", token.KERNEL._replace(source=wrong))
    inputs = make_inputs(20, H=4, G=2, D=16, dtype=torch.float32)
    out, _ = _last(inputs, _cache_of(inputs, SIZES[0], 20))
    assert "is not PyTorch's here" in _served()["torch"]
    torch.testing.assert_close(
        out[:, 0], nsa_attention(**inputs, **SIZES[0])[:, 19].detach(), rtol=2e-6, atol=2e-6
    )


@pytest.mark.parametrize(
    ("named", "value", "why"),
    [
        ("CC", "/bin/false", "could not be built"),
        ("CC", "/nowhere/cc", "could not be built"),
        ("NSA_CPU_KERNELS", "0", "switches it off"),
    ],
)
def test_without_a_compiler_or_by_choice_pytorch_serves(
    named, value, why, anew, monkeypatch, make_inputs
):
    monkeypatch.setenv(named, value)
    inputs = make_inputs(20, H=4, G=2, D=16, dtype=torch.float32)
    _last(inputs, _cache_of(inputs, SIZES[0], 20))
    assert list(_served()) == ["torch"]
    assert why in _served()["torch"]


@needs_compiler
@pytest.mark.parametrize(
    "options", ["-fvisibility=hidden", pytest.param("-fsanitize=address", marks=pytest.mark.long)]
)
@pytest.mark.usefixtures("quickly_compiled")
def test_what_cannot_be_loaded_or_is_not_the_kernel_ends_no_program(
    options, anew, tmp_path, monkeypatch
):
    """A sanitizer's runtime ends the process that loads it; C++ has other names, too."""
    monkeypatch.setenv("CC", f"{c_compiler()} {options}")
    assert "could not be built" in str(anew())
    assert list((tmp_path / "gonogo" / "nsa-cpu").iterdir()) == []
