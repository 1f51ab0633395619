"""Compile the kernels of a call before it runs, many at once.

A call is rehearsed: its launches are noted, then compiled in threads. The real call finds them in
Triton's cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.runtime import JITFunction


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel and what it is compiled for: dtypes for tensors, sizes, and constants."""

    kernel: JITFunction
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]

    def key(self) -> tuple[Any, ...]:
        """Equal for launches that run the same machine code: sizes are not specialised on."""
        kinds = tuple(
            type(value) if isinstance(value, int | float) else value for value in self.arguments
        )
        return self.kernel.__name__, kinds, self.options

    def compile(self) -> Any:
        """Compile it, or find it compiled: Triton's compiled kernel."""
        return self.kernel.warmup(*self.arguments, grid=(1,), **dict(self.options))


@contextmanager
def _noted() -> Iterator[list[Launch]]:
    """The launches of all kernels, which do not run meanwhile."""
    launches: list[Launch] = []

    def note(kernel: JITFunction, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        dtypes = tuple(x.dtype if isinstance(x, Tensor) else x for x in arguments)
        launches.append(Launch(kernel, dtypes, tuple(sorted(options.items()))))

    run = JITFunction.run
    JITFunction.run = note
    try:
        yield launches
    finally:
        JITFunction.run = run


def rehearse(calls: Sequence[Callable[[], object]]) -> list[Launch]:
    """The launches of some calls that differ in what they are compiled for; none is made."""
    with _noted() as launches:
        for call in calls:
            call()
    return list({launch.key(): launch for launch in launches}.values())


def compile_each(launches: Sequence[Launch], threads: int | None = None) -> list[Any]:
    """Compile launches in threads; returns Triton's kernel of each, or its exception."""
    device = torch.cuda.current_device() if torch.cuda.is_available() else None

    def compile_one(launch: Launch) -> Any:
        if device is not None:
            torch.cuda.set_device(device)  # a thread begins on the first one
        return launch.compile()

    workers = threads or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        compiling = [pool.submit(compile_one, launch) for launch in launches]
        return [future.exception() or future.result() for future in compiling]
