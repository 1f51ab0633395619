"""Compiles every launch of the Triton backend as a GPU's run would, with its real arguments.

Nothing is executed: the driver is replaced by one that names a GPU, and launches end after
compilation, so results are garbage. Prints one JSON line per case: the kernels that were launched,
in order, and those among them that had to be compiled. Beside them stand the most shared memory of
one, PyTorch's operations, and for sm_90 what ptxas says of each compiled kernel. A case is
`S[,capability[,dtype,D,l_sel[,R]]]`, with R heads a group; started by test_triton.py.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton.backends.nvidia
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

_MOST_PROGRAMS = (2**31 - 1, 65535, 65535)


class GpuOnPaper:
    """What Triton asks of a driver before it launches; a device is numbered by its capability."""

    capability = 90

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return self.capability

    def get_current_stream(self, _device):
        return 0


class _Operations(TorchDispatchMode):
    """Notes the names of PyTorch's operations."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


_launched, _compiled, _shared, _machine = [], [], [], []
_PTXAS = Path(triton.backends.nvidia.__file__).parent / "bin" / "ptxas"
_run = JITFunction.run


def cached(kernel):
    return sum(len(caches[0]) for caches in kernel.device_caches.values())


def _compile_only(kernel, *args, grid, warmup, **options):
    for programs, most in zip(grid, _MOST_PROGRAMS, strict=False):
        assert 1 <= programs <= most, (kernel, grid)
    before = cached(kernel)
    result = _run(kernel, *args, grid=grid, warmup=True, **options)
    _launched.append(kernel.__name__)
    if cached(kernel) > before:
        _compiled.append(kernel.__name__)
        _shared.append(result.metadata.shared)
        assert result.asm["cubin"][:4] == b"\x7fELF", kernel
        if GpuOnPaper.capability == 90:
            _machine.append({"kernel": kernel.__name__, **_judged(result.asm["ptx"])})
    return result


def _judged(ptx):
    """What ptxas says: registers, bytes spilled, and whether products wait for one another."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [_PTXAS, "-v", "-arch=sm_90a", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    numbers = re.search(r"(\d+) bytes spill stores.*Used (\d+) registers", said, re.DOTALL)
    spilled, registers = map(int, numbers.groups())
    serial = re.findall(r"C751[05]", said)
    return {"registers": registers, "spilled": spilled, "serial": serial}


def _attend(S, dtype, D, l_sel, R):
    from nsa.attention.gpu.function import nsa_attention_triton
    from nsa.attention.tensors import Call, Tensors

    def draw(heads, width=D):
        return torch.randn(1, S, heads, width, dtype=dtype, requires_grad=True)

    keys_values = [draw(2) for _ in range(6)]
    tensors = Tensors(draw(2 * R), *keys_values, draw(2 * R, 3))
    out, _ = nsa_attention_triton(tensors, Call(l_sel=l_sel, scale=0.125, want_ids=False))
    out.sum().backward()


if __name__ == "__main__":
    torch.set_num_threads(1)
    driver.set_active(GpuOnPaper())
    JITFunction.run = _compile_only
    for case in sys.argv[1:]:
        for noted in (_launched, _compiled, _shared, _machine):
            noted.clear()
        given = case.split(",")
        defaults = ["90", "bfloat16", "64", "64", "6"]
        S, capability, dtype, D, l_sel, R = given + defaults[len(given) - 1 :]
        GpuOnPaper.capability = int(capability)
        with _Operations() as operations:
            _attend(int(S), getattr(torch, dtype), int(D), int(l_sel), int(R))
        told = {"case": case, "launched": _launched, "compiled": _compiled, "machine": _machine}
        told |= {"shared": max(_shared, default=0), "torch": sorted(operations.names)}
        print(json.dumps(told), flush=True)
