"""Which tiles are fastest here? Each of the three largest kernels by itself, others as they are.

Rows `tile`, each written as it would stand in `nsa/attention/gpu/tiles.py`. A candidate that does
not compile or fit says so. Nothing is chosen here: a person does, and the trial proves it again.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from bench.on_gpu.figures import spread
from bench.on_gpu.rows import Context
from bench.on_gpu.stopwatch import Step, measure
from nsa.attention.gpu import launch
from nsa.attention.gpu.cases import HEAD_DIM, Case, forward_backward
from nsa.attention.gpu.compilation import compile_each, rehearse
from nsa.attention.gpu.tiles import Tile, Tiles, tiles_for

SWEPT = ("forward", "dkdv", "gathered_backward")
_CASE = Case(S=8192, B=2)
DTYPE = torch.bfloat16


def candidates(of: Tile) -> Iterator[Tile]:
    """Tiles around one: rows, keys, warps, stages, and half of the registers."""
    for rows, warps, stages in itertools.product((64, 128), (4, 8), (2, 3)):
        for registers in (None, 128) if warps == 8 else (None,):
            tile = dataclasses.replace(
                of, rows=rows, warps=warps, stages=stages, registers=registers
            )
            if tile != of:
                yield tile


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


def run(context: Context) -> None:
    """Rows `tile`: forward + backward of a layer at 8k, with one kernel's tile changed.

    The first, of no kernel, is of the table as it is.
    """
    table = tiles_for(DTYPE, HEAD_DIM)
    step = forward_backward(_CASE, "triton", DTYPE, context.device)

    def measure_with(tiles: Tiles) -> dict[str, float]:
        with using(tiles):
            return spread(measure(step, context.device))

    unit = functools.partial(measure_with, table)
    context.measure("tile", "tiles of the table", unit, kernel=None, S=_CASE.S, B=_CASE.B)
    tried = [(kernel, tile) for kernel in SWEPT for tile in candidates(getattr(table, kernel))]
    _compile_all(tried, table, step)
    for kernel, tile in tried:
        row = as_row(kernel, tile)
        unit = functools.partial(measure_with, dataclasses.replace(table, **{kernel: tile}))
        context.measure("tile", row, unit, needed_s=4.0, kernel=kernel, tile=row)


def _compile_all(tried: Iterable[tuple[str, Tile]], table: Tiles, step: Step) -> None:
    """All candidates at once; one that does not compile says so when its turn comes."""
    launches = {}
    for kernel, tile in tried:
        with using(dataclasses.replace(table, **{kernel: tile})):
            launches |= {found.key(): found for found in rehearse([step])}
    compile_each(list(launches.values()))
