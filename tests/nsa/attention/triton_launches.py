"""Compiles every launch of the Triton backend as a GPU's run would, with its real arguments.

Nothing is executed: the driver is replaced by one that names a GPU (sm_90), and launches end after
compilation, so results are garbage. Prints one JSON line per sequence length: the kernels that were
launched, in order, those among them that had to be compiled, and PyTorch's operations beside them.
A program of its own, started by test_triton.py: `python triton_launches.py LENGTH…`.
"""

import json
import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

_MOST_PROGRAMS = (2**31 - 1, 65535, 65535)


class GpuOnPaper:
    """What Triton asks of a driver before it launches."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


class _Operations(TorchDispatchMode):
    """Notes the names of PyTorch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


_launched: list[str] = []
_compiled: list[str] = []
_run = JITFunction.run


def _compile_only(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    for programs, most in zip(grid, _MOST_PROGRAMS, strict=False):
        assert 1 <= programs <= most, (kernel, grid)
    before = sum(len(caches[0]) for caches in kernel.device_caches.values())
    result = _run(kernel, *args, grid=grid, warmup=True, **options)
    _launched.append(kernel.__name__)
    if sum(len(caches[0]) for caches in kernel.device_caches.values()) > before:
        _compiled.append(kernel.__name__)
    return result


def _attend(S: int) -> None:
    from nsa.attention.gpu.function import nsa_attention_triton
    from nsa.attention.tensors import Call, Tensors

    def draw(heads: int, width: int = 64) -> torch.Tensor:
        return torch.randn(1, S, heads, width, dtype=torch.bfloat16, requires_grad=True)

    keys_values = [draw(2) for _ in range(6)]
    out, _ = nsa_attention_triton(
        Tensors(draw(12), *keys_values, draw(12, 3)), Call(scale=0.125, want_ids=False)
    )
    out.sum().backward()


if __name__ == "__main__":
    torch.set_num_threads(1)
    driver.set_active(GpuOnPaper())
    JITFunction.run = _compile_only
    for argument in sys.argv[1:]:
        _launched.clear()
        _compiled.clear()
        told: dict[str, Any] = {"S": argument, "launched": _launched, "compiled": _compiled}
        with _Operations() as operations:
            _attend(int(argument))
        print(json.dumps({**told, "torch": sorted(operations.names)}), flush=True)
