"""Which kernels does one layer's forward and backward spend its time in, with which tiles?

Rows `kernel` are a profile at three shapes. Rows `tile` are the microseconds of one kernel in a
call, with each candidate of its tile, written as in `nsa/attention/gpu/shapes.py`. A candidate that
does not compile or fit says so. A person chooses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from bench.gpu.cases import Case, forward_backward
from bench.gpu.compilation import compile_each, rehearse
from bench.gpu.rows import Context, Step, append_row, kernel_times
from nsa.attention.gpu import launch
from nsa.attention.gpu.shapes import Tile, Tiles, tiles_for

DTYPE = torch.bfloat16
CALLS = 3
_TINY = Case(S=128, H=6, G=2, D=16, l=8, d=4, l_sel=16, n_sel=4, w=20)
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
    """Yield case, column and tile of each row, the table's own first; most time goes first."""
    for case, columns in (
        (_TRAINED, ("dkdv", "dq", "forward")),
        (_LONG, ("gathered_backward", "dkdv", "gathered", "dq", "forward", "scores")),
    ):
        for column in columns:
            for tile in dict.fromkeys((getattr(table, column), *map(tile_of, CANDIDATES[column]))):
                yield case, column, tile


def run(context: Context) -> None:
    """Rows `kernel`, then on a GPU rows `tile`."""
    for case in (_TINY,) if context.tiny else (Case(S=8192), _LONG, _TRAINED):
        backend = "torch" if context.tiny else "triton"
        step = forward_backward(case, backend, DTYPE, context.device)
        times = kernel_times(step, context.device, CALLS)
        whole = sum(us for _, us in times)
        for name in sorted({name for name, _ in times}):
            each = [us for other, us in times if other == name]
            append_row(
                context.file, "kernel", B=case.B, S=case.S, kernel=name[:60],
                us=round(sum(each) / CALLS, 2), launches=len(each) // CALLS,
                share=round(sum(each) / whole, 4),
            )  # fmt: skip
    if not context.tiny:
        _sweep(context)


def _sweep(context: Context) -> None:
    table = tiles_for(DTYPE, _TRAINED.D)
    steps: dict[Case, Step] = {
        case: forward_backward(case, "triton", DTYPE, context.device) for case in (_TRAINED, _LONG)
    }
    launches = {}
    for case, column, tile in sweeps(table):
        with using(dataclasses.replace(table, **{column: tile})):
            launches |= {found.key(): found for found in rehearse([steps[case]])}
    compile_each(list(launches.values()))  # one that does not compile says so in its turn

    def measure(case: Case, column: str, tile: Tile) -> dict[str, float]:
        with using(dataclasses.replace(table, **{column: tile})):
            times = kernel_times(steps[case], context.device, CALLS)
        each = [us for name, us in times if name == KERNELS[column]]
        if not each:
            raise RuntimeError(f"no launch of {KERNELS[column]}")
        return {"us": round(sum(each) / CALLS, 2)}

    for case, column, tile in sweeps(table):
        context.measure(
            "tile", partial(measure, case, column, tile), B=case.B, S=case.S,
            own=tile == getattr(table, column), tile=as_row(column, tile),
        )  # fmt: skip
