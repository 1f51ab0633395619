"""Are the Triton kernels right and faster here? The trial behind a proof (nsa/attention/proof.py).

*Right*: outputs and all gradients, from equally rounded inputs, against the fp32 `reference` over a
table of odd shapes that reaches every kernel in both forms of the selected branch and with several
(batch item, group) pairs; at a long sequence against the torch backend, and against the reference
at sampled queries. A query that stands between two blocks of nearly equal score may choose either,
and such queries must be few. What it chose must be what the rule allows, and score nearly as much
as what was wanted: one query of each block that errs is few, too. Its row is compared with what the
reference makes of that choice.
Memory is handed out full of NaN and of huge integers, so a kernel that reads what nobody wrote is
found out, and so is one that writes to its inputs. *Faster*: forward + backward at the shapes of
the 125M model against the torch backend, medians of CUDA-event timings.

Under TRITON_INTERPRET=1 on a CPU the first part runs on tiny shapes; nothing is timed there.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d

from nsa.attention.compression import compressed_length
from nsa.attention.gpu.cases import (
    INTERPRETED,
    LONG,
    ON_GPU,
    TIMED,
    Case,
    attend,
    draw_inputs,
    forward_backward,
)
from nsa.attention.gpu.compilation import compile_together, rehearse
from nsa.attention.precision import products
from nsa.attention.reference import scores_of_blocks, seen_blocks, select

# Largest relative error of the output and of gradients.
TOLERANCES = {
    torch.float32: (1e-5, 1e-4),
    torch.float16: (3e-3, 5e-3),
    torch.bfloat16: (1.5e-2, 2e-2),
}
WORST_ROW_X = 2.5
"""Times these, of a single head of a single token: a few wrong ones of many drown in the whole."""
NEAR = 8
"""Positions, up to which away rows are alike."""
FEWEST_SAME = 0.98
MOST_LOST = 2e-5
"""Of the score of the blocks that a query should have chosen: by so much may others score less.
Products of TF32 lose 1e-6, scores with a noise of 1e-5 as much; the next best block for the last of
sixteen loses 9e-5 and more."""
SAMPLED_ROWS = 64
_WARM_UP, _REPEATS = 5, 20


def relative_error(got: Tensor, wanted: Tensor, share: float = 1.0) -> float:
    """Norm of the difference over that of what is wanted; small where both are nearly nothing.

    Args:
        got: What is looked at.
        wanted: What is believed.
        share: Of the queries, those whose gradient is not zero, which nearly nothing goes by.
    """
    least = 1e-3 * (wanted.numel() * share) ** 0.5
    return float((got.float() - wanted.float()).norm() / wanted.float().norm().clamp_min(least))


def worst_row_error(
    got: Tensor, wanted: Tensor, near: int | None = None, lengths: Sequence[int] = ()
) -> float:
    """Largest norm of the difference of one row (the last dimension), over what rows are like.

    That is its own norm and the root mean square of others: rows of which nearly nothing is left by
    cancellation are as exact as the others, not more.

    Args:
        got: What is looked at [B, S, H, D].
        wanted: What is believed.
        near: How far away the others are, in positions: few queries see the last keys, whose
            gradients would be small beside those of all. All unless given.
        lengths: Of the sequences that lie end to end: those nearby are of the same one.
    """
    wanted = wanted.float()
    norms = wanted.norm(dim=-1)
    squares = norms.square().mean((0, 2))
    squares = squares.mean() if near is None else _mean_nearby(squares, near, lengths)[:, None]
    usual = squares.sqrt() + 1e-3 * wanted.shape[-1] ** 0.5
    worst = (got.float() - wanted).norm(dim=-1).div_(norms + usual)
    return float(worst.max())  # NaN where one is


def _mean_nearby(x_S: Tensor, near: int, lengths: Sequence[int]) -> Tensor:
    """Mean of those up to `near` places away in the same sequence, each its own."""
    means = [
        avg_pool1d(x[None, None], 2 * near + 1, stride=1, padding=near, count_include_pad=False)
        for x in x_S.split(list(lengths) or len(x_S))
        if len(x)
    ]
    return torch.cat(means, -1)[0, 0]


@torch.no_grad()
def lost_score(
    case: Case, inputs: Sequence[Tensor], ids: Tensor, wanted: Tensor, rows: Tensor | None = None
) -> float:
    """How much less the chosen blocks of a query score than those that were wanted, as a share.

    Args:
        case: Shapes and sizes.
        inputs: As `draw_inputs` gives them.
        ids: Block ids that were chosen [B, S, G, n_sel], or those of `rows`.
        wanted: Those that should have been.
        rows: Positions of the queries that are compared; all unless given.

    Returns:
        The most of all queries; infinity where one chose what no scores would have it choose.
    """
    q, k_blocks, G = inputs[0].float(), inputs[-2].float(), case.G
    places = torch.arange(case.S, device=q.device) if rows is None else rows
    differ_Q, most = (ids != wanted).flatten(2).any(-1).any(0), 0.0
    begin = block = 0
    for length in case.lengths or (case.S,):
        compressed = compressed_length(length, case.l, case.d)
        here = differ_Q & (places >= begin) & (places < begin + length)
        positions = places[here] - begin
        if len(positions):
            keys = k_blocks[:, block : block + compressed].repeat_interleave(case.H // G, dim=2)
            seen = seen_blocks(positions, compressed, case.l, case.d)
            sizes = {"l": case.l, "d": case.d, "l_sel": case.l_sel, "scale": case.D**-0.5}
            scores = scores_of_blocks(
                q[:, begin + positions], keys, seen, G, -(-length // case.l_sel), **sizes
            )
            most = max(most, _lost(case, scores, positions, ids[:, here], wanted[:, here]))
        begin, block = begin + length, block + compressed
    return most


def _lost(case: Case, scores: Tensor, positions: Tensor, ids: Tensor, wanted: Tensor) -> float:
    """As `lost_score`, of queries at some positions of one sequence and their block scores."""

    def marked(chosen: Tensor) -> Tensor:
        # The last column is of what is no block.
        none = scores.new_zeros(*scores.shape[:-1], scores.shape[-1] + 1)
        there = chosen.where((chosen >= 0) & (chosen < scores.shape[-1]), scores.shape[-1])
        return none.scatter(-1, there, 1.0)[..., :-1]

    # By the rule, and what is left by these marks alone: it is that choice, if it can be one.
    if not torch.equal(select(marked(ids), case.l_sel, case.n_sel, positions), ids):
        return float("inf")
    least = torch.finfo(scores.dtype).tiny
    of_ids, of_wanted = ((scores * marked(x)).sum(-1) for x in (ids, wanted))
    lost = (of_wanted - of_ids) / of_wanted.clamp_min(least)
    return float(lost.clamp_min(0).nan_to_num(nan=float("inf")).max())


def compare(
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    *,
    ours: str = "triton",
    against: str = "reference",
    rows: Tensor | None = None,
) -> dict[str, Any]:
    """Errors of one case: its row of a proof.

    Args:
        case: Shapes and sizes.
        dtype: Of the inputs.
        device: Where both compute.
        ours: The backend that is looked at.
        against: The one that is believed, from the same numbers: `reference` in fp32, or `torch`.
        rows: Positions of the queries that are compared; all unless given. With rows the gradient
            of every other query is zero, so keys and values are compared in full.
    """
    inputs = draw_inputs(case, dtype, device)
    got, (out, ids) = _attend_spoilt(case, inputs, ours)
    single = against == "reference"
    wanted = _leaves(inputs, torch.float32 if single else dtype)
    sampled = {"rows": rows} if single and rows is not None else {}
    expected, expected_ids = attend(case, wanted, against, **sampled)
    here = slice(None) if rows is None else rows
    there = slice(None) if sampled else here
    same_BSG = (ids[:, here] == expected_ids[:, there]).all(-1)
    same = int(same_BSG.sum()) / same_BSG.numel()  # a GPU's mean of ones may be less than 1
    found = _errors(case, (got, out, here), (wanted, expected, there), same_BSG)
    untouched = all(torch.equal(x, y) for x, y in zip(got, inputs, strict=True))
    # Of many that differ nothing has to be explained, nor would their scores have room.
    lost = float("inf") if same < FEWEST_SAME else lost_score(
        case, inputs, ids[:, here], expected_ids[:, there], rows
    )  # fmt: skip
    right = untouched and _right(found, dtype) and same >= FEWEST_SAME and lost <= MOST_LOST
    if right and same < 1.0:
        places = torch.arange(case.S, device=device) if rows is None else rows
        others = _compare_choices(case, inputs, ours, places[~same_BSG.all(-1).all(0)])
        found = {name: max(found[name], others[name], key=_of_nan_first) for name in found}
        right = _right(found, dtype)
    return {
        **asdict(case), "lengths": list(case.lengths), "against": against,
        "dtype": str(dtype).removeprefix("torch."),
        "rows": None if rows is None else len(rows), "same_selection": same, **found,
        "lost_score": lost, "right": right,
    }  # fmt: skip


def _compare_choices(
    case: Case, inputs: Sequence[Tensor], ours: str, rows: Tensor
) -> dict[str, float]:
    """Errors at some positions, against the reference where it attends to the same blocks."""
    got, (out, ids) = _attend_spoilt(case, inputs, ours)
    wanted = _leaves(inputs, torch.float32)
    expected, _ = attend(case, wanted, "reference", rows=rows, selected=ids[:, rows])
    everyone = torch.ones_like(ids[:, rows, :, 0], dtype=torch.bool)
    return _errors(case, (got, out, rows), (wanted, expected, slice(None)), everyone)


def _attend_spoilt(
    case: Case, inputs: Sequence[Tensor], ours: str
) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    """New leaves, and the output and ids of a backend that finds spoilt memory."""
    leaves = _leaves(inputs, inputs[0].dtype)
    with _spoilt_memory():
        return leaves, attend(case, leaves, ours)


def _leaves(inputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [x.to(dtype, copy=True).requires_grad_() for x in inputs]


Side = tuple[Sequence[Tensor], Tensor, slice | Tensor]
"""Leaves, the output, and which of its queries are compared."""


def _errors(case: Case, got: Side, wanted: Side, kept_BSG: Tensor) -> dict[str, float]:
    """Errors of the output and of all gradients, from the rows that are kept: the others get none.

    Infinite where a gradient is missing.
    """
    (leaves, out, here), (believed, expected, there) = got, wanted
    kept = kept_BSG.repeat_interleave(case.H // case.G, dim=2)[..., None]
    generator = torch.Generator(device=out.device).manual_seed(1)
    shape = out[:, here].shape
    grad = torch.randn(shape, device=out.device, generator=generator).to(out.dtype) * kept

    def of_all(like: Tensor, at: slice | Tensor) -> Tensor:
        whole = torch.zeros_like(like)
        whole[:, at] = grad.to(like.dtype)
        return whole

    with products(out.device, "ieee"):
        with _spoilt_memory():
            out.backward(of_all(out, here))
        expected.backward(of_all(expected, there))
    blocks = [compressed_length(length, case.l, case.d) for length in case.lengths]
    lengths_of = [case.lengths] * (len(leaves) - 2) + [blocks] * 2
    grads = [
        (x.grad, y.grad, lengths)
        for x, y, lengths in zip(leaves, believed, lengths_of, strict=True)
        if x.grad is not None and y.grad is not None and x.numel()
    ]
    complete = len(grads) == sum(x.numel() > 0 for x in leaves) - 2  # k_cmp, v_cmp: not read
    gradients = [relative_error(x, y, shape[1] / case.S) for x, y, _ in grads]
    # Of queries in samples those nearby have no gradient.
    near = NEAR if shape[1] == case.S else None
    worst = [worst_row_error(x, y, near, lengths) for x, y, lengths in grads]
    outs = (out.detach()[:, here] * kept, expected.detach()[:, there] * kept)
    return {
        "out": relative_error(*outs),
        "gradients": max(gradients, key=_of_nan_first) if complete else float("inf"),
        "worst_row": worst_row_error(*outs, near, case.lengths),
        "worst_gradient": max(worst, key=_of_nan_first) if complete else float("inf"),
    }


def _right(errors: dict[str, float], dtype: torch.dtype) -> bool:
    """Whether all errors are small, which NaN is not."""
    of_out, of_gradients = TOLERANCES[dtype]
    limits = {
        "out": of_out,
        "gradients": of_gradients,
        "worst_row": WORST_ROW_X * of_out,
        "worst_gradient": WORST_ROW_X * of_gradients,
    }
    return all(errors[name] < limit for name, limit in limits.items())


def _of_nan_first(error: float) -> tuple[bool, float]:
    return error != error, error


def sample_rows(S: int, device: torch.device, count: int = SAMPLED_ROWS) -> Tensor:
    """Positions of queries all over a sequence, its first and its last among them, ascending."""
    return torch.linspace(0, S - 1, min(count, S), device=device).round().long()


def compare_long(case: Case, dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    """A sequence too long for S x S: against torch whole, and against the reference in samples."""
    rows = sample_rows(case.S, device)
    return [
        compare(case, dtype, device, against="torch"),
        compare(case, dtype, device, rows=rows),
    ]


@contextmanager
def _spoilt_memory() -> Iterator[None]:
    """What `empty` returns is full of NaN or of the largest integer, meanwhile."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def timings_ms(step: Callable[[], object], repeats: int = _REPEATS) -> list[float]:
    """CUDA-event timings after warm-up, in milliseconds."""
    for _ in range(_WARM_UP):
        step()
    marks = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(repeats)
    ]
    for begin, end in marks:
        begin.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in marks]


def time_both(dtype: torch.dtype, device: torch.device) -> dict[str, dict[str, float]]:
    """Milliseconds of Triton and torch by "BxS"."""
    return {
        f"{case.B}x{case.S}": {
            backend: statistics.median(timings_ms(forward_backward(case, backend, dtype, device)))
            for backend in ("triton", "torch")
        }
        for case in TIMED[dtype]
    }


def run_trial(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """`errors` and `times_ms` of a proof in a dtype; times only of kernels that were right."""
    if device.type != "cuda":
        cases = INTERPRETED.get(dtype, ())
        return {"errors": [compare(case, dtype, device) for case in cases], "times_ms": {}}
    cases = (*ON_GPU[dtype], LONG)
    compile_together(rehearse([forward_backward(case, "triton", dtype, device) for case in cases]))
    errors = [compare(case, dtype, device) for case in ON_GPU[dtype]]
    errors += compare_long(LONG, dtype, device)
    right = all(row["right"] for row in errors)
    return {"errors": errors, "times_ms": time_both(dtype, device) if right else {}}
