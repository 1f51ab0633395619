"""Runs packed sequences through the Triton backend on the CPU under TRITON_INTERPRET=1.

As triton_cases.py, a program of its own; each case prints one JSON line. What is wanted is each
sequence alone, by the fp64 reference.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import sys
import warnings

import torch

SIZES = {"l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20}
CASES = {
    "of all lengths, and one of none": {"lengths": (70, 1, 0, 33, 33, 13)},
    "single tokens": {"lengths": (1, 1, 1), "H": 2, "G": 1},
    "one alone": {"lengths": (100,), "H": 2, "G": 1},
    "shorter than a block": {"lengths": (7, 3, 5), "H": 2, "G": 2},
    "many short and one long": {
        "lengths": (*range(1, 23), 130, *range(22, 9, -1)), "H": 2, "G": 1,
    },
    "odd head width and block": {
        "lengths": (3, 110, 48, 66, 53), "H": 3, "G": 1, "D": 5, "l_sel": 12, "w": 7,
    },
    "a learned compression": {"lengths": (65, 97, 5, 80), "H": 4, "G": 2, "mlp": True},
    "no free block": {"lengths": (70, 80, 64), "H": 2, "G": 1, "n_sel": 3},
    "blocks that do not overlap": {"lengths": (70, 66, 2), "H": 2, "G": 1, "l": 4},
    "scores of one tile at a time": {
        "lengths": (120, 1, 100, 64, 65), "H": 4, "G": 2, "score_bytes": 1,
    },
    "keys summed in parts": {"lengths": (100, 9, 70), "H": 2, "G": 1, "chunk": 32},
    "fp16": {"lengths": (100, 9, 70), "H": 6, "G": 1, "dtype": "float16"},
}  # fmt: skip


def _draw(lengths, H, G, D=8):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    T = sum(lengths)
    inputs = [draw(T, H, D), *(draw(T, G, D) for _ in range(6)), draw(T, H, 3).sigmoid()]
    edges = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return inputs, draw(T, H, D), edges


def _off(got, wanted):
    size = max(wanted.norm().item(), 1e-3 * math.sqrt(wanted.numel()))
    return (got.double() - wanted).norm().item() / size


def run(
    *, lengths, H=6, G=2, D=8, dtype="float32", mlp=False, score_bytes=64 << 20, chunk=256, **sizes
):  # fmt: skip
    """Relative errors of output and gradients, those of a compression last, and the ids."""
    from nsa.attention import MlpCompression, nsa_attention, nsa_attention_varlen
    from nsa.attention.gpu import launch, shapes

    launch._SCORE_BYTES, shapes._CHUNK_QUERIES = score_bytes, chunk
    sizes = SIZES | sizes
    inputs, grad, edges = _draw(lengths, H, G, D)
    inputs = [x.to(getattr(torch, dtype)) for x in inputs]
    grad = grad.to(inputs[0])
    torch.manual_seed(0)
    phi = MlpCompression(D, sizes["l"], sizes["d"]) if mlp else None
    exact_phi = copy.deepcopy(phi).double() if mlp else None
    leaves = [x.clone().requires_grad_() for x in inputs]
    out, ids = nsa_attention_varlen(
        *leaves, edges, max(lengths), backend="triton", compression=phi, return_selection=True,
        **sizes,
    )  # fmt: skip
    out.backward(grad)
    exact = [x.double().requires_grad_() for x in inputs]
    alone = [
        nsa_attention(
            *(x[None, begin:end] for x in exact), backend="reference", compression=exact_phi,
            return_selection=True, **sizes,
        )
        for begin, end in itertools.pairwise(edges.tolist()) if begin < end
    ]  # fmt: skip
    wanted = torch.cat([x[0] for x, _ in alone])
    wanted.backward(grad.double())
    pairs = [(out, wanted), *((x.grad, y.grad) for x, y in zip(leaves, exact, strict=True))]
    if mlp:
        both = zip(phi.named_parameters(), exact_phi.parameters(), strict=True)
        # The same vector added to every key moves no softmax: rounding is all there is.
        pairs += [(x.grad, y.grad) for (name, x), y in both if name != "keys.w_out.bias"]
    pairs = [(x, y) for x, y in pairs if y is not None]
    return {
        "ids": torch.equal(ids, torch.cat([x[0] for _, x in alone])),
        "errors": [_off(x, y) for x, y in pairs],
    }


def run_layer():
    """How far a layer with packed documents is off, output and weights, for both φ."""
    from nsa.attention import NativeSparseAttention

    doc_ids = torch.tensor([[0] * 70 + [1] * 13 + [2] * 7, [0] * 3 + [1] * 87])
    x = torch.randn(2, 90, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    off = {}
    for name in ("mean", "mlp"):
        torch.manual_seed(0)
        layer = NativeSparseAttention(12, 4, 2, 8, compression=name, **SIZES)
        exact = copy.deepcopy(layer).double()
        layer.backend, exact.backend = "triton", "reference"
        layer.keep_selection = exact.keep_selection = True
        out, wanted = layer(x.float(), doc_ids=doc_ids), exact(x, doc_ids=doc_ids)
        out.sin().sum().backward()
        wanted.sin().sum().backward()
        weights = zip(layer.named_parameters(), exact.parameters(), strict=True)
        pairs = [(p.grad, y.grad) for (n, p), y in weights if n != "compression.keys.w_out.bias"]
        off[name] = [_off(out, wanted), *(_off(p, y) for p, y in pairs)]
        assert torch.equal(layer.selection, exact.selection)
    return {"off": off}


def run_apart():
    """Whether another sequence, or what comes later in one's own, moves a sequence."""
    from nsa.attention import nsa_attention_varlen

    inputs, grad, edges = _draw((70, 90, 30), 2, 1)
    inputs, grad = [x.float() for x in inputs], grad.float()

    def attend(changed):
        leaves = [x.clone().requires_grad_() for x in changed]
        out = nsa_attention_varlen(*leaves, edges, 90, backend="triton", **SIZES)
        out.backward(grad)
        return out.detach(), [x.grad for x in leaves]

    spoilt, later = [x.clone() for x in inputs], [x.clone() for x in inputs]
    for x in spoilt[:7]:
        x[70:160] = torch.nan
    for x in later[:7]:
        x[140:160] += 3.0
    (out, grads), (beside, beside_grads), (before, _) = map(attend, (inputs, spoilt, later))
    others = [*range(70), *range(160, 190)]
    both = zip((out, *grads), (beside, *beside_grads), strict=True)
    return {
        "spoilt": bool(beside[70:160].isnan().any()),
        "apart": all(torch.equal(x[others], y[others]) for x, y in both),
        "causal": torch.equal(out[:140], before[:140]) and torch.equal(out[160:], before[160:]),
        "moved": not torch.equal(out[140:160], before[140:160]),
    }


def run_kept():
    """Whether what was made without gradients serves training."""
    from nsa.attention import nsa_attention_varlen

    inputs, _, edges = _draw((9, 3), 2, 1)
    leaves = [x.float().requires_grad_() for x in inputs]
    with torch.inference_mode():
        nsa_attention_varlen(*leaves, edges, 9, backend="triton", **SIZES)
    nsa_attention_varlen(*leaves, edges, 9, backend="triton", **SIZES).sum().backward()
    return {"trained": all(bool(x.grad.any()) for x in leaves[2:])}


OTHERS = {"layer": run_layer, "apart": run_apart, "kept": run_kept}


def run_case(name):
    """One case by its name."""
    from nsa.attention.gpu import function

    case = name.removesuffix(", gathered")
    function.MOST_BLOCKS_AS_BITS = 32 if case == name else 0
    return OTHERS[case]() if case in OTHERS else run(**CASES[case])


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # memory is handed out full of NaN
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "invalid value|All-NaN", RuntimeWarning)  # "apart"
    for name in sys.argv[1:]:
        print(json.dumps({"case": name, **run_case(name)}), flush=True)
