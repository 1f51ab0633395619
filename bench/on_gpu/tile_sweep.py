"""Which tiles are fastest here? Each kernel by its own time on the device.

Rows `tile` are written as in `nsa/attention/gpu/tiles.py`, with the microseconds of every launch of
the kernel in one call. A candidate that does not compile or fit says so. A person chooses.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

from bench.on_gpu.rows import Context
from bench.on_gpu.stopwatch import Step
from nsa.attention.gpu import launch
from nsa.attention.gpu.compilation import compile_each, rehearse
from nsa.attention.gpu.tiles import Tile, Tiles, tiles_for
from nsa.attention.gpu.trial import Case, forward_backward

DTYPE = torch.bfloat16
_CALLS = 5
_TRAINED, _LONG = Case(S=2048, B=32), Case(S=32768)
KERNELS: Mapping[str, str] = {
    "forward": "band_forward",
    "dq": "band_dq",
    "dkdv": "band_dkdv",
    "gathered": "gathered_forward",
    "gathered_backward": "gathered_backward",
    "scores": "block_scores",
}
"""Column of the table → the kernel that it sizes."""
_OF_BANDS = (
    "64x64/4/2", "64x64/4/3", "64x64/4/4", "64x32/4/3", "64x128/4/2", "64x128/8/3", "128x32/8/3",
    "128x64/4/2", "128x64/4/3", "128x64/8/2", "128x64/8/3", "128x64/8/4", "128x64/8/2/128",
    "128x64/8/3/128", "128x128/8/2", "128x128/8/3",
)  # fmt: skip
_OF_BLOCKS = (
    "32x64/4/2", "64x64/4/1", "64x64/4/2", "64x64/4/3", "64x64/4/4", "64x64/8/2", "64x64/8/2/128",
    "128x64/4/1", "128x64/4/2", "128x64/8/1", "128x64/8/2", "128x64/8/3",
)  # fmt: skip
CANDIDATES: Mapping[str, Sequence[str]] = {
    "forward": _OF_BANDS,
    "dq": _OF_BANDS,
    "dkdv": (
        "32x64/4/3", "32x64/4/4", "32x128/4/2", "32x128/4/3", "32x128/4/4", "32x128/8/3",
        "64x64/4/1", "64x64/4/2", "64x64/4/3", "64x64/8/2", "64x128/4/2", "64x128/8/1",
        "64x128/8/2", "64x128/8/3", "64x128/8/2/128", "128x64/4/2", "128x64/8/2", "128x128/8/1",
        "128x128/8/2",
    ),
    "gathered": (*_OF_BLOCKS, "64x64/4/1/128", "128x64/4/1/128", "128x64/8/1/128", "256x64/8/1"),
    "gathered_backward": _OF_BLOCKS,
    "scores": (
        "32x64/4/2", "64x32/4/2", "64x64/4/1", "64x64/4/2", "64x64/4/3", "64x64/8/2", "64x128/4/2",
        "64x128/8/2", "128x32/4/2", "128x64/4/2", "128x64/8/2", "128x64/8/3", "128x128/8/2",
    ),
}  # fmt: skip
"""rows x keys / warps / stages, and the most registers where they are limited."""


def tile_of(told: str) -> Tile:
    """The tile of a candidate."""
    size, warps, stages, *registers = told.split("/")
    rows, keys = map(int, size.split("x"))
    most = int(registers[0]) if registers else None
    return Tile(rows=rows, keys=keys, warps=int(warps), stages=int(stages), registers=most)


def as_row(kernel: str, tile: Tile) -> str:
    """The line of the table."""
    registers = f", registers={tile.registers}" if tile.registers else ""
    return (
        f"{kernel}=Tile(rows={tile.rows}, keys={tile.keys}, warps={tile.warps}, "
        f"stages={tile.stages}{registers}),"
    )


@contextmanager
def using(tiles: Tiles) -> Iterator[None]:
    """Every launch takes these tiles meanwhile."""
    before = launch.tiles_for
    launch.tiles_for = lambda _dtype, _width: tiles
    try:
        yield
    finally:
        launch.tiles_for = before


def sweeps(table: Tiles) -> Iterator[tuple[Case, str, Tile]]:
    """Case, column and tile of each row, the table's own first: where most time goes, first."""
    for case, columns in (
        (_TRAINED, ("dkdv", "dq", "forward")),
        (_LONG, ("gathered_backward", "dkdv", "gathered", "dq", "forward", "scores")),
    ):
        for column in columns:
            own = getattr(table, column)
            others = [tile_of(told) for told in CANDIDATES[column]]
            for tile in (own, *(tile for tile in others if tile != own)):
                yield case, column, tile


def launches_us(step: Step, kernel: str) -> list[float]:
    """Return the device's microseconds of each launch of a kernel in a call, as medians."""
    step()
    with profile(activities=[ProfilerActivity.CUDA]) as told:
        for _ in range(_CALLS):
            step()
        torch.cuda.synchronize()
    found = sorted((event for event in told.events() if event.name == kernel),
                   key=lambda event: event.time_range.start)  # fmt: skip
    if not found or len(found) % _CALLS:
        raise RuntimeError(f"{len(found)} launches of {kernel} in {_CALLS} calls")
    each = len(found) // _CALLS
    return [
        round(statistics.median(event.self_device_time_total for event in found[n::each]), 2)
        for n in range(each)
    ]


def run(context: Context) -> None:
    """Rows `tile`: one kernel's launches within forward and backward, with its tile changed."""
    table = tiles_for(DTYPE, _TRAINED.D)
    steps = {case: forward_backward(case, "triton", DTYPE, context.device)
             for case in (_TRAINED, _LONG)}  # fmt: skip
    tried = list(sweeps(table))
    _compile_all(tried, table, steps)

    def measure(case: Case, column: str, tile: Tile) -> dict[str, object]:
        with using(dataclasses.replace(table, **{column: tile})):
            each = launches_us(steps[case], KERNELS[column])
        return {"us": round(sum(each), 2), "each_us": each}

    for case, column, tile in tried:
        row = as_row(column, tile)
        own = tile == getattr(table, column)
        context.measure(
            "tile", f"{row} at {case.B}x{case.S}",
            functools.partial(measure, case, column, tile),
            kernel=column, tile=row, own=own, S=case.S, B=case.B,
        )  # fmt: skip


def _compile_all(
    tried: Iterable[tuple[Case, str, Tile]], table: Tiles, steps: Mapping[Case, Step]
) -> None:
    """All candidates at once; one that does not compile says so when its turn comes."""
    launches = {}
    for case, column, tile in tried:
        with using(dataclasses.replace(table, **{column: tile})):
            launches |= {found.key(): found for found in rehearse([steps[case]])}
    compile_each(list(launches.values()))
