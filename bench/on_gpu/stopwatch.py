"""How long does a call take on this device, eager and as a CUDA graph?"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from bench.on_gpu.figures import spread
from bench.on_gpu.rows import first_line, is_fatal
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
    """Capture the call once, and return its replay.

    Raises:
        RuntimeError: it waits for the GPU, or cannot be captured.
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
    """Return eager and graph timings and peak memory, or why a graph cannot be captured.

    Args:
        waits: whether the step is known to wait for the GPU. No capture is tried then: a failed
            one may leave PyTorch's allocator as within a capture.
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
