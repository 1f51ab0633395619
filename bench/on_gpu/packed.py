"""How fast are sequences of many lengths in one pass, beside several passes over like lengths?

Rows `packed`: forward + backward of 64k tokens in all, by mixture, eager (lengths are data: nobody
captures them). "several passes" are the same kernels, called as for a backend that does not take
all lengths at once, the shorter sequences filled up.
"""

from __future__ import annotations

import functools
import random

import torch

from bench.on_gpu.figures import spread
from bench.on_gpu.rows import Context
from bench.on_gpu.stopwatch import REPEATS, measure
from nsa.attention.gpu.cases import Case, forward_backward, packed

DTYPE = torch.bfloat16
TOKENS = 65536
_TINY = {"H": 6, "G": 2, "D": 16, "l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20}


def mixed(tokens: int = TOKENS, longest: int = 16384) -> tuple[int, ...]:
    """Lengths as those of documents: as many between n and 2 n as between 2 n and 4 n."""
    draw, lengths = random.Random(0), list[int]()
    while (left := tokens - sum(lengths)) > 0:
        lengths.append(min(left, round(2 ** draw.uniform(4, longest.bit_length() - 1))))
    return tuple(lengths)


def mixtures(*, tiny: bool) -> dict[str, Case]:
    """What is packed, by name, the most valuable first."""
    if tiny:
        return {"mixed": packed(*mixed(200, 64), **_TINY)}
    return {
        "mixed": packed(*mixed()),
        "one long, many short": packed(32768, *[64] * 512),
        "many short": packed(*[256] * 256),
        "all alike": packed(*[2048] * 32),
        "one": packed(TOKENS),
    }


def run(context: Context) -> None:
    """A row of each mixture and way."""
    backend = "torch" if context.tiny else "triton"
    for name, case in mixtures(tiny=context.tiny).items():
        for way in ("several passes",) if context.tiny else ("one pass", "several passes"):
            context.measure(
                "packed", f"packed {name}, {way}",
                functools.partial(_time, case, backend, context.device, way),
                needed_s=2.0, mixture=name, way=way, sequences=len(case.lengths), tokens=case.S,
                longest=max(case.lengths),
            )  # fmt: skip


def _time(case: Case, backend: str, device: torch.device, way: str) -> dict[str, object]:
    step = forward_backward(case, backend, DTYPE, device, several_passes=way == "several passes")
    repeats = 3 if device.type != "cuda" else REPEATS
    return {"eager": spread(measure(step, device, repeats))}
