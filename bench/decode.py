"""How fast is the next token attended with a cache, NSA against dense attention, on one CPU thread?

Run from the repository root:

    python -m bench.decode --tokens 60 --contexts 512,2048,16384

Each token appends its keys and values to a cache and is attended. NSA uses `decode` with the
paper's block sizes. Dense uses `scaled_dot_product_attention` over all keys of its groups, in the
layout that suits it best. The two take turns, token by token, in CPU time of the measuring thread;
the figure is the median over the tokens of dense time / NSA time. It does not cover projections,
the model, or GPUs. `NSA_CPU_KERNELS=0` measures without the kernel in C.
"""

from __future__ import annotations

import argparse
import json

import torch
from torch.nn.functional import scaled_dot_product_attention

from bench.rig import DTYPES, GROUPS, HEAD_DIM, HEADS, Step, in_turn
from nsa.attention import NsaCache, Sizes, counters, decode

_WARM_UP = 5


def build_dense(context: int, tokens: int, dtype: torch.dtype) -> Step:
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


def build_nsa(context: int, tokens: int, dtype: torch.dtype) -> Step:
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


@torch.no_grad()
def measure(context: int, tokens: int, dtype: torch.dtype) -> tuple[float, float, float]:
    """Median dense seconds, median NSA seconds, median of the tokens' ratios dense / NSA."""
    dense, ours = (build(context, tokens + _WARM_UP, dtype) for build in (build_dense, build_nsa))
    return in_turn(dense, ours, tokens, warm_up=_WARM_UP)


def main(argv: list[str] | None = None) -> None:
    """Print one line per context, and what repeats it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=60, help="tokens of each, taking turns")
    parser.add_argument("--contexts", default="512,2048,4096,16384", help="tokens in the cache")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for context in map(int, asked.contexts.split(",")):
        dense, ours, ratio = measure(context, asked.tokens, DTYPES[asked.dtype])
        if asked.json:
            row = {"context": context, "dense_s": dense, "nsa_s": ours, "dense_over_nsa": ratio}
            print(json.dumps(row), flush=True)
        else:
            print(
                f"context {context:6d}: dense {dense * 1e6:7.0f} us, NSA {ours * 1e6:7.0f} us, "
                f"dense / NSA {ratio:.2f}",
                flush=True,
            )
    if not asked.json:
        for row in counters.snapshot():
            print(f"{row.operation} by {row.path}: {row.reason or 'as preferred'}")
        repeat = f"--tokens {asked.tokens} --contexts {asked.contexts} --dtype {asked.dtype}"
        print(f"python -m bench.decode {repeat}")


if __name__ == "__main__":
    main()
