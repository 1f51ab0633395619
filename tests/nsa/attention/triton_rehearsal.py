"""Rehearses calls of the Triton backend on paper, and compiles some of their kernels in threads.

A program of its own, as triton_launches.py, whose GPU on paper it takes. Prints one JSON line.
"""

import dataclasses
import json
import sys
from pathlib import Path

import torch
from triton.runtime import JITFunction, driver

sys.path.insert(0, str(Path(__file__).parent))
from triton_launches import GpuOnPaper, cached

CHEAP = ("mix", "dots", "add_dq")


if __name__ == "__main__":
    from nsa.attention.gpu import gates, gathered
    from nsa.attention.gpu.compilation import compile_each, compile_together, rehearse
    from nsa.attention.gpu.trial import Case, forward_backward

    torch.set_num_threads(1)
    driver.set_active(GpuOnPaper())
    run, cpu, dtype = JITFunction.run, torch.device("cpu"), torch.bfloat16
    steps = [forward_backward(Case(S=S), "triton", dtype, cpu) for S in (1100, 1200, 2112)]
    launches = rehearse(steps)
    assert JITFunction.run is run, "the kernels run again"
    again = rehearse(steps[:1])
    cheap = [launch for launch in launches if launch.kernel.__name__ in CHEAP]
    compiled = compile_together(cheap, threads=2)
    broken = dataclasses.replace(cheap[0], options=())
    mixed = compile_each([broken, cheap[0]], threads=2)
    before = [cached(kernel) for kernel in (gates.mix, gates.dots, gathered.add_dq)]
    # As the real call launches it, with tensors: found compiled.
    out = [torch.empty(1, 2112, 12, 64, dtype=dtype) for _ in range(4)]
    gate = torch.empty(1, 2112, 12, 3, dtype=dtype)
    rows = 2112 * 12
    gates.mix.run(*out[:3], gate, out[3], rows, D=64, DP=64, M=32, grid=(1,), warmup=True)
    told = {
        "names": sorted(launch.kernel.__name__ for launch in launches),
        "of_one_length": len(again),
        "cubins": [len(kernel.asm["cubin"]) for kernel in compiled],
        "broken": [isinstance(x, Exception) for x in mixed],
        "anew": [cached(k) for k in (gates.mix, gates.dots, gathered.add_dq)] != before,
    }
    print(json.dumps(told))
