"""Runs the Triton backend on the CPU under TRITON_INTERPRET=1; prints one JSON line per case.

A program of its own, because Triton decides once, at import, whether it interprets. Started by
test_triton.py: `python triton_cases.py CASE…`.
"""

import json
import math
import sys
import warnings

import torch

CASES = {
    "six heads a group": {"S": 90, "H": 6, "G": 1},
    "one head a group, two items": {"S": 85, "B": 2, "H": 2, "G": 2},
    "sixteen heads, wide": {"S": 70, "H": 16, "G": 1, "D": 16},
    "shorter than a block": {"S": 7, "H": 2, "G": 1},
    "one token": {"S": 1, "H": 2, "G": 1},
    "no free block": {"S": 70, "H": 2, "G": 1, "n_sel": 3},
    "blocks that do not overlap": {"S": 70, "H": 2, "G": 1, "l": 4},
    "odd head width and block": {"S": 70, "H": 3, "G": 1, "D": 5, "l_sel": 12, "w": 7},
    "fp16": {"S": 70, "H": 6, "G": 1, "dtype": "float16"},
    "logits times 1000": {"S": 70, "H": 2, "G": 1, "factor": 1000.0},
    "hot block": {"S": 100, "H": 2, "G": 1, "hot": True},
    "packed documents": {"S": 70, "H": 2, "G": 1, "documents": True},
    "tiles within a block": {"S": 230, "H": 6, "G": 1, "l_sel": 32},
    # 25 queries at a time of two pairs and eight blocks: 25, 25 and 6.
    "scores of some queries at a time": {"S": 120, "B": 2, "H": 2, "G": 1, "score_bytes": 1600},
}
# These again, with the selected branch in the form that long sequences take (function.py).
GATHERED = (
    "six heads a group",
    "one head a group, two items",
    "odd head width and block",
    "fp16",
    "hot block",
    "scores of some queries at a time",
)


def run(
    *, S, H, G, B=1, D=8, l=8, n_sel=4, l_sel=16, w=20, dtype="float32", factor=1.0, hot=False,  # noqa: E741
    documents=False, score_bytes=64 << 20,
):  # fmt: skip
    """Relative errors against the fp64 reference, and whether the ids are equal."""
    from nsa.attention import nsa_attention
    from nsa.attention.gpu import launch

    launch._SCORE_BYTES = score_bytes

    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs = [draw(B, S, H, D) * factor, *(draw(B, S, G, D) for _ in range(6))]
    inputs[1] /= factor
    if hot:  # every query likes block 2 and no other
        inputs[0][..., 0] = 9.0
        inputs[1][:, :, :, 0] = -1.0
        inputs[1][:, 2 * l_sel : 3 * l_sel, :, 0] = 1.0
    inputs.append(draw(B, S, H, 3).sigmoid())
    grad = draw(B, S, H, D)
    options = {"l": l, "d": 4, "l_sel": l_sel, "n_sel": n_sel, "w": w, "return_selection": True}
    if documents:
        options["doc_ids"] = torch.arange(S).div(30, rounding_mode="floor").expand(B, S)
    rounded = [x.to(getattr(torch, dtype)) for x in inputs]
    results = []
    for backend in ("triton", "reference"):
        exact = backend == "reference"
        leaves = [(x.double() if exact else x.clone()).requires_grad_() for x in rounded]
        out, ids = nsa_attention(*leaves, backend=backend, **options)
        out.backward(grad.to(out.dtype))
        grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
        results.append((ids, [out.detach(), *grads]))
    (ids, got), (wanted_ids, wanted) = results
    errors = []
    for x, y in zip(got, wanted, strict=True):
        size = max(y.norm().item(), 1e-3 * math.sqrt(y.numel()))
        errors.append((x.double() - y).norm().item() / size)
    hottest = (ids[:, -20:] == 2).any(-1).all().item() if hot else None
    return {"ids": torch.equal(ids, wanted_ids), "errors": errors, "hot": hottest}


def _drawn(S, B=1, H=2, G=2):
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, S, n, 8) for n in (H, *[G] * 6)]
    made = [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]
    return [*made, torch.rand(B, S, H, 3, generator=generator)]


def _attend(inputs, **changes):
    from nsa.attention import nsa_attention

    sizes = {"l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20} | changes
    return nsa_attention(*inputs, backend="triton", return_selection=True, **sizes)


def run_with_a_nan():
    """Whether a NaN stays in its batch item, and the ids stay ids."""
    inputs = [x.detach() for x in _drawn(80, B=2)]
    inputs[0][0, 70] = inputs[1][0, 40] = torch.nan
    out, ids = _attend(inputs)
    real = ((ids >= -1) & (ids <= 79 // 16)).all() and (ids[:, 70:, :, -1] == 4).all()
    return {"contained": bool(out[0, 70].isnan().all() and out[1].isfinite().all() and real)}


def run_second_derivative():
    """What a gradient penalty says."""
    inputs = _drawn(20)
    try:
        torch.autograd.grad(_attend(inputs)[0].sum(), inputs[:1], create_graph=True)
    except NotImplementedError as error:
        return {"refused": str(error)}
    return {"refused": ""}


def run_one_key():
    """The largest entry of the gradients that are zero, since a query sees one key."""
    largest = 0.0
    for S, w, zero in ((1, 9, (0, 3, 5)), (11, 9, (1,)), (40, 1, (5,))):
        inputs = _drawn(S, B=2, H=4)
        _attend(inputs, l_sel=8, n_sel=3, w=w)[0].square().sum().backward()
        largest = max(largest, *(inputs[place].grad.abs().max().item() for place in zero))
    return {"largest": largest, "moved": bool(inputs[4].grad.any())}


def run_empty_batch():
    """The shapes of results and of a gradient where there are no sequences."""
    inputs = _drawn(80, B=0, H=4)
    out, ids = _attend(inputs)
    out.sum().backward()
    return {"shapes": [list(x.shape) for x in (out, ids, inputs[1].grad)]}


EDGES = {
    "a NaN": run_with_a_nan,
    "an empty batch": run_empty_batch,
    "one key": run_one_key,
    "a second derivative": run_second_derivative,
}
OTHERS = (*EDGES, *(f"{name}, gathered" for name in EDGES))


def run_case(name):
    """One case by its name."""
    from nsa.attention.gpu import function

    case = name.removesuffix(", gathered")
    function.MOST_BLOCKS_AS_BITS = 32 if case == name else 0
    return EDGES[case]() if case in EDGES else run(**CASES[case])


if __name__ == "__main__":
    torch.set_num_threads(1)
    # What `empty` returns is full of NaN and of huge integers: nobody may read it.
    torch.use_deterministic_algorithms(True)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "invalid value|All-NaN", RuntimeWarning)  # "a NaN"
    for name in sys.argv[1:]:
        print(json.dumps({"case": name, **run_case(name)}), flush=True)
