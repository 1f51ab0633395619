"""Which kernels does one layer's forward and backward spend its time in, and at what rate?"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch.profiler import ProfilerActivity, profile

from bench.on_gpu.figures import kernel_flop, kernel_rows, pairs
from bench.on_gpu.rows import Context
from bench.on_gpu.stopwatch import Step
from nsa.attention.gpu.function import MOST_BLOCKS_AS_BITS
from nsa.attention.gpu.trial import Case, forward_backward

_CALLS = 3
_NAME_LIMIT = 60
_TINY = Case(S=128, H=6, G=2, D=16, l=8, d=4, l_sel=16, n_sel=4, w=20)


def times_us(step: Step, device: torch.device) -> dict[str, tuple[float, int]]:
    """Microseconds and launches of one call by kernel; on a CPU by operation."""
    gpu = device.type == "cuda"
    step()
    step()
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as told:
        for _ in range(_CALLS):
            step()
        if gpu:
            torch.cuda.synchronize()
    times: dict[str, tuple[float, int]] = {}
    for event in told.key_averages():
        us = event.self_device_time_total if gpu else event.self_cpu_time_total
        if us > 0:
            before, launches = times.get(event.key[:_NAME_LIMIT], (0.0, 0))
            times[event.key[:_NAME_LIMIT]] = before + us, launches + event.count
    return {name: (us / _CALLS, count // _CALLS) for name, (us, count) in times.items()}


def counted_flop(case: Case) -> Mapping[str, int]:
    """Operations of one call by kernel."""
    sizes = {name: getattr(case, name) for name in ("l", "d", "l_sel", "n_sel", "w")}
    counted = {name: case.B * n for name, n in pairs(case.S, **sizes).items()}
    bits = -(-case.S // case.l_sel) <= MOST_BLOCKS_AS_BITS
    return kernel_flop(counted, case.H, case.D, bits=bits)


def run(context: Context) -> None:
    """Rows `kernels`, at 8k and 32k and at the trainer's shape."""
    backend = "torch" if context.tiny else "triton"

    def table(case: Case) -> dict[str, object]:
        step = forward_backward(case, backend, torch.bfloat16, context.device)
        return {"table": kernel_rows(times_us(step, context.device), counted_flop(case))}

    for case in (_TINY,) if context.tiny else (Case(S=8192), Case(S=32768), Case(S=2048, B=32)):
        context.measure(
            "kernels", f"kernels at {case.B}x{case.S}", functools.partial(table, case),
            needed_s=2.0, B=case.B, S=case.S,
        )  # fmt: skip
