"""`python -m nsa.probe`: what can this host's devices compute? One JSON object.

`peak_flops` is measured: the best of repeated square matrix products per device, summed at the top
level. A GPU computes in bf16. A CPU computes in fp32 or bf16, whichever is faster, on one core,
times the usable cores. It takes about half a second a device; `--no-collect-env` omits PyTorch's
environment report, which takes longer.
"""

import argparse
import json
import os
import platform
import time
from typing import Any

import torch

from nsa.errors import BadConfig
from nsa.settings import load_settings

_MEASURE_S = 0.4
_PRODUCTS = {
    "cpu": ((256, torch.float32), (768, torch.float32), (256, torch.bfloat16)),
    "cuda": ((8192, torch.bfloat16),),
}
"""A small product ends before a busy CPU is given to somebody else; a large one fills a device."""
_LEAST_TIMES = 8
"""How often each is measured, however busy the host."""


def probe(*, collect_env: bool) -> dict[str, Any]:
    """Devices with their measured peak, and what software drives them."""
    devices = [measure_device(device) for device in list_devices()]
    return {
        "v": 1,
        "peak_flops": sum(device["peak_flops"] for device in devices),
        "devices": devices,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "collect_env": environment_report() if collect_env else None,
    }


def list_devices() -> list[torch.device]:
    """The GPUs this process may use, else the CPU."""
    if torch.cuda.is_available():
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [torch.device("cpu")]


def measure_device(device: torch.device) -> dict[str, Any]:
    """Peak FLOP/s of a device: the fastest of the products that fit into 0.4 s."""
    on_gpu = device.type == "cuda"
    products = _PRODUCTS[device.type]
    threads, cores = torch.get_num_threads(), 1
    if not on_gpu:
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(1)
    try:
        each_s = _MEASURE_S / len(products)
        rates = [(_measure(size, dtype, device, each_s), dtype) for size, dtype in products]
    finally:
        torch.set_num_threads(threads)
    fastest, dtype = max(rates, key=lambda row: row[0])
    properties = torch.cuda.get_device_properties(device) if on_gpu else None
    return {
        "device": str(device),
        "name": properties.name if properties else platform.processor() or platform.machine(),
        "sms": properties.multi_processor_count if properties else None,
        "memory_mb": properties.total_memory // 2**20 if properties else None,
        "dtype": str(dtype).removeprefix("torch."),
        "peak_flops": round(cores * fastest),
    }


def environment_report() -> str:
    """What `torch.utils.collect_env` says."""
    from torch.utils.collect_env import get_pretty_env_info

    return str(get_pretty_env_info())


def _measure(size: int, dtype: torch.dtype, device: torch.device, for_s: float) -> float:
    """Return the FLOP/s of the fastest of some products."""
    a = torch.randn(size, size, dtype=dtype, device=device)  # of ones no bit toggles: too fast
    _time_product(a)  # the first one pays for loading the library
    fastest_s, times, deadline = float("inf"), 0, time.monotonic() + for_s
    while times < _LEAST_TIMES or time.monotonic() < deadline:
        fastest_s, times = min(fastest_s, _time_product(a)), times + 1
    return 2 * size**3 / fastest_s


def _time_product(a: torch.Tensor) -> float:
    began = time.perf_counter()
    torch.mm(a, a)
    if a.device.type == "cuda":
        torch.cuda.synchronize(a.device)
    return time.perf_counter() - began


def main() -> int:
    """Print the probe; exit code 4 for an unknown `NSA_*` variable."""
    parser = argparse.ArgumentParser(prog="python -m nsa.probe", allow_abbrev=False)
    parser.add_argument("--no-collect-env", action="store_true")
    arguments = parser.parse_args()
    try:
        load_settings()
    except BadConfig as error:
        print(json.dumps({"error": str(error)}))
        return error.code
    print(json.dumps(probe(collect_env=not arguments.no_collect_env), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
