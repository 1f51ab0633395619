"""The kernel in C for one token: its memory, and that it serves only where it is right.

That its numbers are right is in test_decode and test_exactness.
"""

import random
from importlib import import_module

import pytest
import torch

from nsa.attention import NsaCache, Sizes, counters, decode, nsa_attention
from nsa.attention.cpu import decode as token_kernel
from nsa.attention.cpu import library
from nsa.attention.settings import c_compiler
from tests.nsa.attention.conftest import BRANCHES

SIZES = {"l": 8, "d": 4, "l_sel": 8, "n_sel": 5, "w": 16}
needs_compiler = pytest.mark.needs("compiler")


@pytest.fixture(autouse=True)
def counted():
    counters.clear()


def _served():
    return {row.path: row.reason for row in counters.snapshot() if row.operation == "decode"}


def _cache_of(inputs):
    B, S, G, D = inputs["k_sel"].shape
    dtype = inputs["k_sel"].dtype
    cache = NsaCache(B=B, G=G, D=D, capacity=S, sizes=Sizes(**SIZES), dtype=dtype)
    cache.append(*(inputs[name].detach() for name in BRANCHES))
    return cache


def _last(inputs, **options):
    q, gates = (inputs[name].detach()[:, -1:] for name in ("q", "gates"))
    return decode(q, gates, _cache_of(inputs), **options)


@needs_compiler
def test_shapes_of_every_kind_are_attended_and_nothing_is_written_beyond_its_room(monkeypatch):
    """The kernel is given its room by its caller: 64 numbers behind that stay as they are."""
    behind, empty = [], torch.empty

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
        D, S = 16 * drawn.choice([1, 2, 3, 4, 8]), drawn.randint(1, 300)
        made = torch.Generator().manual_seed(seed)
        cache = NsaCache(B=B, G=G, D=D, capacity=S + drawn.randint(0, 30), sizes=sizes)
        cache.append(*torch.randn(6, B, S, G, D, generator=made))
        q = torch.randn(B, 1, G * R, D, generator=made)
        gates = torch.rand(B, 1, G * R, 3, generator=made)
        with monkeypatch.context() as patched:
            patched.setattr(token_kernel.torch, "empty", guarded)
            out, ids = decode(q, gates, cache, scale=0.3)
        expected, chosen = decode(q, gates, cache, scale=0.3, reading="v2")
        assert torch.equal(ids, chosen), (sizes, S)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert len(behind) >= 40
    assert all((numbers == 12345.0).all() for numbers in behind)


def test_what_it_cannot_serve_goes_through_pytorch_and_says_why(make_inputs):
    for threads, why, made in (
        (1, "16 numbers", {"D": 8, "dtype": torch.float32}),
        (1, "float64", {"D": 16, "dtype": torch.float64}),
        (1, "float16", {"D": 16, "dtype": torch.float16}),
        (2, "2 threads", {"D": 16, "B": 5, "dtype": torch.float32}),
    ):
        counters.clear()
        torch.set_num_threads(threads)
        _last(make_inputs(20, **made))
        assert list(_served()) == ["torch"]
        assert why in _served()["torch"]


@needs_compiler
@pytest.mark.parametrize(
    ("q", "gates"),
    [
        ((2, 1, 4, 16), (2, 1, 4, 3)), ((1, 2, 4, 16), (1, 2, 4, 3)), ((1, 1, 5, 16), (1, 1, 5, 3)),
        ((1, 1, 4, 32), (1, 1, 4, 3)), ((1, 1, 4, 16), (1, 1, 4, 1)), ((4, 16), (4, 3)),
    ],
    ids=str,
)  # fmt: skip
def test_a_token_that_is_not_of_its_cache_is_refused(q, gates, make_inputs):
    """In C it would read what lies behind the cache, and answer with that."""
    cache = _cache_of(make_inputs(20, B=1, D=16, dtype=torch.float32))
    with pytest.raises(ValueError, match=r"^(q is|gates are) \("):
        decode(torch.ones(q), torch.ones(gates), cache)
    assert _served() == {}


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """A machine on which the kernel has not been asked for."""
    decoding = import_module("nsa.attention.decode")
    asked = (library.load_library, token_kernel.load_functions, decoding._kernel)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Where its speed is of no matter: a fifth of the time.
    monkeypatch.setattr(library, "_FLAGS", ("-O0", *library._FLAGS[1:]))
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
    assert library.build_library(compiler, built.parent, token_kernel.KERNEL) == built
    assert built.stat().st_mtime_ns == made_at
    other = tmp_path / "other.c"
    other.write_text(f"{token_kernel.KERNEL.source.read_text()}\nint other;\n")
    changed = token_kernel.KERNEL._replace(source=other)
    assert library.build_library(compiler, built.parent, changed) != built


@needs_compiler
@pytest.mark.long
@pytest.mark.usefixtures("anew")
def test_a_kernel_that_is_wrong_here_does_not_serve(tmp_path, monkeypatch, make_inputs):
    wrong = tmp_path / "decode.c"
    source = token_kernel.KERNEL.source.read_text()
    wrong.write_text(source.replace("1.6666665459e-1f", "1.6e-1f"))
    monkeypatch.setattr(token_kernel, "KERNEL", token_kernel.KERNEL._replace(source=wrong))
    inputs = make_inputs(20, D=16, dtype=torch.float32)
    out, _ = _last(inputs)
    assert "is not PyTorch's here" in _served()["torch"]
    expected = nsa_attention(**inputs, **SIZES)[:, 19].detach()
    torch.testing.assert_close(out[:, 0], expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("named", "value", "why"),
    [
        ("CC", "/bin/false", "could not be built"),
        ("CC", "/nowhere/cc", "could not be built"),
        ("NSA_CPU_KERNELS", "0", "switches it off"),
    ],
)
@pytest.mark.usefixtures("anew")
def test_without_a_compiler_or_by_choice_pytorch_serves(
    named, value, why, monkeypatch, make_inputs
):
    monkeypatch.setenv(named, value)
    _last(make_inputs(20, D=16, dtype=torch.float32))
    assert list(_served()) == ["torch"]
    assert why in _served()["torch"]


@needs_compiler
@pytest.mark.parametrize(
    "options", ["-fvisibility=hidden", pytest.param("-fsanitize=address", marks=pytest.mark.long)]
)
def test_what_cannot_be_loaded_or_is_not_the_kernel_ends_no_program(
    options, anew, tmp_path, monkeypatch
):
    """A sanitizer's runtime ends the process that loads it; C++ has other names, too."""
    monkeypatch.setenv("CC", f"{c_compiler()} {options}")
    assert "could not be built" in str(anew())
    assert list((tmp_path / "gonogo" / "nsa-cpu").iterdir()) == []
