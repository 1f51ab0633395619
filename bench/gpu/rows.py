"""Measure one thing, and put its figures on the disk before the next: one JSON line each."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.gpu.cases import timings_ms

Step = Callable[[], object]
REPEATS = 20
_FATAL = ("CUDA error", "illegal memory access", "launch failure", "device-side assert")


def is_fatal(error: BaseException) -> bool:
    """Whether every later CUDA call of this process would fail as well."""
    return any(word in str(error) for word in _FATAL)


def append_row(file: Path, row: str, **values: Any) -> None:
    """Append one line and sync it to the disk."""
    line = json.dumps({"row": row, **values}, default=str) + "\n"
    with file.open("ab") as stream:
        stream.write(line.encode())
        stream.flush()
        os.fsync(stream.fileno())
    print(line, end="", flush=True)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return all rows."""
    return [json.loads(line) for line in file.read_text().splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a stage is given: the device, the file of rows and its deadline (monotonic seconds)."""

    device: torch.device
    file: Path
    until: float

    @property
    def tiny(self) -> bool:
        """Whether this is the smoke test of a machine without a GPU."""
        return self.device.type != "cuda"

    def measure(
        self, row: str, unit: Callable[[], Mapping[str, Any]], needed_s: float = 2.0, **known: Any
    ) -> None:
        """Append the row of one thing that is measured; an error that is fatal to it is raised."""
        if time.monotonic() + needed_s > self.until:
            append_row(self.file, row, **known, error="left out for want of time")
            return
        try:
            found = unit()
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            append_row(self.file, row, **known, error=f"{type(error).__name__}: {first}"[:300])
            if is_fatal(error):
                raise
        else:
            append_row(self.file, row, **{**known, **found})


def spread(times_ms: Sequence[float]) -> dict[str, float]:
    """Median and interquartile range of several timings, rounded to 0.1 us."""
    low, middle, high = statistics.quantiles(times_ms, n=4, method="inclusive")
    return {"ms": round(middle, 4), "iqr_ms": round(high - low, 4)}


def timings(step: Step, device: torch.device, repeats: int = REPEATS) -> dict[str, float]:
    """Return `spread` of so many calls, after warm-up."""
    if device.type == "cuda":
        return spread(timings_ms(step, repeats))
    step()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        times.append((time.perf_counter() - began) * 1e3)
    return spread(times)


def kernel_times(step: Step, device: torch.device, calls: int = 3) -> list[tuple[str, float]]:
    """Name and microseconds of each kernel launch of so many calls; on a CPU of each operation."""
    gpu = device.type == "cuda"
    step()
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as seen:
        for _ in range(calls):
            step()
        if gpu:
            torch.cuda.synchronize()
    times = [
        (event.name, event.self_device_time_total if gpu else event.self_cpu_time_total)
        for event in sorted(seen.events(), key=lambda event: event.time_range.start)
    ]
    return [(name, us) for name, us in times if us > 0]
