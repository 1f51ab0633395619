"""How fast is NSA against dense causal attention on one CPU thread?

Run from the repository root:

    python -m bench.attention --pairs 7 --lengths 1024,2048,4096,8192

Both are measured in one process, forward + backward, alternating pair by pair, in CPU time of the
measuring thread. The figure is the median over the pairs of dense time / NSA time. Dense is
`scaled_dot_product_attention(is_causal=True)` with the groups' keys and values already repeated to
all heads, outside the clock. `--memory` also measures, in a fresh process each, how far forward +
backward at S = 4096 raise the peak of resident memory. It does not cover projections, the model, or
GPUs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.rig import DTYPES, GROUPS, HEAD_DIM, HEADS, Step, in_turn
from nsa.attention import nsa_attention


def _leaf(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def build_dense(S: int, dtype: torch.dtype) -> Step:
    """One forward and backward of dense causal attention, [1, H, S, D]."""
    inputs = [_leaf(1, HEADS, S, HEAD_DIM, dtype=dtype) for _ in range(3)]
    grad = torch.randn(1, HEADS, S, HEAD_DIM, dtype=dtype)

    def step() -> None:
        out = scaled_dot_product_attention(*inputs, is_causal=True)
        torch.autograd.grad(out, inputs, grad)

    return step


def build_nsa(S: int, dtype: torch.dtype, backend: str) -> Step:
    """One forward and backward of NSA with the paper's block sizes."""
    q = _leaf(1, S, HEADS, HEAD_DIM, dtype=dtype)
    keys_values = [_leaf(1, S, GROUPS, HEAD_DIM, dtype=dtype) for _ in range(6)]
    gates = torch.rand(1, S, HEADS, 3, dtype=dtype).requires_grad_()
    inputs = [q, *keys_values, gates]
    grad = torch.randn(1, S, HEADS, HEAD_DIM, dtype=dtype)

    def step() -> None:
        out = nsa_attention(*inputs, backend=backend)
        torch.autograd.grad(out, inputs, grad)

    return step


def measure(S: int, pairs: int, dtype: torch.dtype, backend: str) -> tuple[float, float, float]:
    """Median dense seconds, median NSA seconds, median of the pairs' ratios dense / NSA."""
    return in_turn(build_dense(S, dtype), build_nsa(S, dtype, backend), pairs)


def peak_rise_mb(kind: str, S: int, dtype: str, backend: str) -> float:
    """Peak resident memory of two steps in a fresh process, above that of the imports, in MB."""
    command = [sys.executable, "-m", "bench.attention", "--peak-of", kind, "--lengths", str(S)]
    command += ["--dtype", dtype, "--backend", backend]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return float(done.stdout)


def _own_peak_mb() -> float:
    # Linux only, and unlike ru_maxrss it does not remember the process that started this one.
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _print_own_peak_rise(kind: str, S: int, dtype: torch.dtype, backend: str) -> None:
    before_mb = _own_peak_mb()
    step = build_dense(S, dtype) if kind == "dense" else build_nsa(S, dtype, backend)
    step()
    step()
    print(_own_peak_mb() - before_mb)


def main(argv: list[str] | None = None) -> None:
    """Print one line per length, then how the time grows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--lengths", default="1024,2048,4096,8192")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--memory", action="store_true", help="also compare peaks at S = 4096")
    parser.add_argument("--peak-of", choices=["dense", "nsa"], help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    lengths = [int(length) for length in args.lengths.split(",")]

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.peak_of:
        _print_own_peak_rise(args.peak_of, lengths[0], DTYPES[args.dtype], args.backend)
        return
    print(
        f"torch {torch.__version__}, 1 thread, {args.dtype}, {HEADS} heads, {GROUPS} groups, "
        f"D {HEAD_DIM}, forward + backward, median of {args.pairs} pairs"
    )
    print(f"{'S':>6} {'dense s':>9} {'nsa s':>9} {'dense/nsa':>10}")
    seconds: dict[int, float] = {}
    for S in lengths:
        dense_s, nsa_s, ratio = measure(S, args.pairs, DTYPES[args.dtype], args.backend)
        seconds[S] = nsa_s
        print(f"{S:>6} {dense_s:>9.4f} {nsa_s:>9.4f} {ratio:>10.2f}", flush=True)
    if 4096 in seconds and 8192 in seconds:
        print(f"nsa time(8192) / time(4096) = {seconds[8192] / seconds[4096]:.2f}")
    if args.memory:
        dense_mb, nsa_mb = (
            peak_rise_mb(kind, 4096, args.dtype, args.backend) for kind in ("dense", "nsa")
        )
        print(
            f"peak at 4096: dense {dense_mb:.0f} MB, nsa {nsa_mb:.0f} MB, {nsa_mb / dense_mb:.2f}x"
        )
    print("repeat: python -m bench.attention " + " ".join(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    main()
