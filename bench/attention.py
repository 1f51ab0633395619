"""How fast is NSA against dense causal attention on one CPU thread?

    python -m bench.attention --pairs 7 --lengths 1024,2048,4096,8192
    python -m bench.attention --decode --pairs 60 --lengths 512,2048,4096,16384

Both are measured in one process, alternating pair by pair, in CPU time of the measuring thread. The
figure is the median over the pairs of dense time / NSA time. Without `--decode` it is one forward +
backward. Dense is `scaled_dot_product_attention(is_causal=True)` with the groups' keys and values
already repeated to all heads, outside the clock.

With `--decode` each token appends its keys and values to a cache and is attended: NSA by `decode`,
dense over all keys of its groups, in the layout that suits it best. `NSA_CPU_KERNELS=0` measures
without the kernel in C.

Not covered: projections, the model, GPUs (`bench.gpu`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa.attention import NsaCache, Sizes, decode, nsa_attention

HEADS, GROUPS, HEAD_DIM = 12, 2, 64
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WARM_UP = 5
Step = Callable[[], None]


def _seconds(step: Step) -> float:
    """CPU seconds that this thread spends in one call."""
    began = time.thread_time()
    step()
    return time.thread_time() - began


def in_turn(dense: Step, ours: Step, pairs: int, warm_up: int) -> tuple[float, float, float]:
    """Median seconds of dense, of ours, and the median of the pairs' ratios."""
    times = [(_seconds(dense), _seconds(ours)) for _ in range(warm_up + pairs)][warm_up:]
    return (
        statistics.median(a for a, _ in times),
        statistics.median(b for _, b in times),
        statistics.median(a / b for a, b in times),
    )


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


def build_nsa(S: int, dtype: torch.dtype) -> Step:
    """One forward and backward of NSA with the paper's block sizes."""
    q = _leaf(1, S, HEADS, HEAD_DIM, dtype=dtype)
    keys_values = [_leaf(1, S, GROUPS, HEAD_DIM, dtype=dtype) for _ in range(6)]
    gates = torch.rand(1, S, HEADS, 3, dtype=dtype).requires_grad_()
    inputs = [q, *keys_values, gates]
    grad = torch.randn(1, S, HEADS, HEAD_DIM, dtype=dtype)

    def step() -> None:
        out = nsa_attention(*inputs, backend="torch")
        torch.autograd.grad(out, inputs, grad)

    return step


def build_dense_decode(context: int, tokens: int, dtype: torch.dtype) -> Step:
    """Append one token and attend for it, the context grown by it."""
    k, v = torch.randn(2, 1, GROUPS, context + tokens, HEAD_DIM).to(dtype)
    q = torch.randn(1, HEADS, 1, HEAD_DIM, dtype=dtype)
    new = torch.randn(1, GROUPS, 1, HEAD_DIM, dtype=dtype)
    length = context

    def step() -> None:
        nonlocal length
        k[:, :, length : length + 1], v[:, :, length : length + 1] = new, new
        length += 1
        scaled_dot_product_attention(q, k[:, :, :length], v[:, :, :length], enable_gqa=True)

    return step


def build_nsa_decode(context: int, tokens: int, dtype: torch.dtype) -> Step:
    """The same with `NsaCache` and `decode`."""
    cache = NsaCache(
        B=1, G=GROUPS, D=HEAD_DIM, capacity=context + tokens, sizes=Sizes(), dtype=dtype
    )
    cache.append(*torch.randn(6, 1, context, GROUPS, HEAD_DIM).to(dtype))
    new = torch.randn(6, 1, 1, GROUPS, HEAD_DIM).to(dtype).unbind()
    q = torch.randn(1, 1, HEADS, HEAD_DIM, dtype=dtype)
    gates = torch.rand(1, 1, HEADS, 3, dtype=dtype)

    def step() -> None:
        cache.append(*new)
        decode(q, gates, cache)

    return step


def measure(S: int, pairs: int, dtype: torch.dtype, *, decoding: bool) -> tuple[float, ...]:
    """Median dense seconds, median NSA seconds, median of the pairs' ratios dense / NSA."""
    if not decoding:
        return in_turn(build_dense(S, dtype), build_nsa(S, dtype), pairs, warm_up=1)
    steps = [build(S, pairs + WARM_UP, dtype) for build in (build_dense_decode, build_nsa_decode)]
    with torch.no_grad():
        return in_turn(*steps, pairs, warm_up=WARM_UP)


def main() -> None:
    """Print one line per length."""
    parser = argparse.ArgumentParser(prog="python -m bench.attention", allow_abbrev=False)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--lengths", default="1024,2048,4096,8192")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--decode", action="store_true", help="tokens of a cache of these lengths")
    given = parser.parse_args()
    dtype = DTYPES[given.dtype]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, 1 thread, {given.dtype}, median of {given.pairs} pairs")
    print(f"{'S':>6} {'dense ms':>9} {'nsa ms':>9} {'dense/nsa':>10}")
    for S in map(int, given.lengths.split(",")):
        dense_s, nsa_s, ratio = measure(S, given.pairs, dtype, decoding=given.decode)
        print(f"{S:>6} {dense_s * 1e3:>9.3f} {nsa_s * 1e3:>9.3f} {ratio:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
