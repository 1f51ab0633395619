"""How long does a call take on this device, eager and as a CUDA graph?"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from bench.on_gpu.failures import first_line, is_fatal
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


def time_both_ways(
    step: Step, device: torch.device, repeats: int, *, waits: bool = False
) -> dict[str, object]:
    """Eager and graph timings and peak memory; what cannot be captured says why.

    Args:
        step: What is timed.
        device: Where.
        repeats: Timed calls.
        waits: Whether it is known to wait for the GPU: then no capture is tried, since one that
            fails may leave PyTorch's allocator as within a capture, for all that comes after.

    Raises:
        RuntimeError: The call itself fails.
    """
    if device.type != "cuda":
        return {"eager": spread(measure(step, device, repeats)), "graph": None}
    torch.cuda.reset_peak_memory_stats(device)
    told: dict[str, object] = {"eager": spread(measure(step, device, repeats))}
    told["peak_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 3)
    if waits:
        return {**told, "graph": None, "graph_error": "not tried: it waits for the GPU"}
    try:
        told["graph"] = spread(measure(as_graph(step), device, repeats))
    except RuntimeError as error:
        if is_fatal(error) and "captur" not in str(error):
            raise
        told["graph"] = None
        told["graph_error"] = first_line(error)
    return told
