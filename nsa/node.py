"""Measure all devices of this host together, under load (`python -m nsa.probe --node`).

Each multiplies matrices for two seconds while its neighbours do. The same product is taken before
and after: equal devices must give equal bits. Then copies and an all-reduce of 1 GiB are timed.
What a CPU does not have is null.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import distributed

LOAD_S = 2.0
_SIZES = {"cpu": 512, "cuda": 8192}
_AT_ONCE = {"cpu": 1, "cuda": 8}
"""Products between two looks at the clock."""
_COPY_BYTES = 2**28
_REDUCE_BYTES = 2**30
_REPEATS = 3
_SEED = 1


def check_node(devices: Sequence[torch.device], *, load_s: float = LOAD_S) -> dict[str, Any]:
    """Measure the devices together.

    Args:
        devices: those to be measured, all of one kind.
        load_s: how long they multiply, in seconds.

    Returns:
        `devices`: each one's kind (`name`; for a GPU also `sms` and `memory_mb`), sustained `flops`
        (FLOP/s), two `checksums` of one product and `h2d_gb_s`. `p2p_gb_s`: from row to column,
        GB/s, null on the diagonal. `all_reduce_gb_s`.
    """
    works = [_Work(device) for device in devices]
    before = [work.checksum() for work in works]
    flops = _together([partial(work.sustain, load_s) for work in works])
    after = [work.checksum() for work in works]
    rows = [
        {
            "device": str(work.device),
            **_kind(work.device),
            "flops": round(flops[index]),
            "checksums": [before[index], after[index]],
            "h2d_gb_s": _from_host(work.device),
        }
        for index, work in enumerate(works)
    ]
    del works
    return {
        "load_s": load_s,
        "devices": rows,
        "p2p_gb_s": [[_between(a, b) for b in devices] for a in devices],
        "all_reduce_gb_s": _all_reduce(devices),
    }


class _Work:
    """The product that a device makes; the factors are made on the host, equal for all."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._size = _SIZES[device.type]
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        source = torch.Generator().manual_seed(_SEED)
        self._a, self._b = (
            torch.randn(self._size, self._size, generator=source).to(device, dtype)
            for _ in range(2)
        )
        self._out = torch.empty_like(self._a)

    def checksum(self) -> str:
        """Return a sum over the bits of the product, in hexadecimal."""
        torch.mm(self._a, self._b, out=self._out)
        bits = torch.int16 if self._out.element_size() == 2 else torch.int32
        flat = self._out.view(bits).flatten().to(torch.int64)
        weights = torch.arange(flat.numel(), device=self.device) % 65_521 + 1
        total = int((flat * weights).sum().item())
        return f"{total & 0xFFFF_FFFF_FFFF_FFFF:016x}"

    def sustain(self, load_s: float) -> float:
        """Multiply for so many seconds; FLOP/s over all of them."""
        _wait(self.device)
        count, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < load_s or count == 0:
            for _ in range(_AT_ONCE[self.device.type]):
                torch.mm(self._a, self._b, out=self._out)
            _wait(self.device)
            count += _AT_ONCE[self.device.type]
        return 2 * self._size**3 * count / took


def _together(calls: Sequence[Callable[[], float]]) -> list[float]:
    """Make every call in a thread of its own at once; what one raises is raised here."""
    results: list[float | Exception] = [0.0] * len(calls)
    start = threading.Barrier(len(calls))

    def make(index: int) -> None:
        start.wait()
        try:
            results[index] = calls[index]()
        except RuntimeError as error:  # torch's word for a kernel that fails
            results[index] = error

    threads = [threading.Thread(target=make, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if isinstance(result, float)]


def _from_host(device: torch.device) -> float | None:
    if device.type == "cpu":
        return None
    host = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    return _rate(host, torch.empty_like(host, device=device, pin_memory=False))


def _between(source: torch.device, target: torch.device) -> float | None:
    if source == target:
        return None
    taken = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=source)
    return _rate(taken, torch.empty_like(taken, device=target))


def _rate(source: torch.Tensor, target: torch.Tensor) -> float:
    """Return the best rate of several copies, GB/s."""
    fastest_s = float("inf")
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        for side in (source.device, target.device):
            _wait(side)
        fastest_s = min(fastest_s, time.perf_counter() - began)
    return round(source.numel() / fastest_s / 1e9, 3)


def _all_reduce(devices: Sequence[torch.device]) -> float | None:
    """Return the bus bandwidth of an all-reduce, GB/s; None without several GPUs, or NCCL."""
    if len(devices) < 2 or any(device.type != "cuda" for device in devices):
        return None
    if not (distributed.is_available() and distributed.is_nccl_available()):
        return None
    from torch.cuda import nccl

    rows = [torch.ones(_REDUCE_BYTES // 4, device=device) for device in devices]
    fastest_s = float("inf")
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        nccl.all_reduce(rows)
        for device in devices:
            _wait(device)
        fastest_s = min(fastest_s, time.perf_counter() - began)
    share = 2 * (len(devices) - 1) / len(devices)
    return round(share * _REDUCE_BYTES / fastest_s / 1e9, 3)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _kind(device: torch.device) -> dict[str, Any]:
    """Return what equal devices have in common: cards of one name may differ in units or memory."""
    if device.type == "cpu":
        return {"name": "cpu"}
    known = torch.cuda.get_device_properties(device)
    return {
        "name": str(known.name),
        "sms": known.multi_processor_count,
        "memory_mb": known.total_memory // 2**20,
    }
