"""How fast is one layer's attention beside PyTorch's dense kernels, from 2k to 64k?

Rows `attention`: one kernel at one length, batch and direction, eager and as a CUDA graph. Dense
gets its keys repeated to all heads outside the clock; NSA compresses its keys inside it. In order
of value: forward + backward of one sequence, forward, then as many sequences as make 64k tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.gpu.cases import Case, forward_backward
from bench.gpu.rows import REPEATS, Context, Step, timings

DTYPE = torch.bfloat16
_LENGTHS = (2048, 4096, 8192, 16384, 32768, 65536)
_TOKENS = 65536
_LONGEST_OF_TORCH = 8192
_TINY = tuple(Case(S=S, H=6, G=2, D=16, l=8, d=4, l_sel=16, n_sel=4, w=20) for S in (64, 128))
DENSE = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def dense_step(case: Case, kernel: str, device: torch.device, *, backward: bool) -> Step:
    """Dense causal attention by one of PyTorch's kernels."""
    shape = (case.B, case.H, case.S, case.D)
    leaves = [
        torch.randn(shape, device=device, dtype=DTYPE).requires_grad_(backward) for _ in range(3)
    ]
    grad = torch.randn(shape, device=device, dtype=DTYPE)

    def step() -> object:
        with sdpa_kernel(DENSE[kernel]), torch.set_grad_enabled(backward):
            out = scaled_dot_product_attention(*leaves, is_causal=True)
            return torch.autograd.grad(out, leaves, grad) if backward else out

    return step


def shapes(*, tiny: bool) -> Iterator[tuple[Case, bool]]:
    """Yield cases and whether backward is measured with them, the most valuable first."""
    one = _TINY if tiny else tuple(Case(S=S) for S in _LENGTHS)
    many = () if tiny else tuple(Case(S=S, B=_TOKENS // S) for S in _LENGTHS[:-1])
    for cases in (one, many):
        for backward in (True, False):
            yield from ((case, backward) for case in cases)


def _kernels(case: Case, *, tiny: bool, backward: bool) -> tuple[str, ...]:
    if tiny:
        return "torch", "math"
    ours = ("torch",) if case.S <= _LONGEST_OF_TORCH and (case.B == 1 or not backward) else ()
    return "triton", *ours, "flash", "cudnn"


def run(context: Context) -> None:
    """Write a row `attention` of each kernel at each shape."""
    for case, backward in shapes(tiny=context.tiny):
        for kernel in _kernels(case, tiny=context.tiny, backward=backward):
            # A kernel that this GPU or build does not have, or no memory, is an error of its row.
            context.measure(
                "attention",
                partial(_time, case, kernel, context, backward=backward),
                kernel=kernel,
                direction="forward + backward" if backward else "forward",
                B=case.B,
                S=case.S,
            )


def _time(case: Case, kernel: str, context: Context, *, backward: bool) -> dict[str, Any]:
    """Return eager and graph timings and peak memory, or why a graph cannot be captured."""
    device, repeats = context.device, 3 if context.tiny else REPEATS
    if kernel in DENSE:
        step = dense_step(case, kernel, device, backward=backward)
    else:
        step = forward_backward(case, kernel, DTYPE, device, backward=backward)
    if context.tiny:
        return {"eager": timings(step, device, repeats)}
    torch.cuda.reset_peak_memory_stats(device)
    found: dict[str, Any] = {"eager": timings(step, device, repeats)}
    found["peak_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 3)
    if kernel == "torch":  # it waits for the GPU, and a failed capture harms the allocator
        return found
    try:
        return {**found, "graph": timings(_as_graph(step), device, repeats)}
    except RuntimeError as error:
        if "captur" not in str(error):
            raise
        return {**found, "graph_error": str(error).partition("\n")[0]}


def _as_graph(step: Step) -> Step:
    """Capture the call once, and return its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()

    def replay() -> object:
        graph.replay()
        return kept  # its memory belongs to the graph: kept as long as the graph is

    return replay


def tables(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Median milliseconds of the rows `attention` by title: a row a length, a column a kernel."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        for way in ("eager", "graph"):
            if row["row"] == "attention" and way in row:
                batch = "1" if row["B"] == 1 else "64k tokens"
                title = f"Attention, {row['direction']}, batch {batch}, {way}, ms"
                of_length = found.setdefault(title, {}).setdefault(row["S"], {"S": row["S"]})
                of_length[row["kernel"]] = row[way]["ms"]
    return {title: list(lengths.values()) for title, lengths in found.items()}


def break_evens(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each of our backends against each dense kernel."""
    for title, lengths in tables(rows).items():
        kernels = dict.fromkeys(name for row in lengths for name in row if name != "S")
        for ours in (name for name in kernels if name not in DENSE):
            for dense in (name for name in kernels if name in DENSE):
                ratios = {
                    row["S"]: row[dense] / row[ours] for row in lengths if {ours, dense} <= {*row}
                }
                shown = ", ".join(f"{S}: {ratio:.2f}" for S, ratio in sorted(ratios.items()))
                yield f"- {title}: {ours} against {dense}: {break_even(ratios)} ({shown})"


def break_even(ratios: Mapping[int, float]) -> str:
    """Return from which length on NSA is faster, by dense time over its own at each length."""
    slower = [S for S in ratios if ratios[S] < 1]
    if not ratios or not slower:
        return "faster at every measured length" if ratios else "not measured"
    if max(slower) == max(ratios):
        return "not faster at the longest measured length"
    below = max(slower)
    above = min(S for S in ratios if below < S)
    share = math.log(ratios[below]) / math.log(ratios[below] / ratios[above])
    return f"faster from about {below * (above / below) ** share:.0f} on"
