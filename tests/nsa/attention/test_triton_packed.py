"""Packed sequences in one pass of the Triton kernels, interpreted: each as if it were alone."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from nsa.attention import MlpCompression
from nsa.attention.compression import compress_tokens
from nsa.attention.gpu.packed import pack
from nsa.attention.gpu.tiles import tiles_for
from nsa.attention.sequences import compress_sequences

sys.path.insert(0, str(Path(__file__).parent))
from triton_packed import CASES
from triton_programs import INTERPRETED, LIMIT_S, run_program

# Those that choose blocks again, with the selected branch in the form that long sequences take.
GATHERED = (
    "of all lengths, and one of none", "many short and one long", "odd head width and block",
    "a learned compression", "no free block", "scores of one tile at a time", "fp16",
)  # fmt: skip
NAMES = (*CASES, *(f"{name}, gathered" for name in GATHERED))
APART = ("apart", "apart, gathered")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture(scope="module")
def interpreted():
    """Result of each case, from one process that interprets the kernels."""
    cases = (*NAMES, *APART, "layer", "kept")
    told = run_program("triton_packed.py", *cases, env=INTERPRETED)
    return {result["case"]: result for result in told}


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 100)
@needs_triton
@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_are_each_as_the_fp64_reference_has_them_alone(interpreted, name):
    output, *gradients = interpreted[name]["errors"]
    half = name.startswith("fp16")
    assert interpreted[name]["ids"]
    assert output < (2e-3 if half else 1e-5)
    assert max(gradients) < (2e-3 if half else 1e-4)


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 100)
@needs_triton
@pytest.mark.parametrize("phi", ["mean", "mlp"])
def test_a_layer_attends_packed_documents_at_once(interpreted, phi):
    assert max(interpreted["layer"]["off"][phi]) < 1e-4


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 100)
@needs_triton
@pytest.mark.parametrize("name", APART)
def test_neither_another_sequence_nor_the_future_moves_a_bit(interpreted, name):
    told = interpreted[name]
    assert told["spoilt"]
    assert told["moved"]
    assert told["apart"]
    assert told["causal"]


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 100)
@needs_triton
def test_tables_made_for_inference_serve_training(interpreted):
    assert interpreted["kept"]["trained"]


LENGTHS = (70, 1, 33, 16, 8, 7, 40)


@pytest.mark.parametrize("lengths", [LENGTHS, (64, 8, 12), (3, 1)], ids=str)
@pytest.mark.parametrize("phi", ["mean", "mlp"])
def test_blocks_of_all_sequences_are_those_of_each(lengths, phi):
    torch.manual_seed(0)
    l, d = 8, 4  # noqa: E741
    mlp = MlpCompression(8, l, d).double()

    def compress(k, v):
        return mlp(k, v) if phi == "mlp" else (compress_tokens(k, l, d), compress_tokens(v, l, d))

    k, v = (torch.randn(sum(lengths), 2, 8, dtype=torch.float64) for _ in range(2))
    leaves, alone = ([x.clone().requires_grad_() for x in (k, v)] for _ in range(2))
    got = compress_sequences(compress, *leaves, lengths, l, d)
    parts = zip(*(x[None].split(lengths, 1) for x in alone), strict=True)
    each = [compress(*pair) for pair in parts]
    for place in (0, 1):
        wanted = torch.cat([pair[place][0] for pair in each])
        torch.testing.assert_close(got[place], wanted, rtol=1e-13, atol=1e-13)
    sum(x.sin().sum() for x in got).backward()
    sum(x.sin().sum() for pair in each for x in pair).backward()
    for x, y in zip(leaves, alone, strict=True):
        wanted = torch.zeros_like(y) if y.grad is None else y.grad
        torch.testing.assert_close(x.grad, wanted, rtol=1e-12, atol=1e-13)


def test_a_compression_that_gives_something_else_is_refused():
    k = torch.randn(20, 2, 8)
    with pytest.raises(ValueError, match="compressed"):
        compress_sequences(lambda k, v: (k, v), k, k, (12, 8), 8, 4)


def test_every_row_of_every_sequence_is_in_one_tile():
    heads, start = 6, 32
    tiles = tiles_for(torch.bfloat16, 64)
    packed = pack(
        LENGTHS, torch.device("cpu"), l=8, d=4, l_sel=16, start=start, heads=heads, tiles=tiles
    )
    sizes = {
        "forward": (tiles.forward.rows, [n * heads for n in LENGTHS]),
        "dq": (tiles.dq.rows, [n * heads for n in LENGTHS]),
        "keys": (tiles.dkdv.keys, list(LENGTHS)),
        "block_keys": (tiles.dkdv.keys, [max(0, (n - 8) // 4 + 1) for n in LENGTHS]),
    }
    for name, (size, counts) in sizes.items():
        wanted = [(b, n) for b, count in enumerate(counts) for n in range(-(-count // size))]
        assert sorted(map(tuple, getattr(packed, name).tolist())) == wanted, name
    late = [(sum(LENGTHS[:b]), n) for b, n in enumerate(LENGTHS)]
    tokens = [first + t for first, n in late for t in range(start, n)]
    assert packed.token_of_late.tolist() == tokens
    assert packed.late == len(tokens)
    # The kernels of chosen blocks make a token of a query's number and its block.
    shift = packed.of_block[packed.block_of_late.long(), 1]
    assert (torch.arange(packed.late) + shift).tolist() == tokens
    assert all(x.data_ptr() % 16 == 0 for x in (packed.keys, packed.scores, packed.of_block))
