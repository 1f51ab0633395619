"""How long does a call take on this device, eager and as a CUDA graph?"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from bench.on_gpu.figures import spread
from nsa.attention.gpu.trial import timings_ms

REPEATS = 20
Step = Callable[[], object]


def measure(step: Step, device: torch.device, repeats: int = REPEATS) -> list[float]:
    """Milliseconds of each of so many calls, after warm-up."""
    if device.type == "cuda":
        return timings_ms(step, repeats)
    step()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        times.append((time.perf_counter() - began) * 1e3)
    return times


def as_graph(step: Step) -> Step:
    """The call captured once; what is returned replays it without Python.

    Raises:
        RuntimeError: Something in it waits for the GPU, or cannot be captured.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()

    def replay() -> object:
        graph.replay()
        return kept  # its memory belongs to the graph: kept as long as the graph is

    return replay


def time_both_ways(step: Step, device: torch.device, repeats: int) -> dict[str, object]:
    """Eager and graph timings and peak memory; what cannot be captured says why.

    Raises:
        RuntimeError: The call itself fails.
    """
    if device.type != "cuda":
        return {"eager": spread(measure(step, device, repeats)), "graph": None}
    torch.cuda.reset_peak_memory_stats(device)
    told: dict[str, object] = {"eager": spread(measure(step, device, repeats))}
    told["peak_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 3)
    try:
        told["graph"] = spread(measure(as_graph(step), device, repeats))
    except RuntimeError as error:
        told["graph"] = None
        told["graph_error"] = first_line(error)
    return told


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


def is_fatal(error: BaseException) -> bool:
    """Whether a CUDA context is of no use after this: every later call would fail as well."""
    words = ("CUDA error", "illegal memory access", "misaligned address", "device-side assert")
    return any(word in str(error) for word in words)
