"""Which lines belong to a recorded tick, by the bytes that it had read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.contract.tick import Tick
from gonogo.rundir import RunDir
from gonogo.watch.offline_fold import BroughtLines

MORE = b"x" * (2**20 + 9)
"""More bytes without a tick than are read at once."""


def brought(folder: Path, written: bytes, *ends: int) -> list[list[bytes]]:
    """Return the lines of rank 0's file by tick, and those of no tick."""
    run_dir = RunDir(folder)
    run_dir.heartbeat(0).write_bytes(written)
    files = BroughtLines(run_dir)
    found = [files.lines_of(Tick.model_construct(upto={"0": end}))[0] for end in ends]
    return [*found, *(rows[0] for rows in files.rest())]


@pytest.mark.parametrize(
    ("ends", "lines"),
    [
        ((2, 4), [[b"a"], [b"b"]]),
        ((1, 3, 4), [[], [b"a"], [b"b"]]),
        ((3, 3, 4), [[b"a"], [], [b"b"]]),
        ((4, 4), [[b"a", b"b"], []]),
        ((2, 99), [[b"a"], [b"b"]]),
        ((2,), [[b"a"], [b"b"]]),
    ],
    ids=["whole", "parts", "twice", "no more", "beyond the end", "the rest"],
)
def test_a_tick_brings_whole_lines_and_a_part_waits_for_its_rest(
    ends: tuple[int, ...], lines: list[list[bytes]], tmp_path: Path
) -> None:
    assert brought(tmp_path, b"a\nb\n", *ends) == lines


def test_what_no_tick_brought_is_read_behind_a_line_that_outgrew_all_bounds(
    tmp_path: Path,
) -> None:
    lines = [line for part in brought(tmp_path, MORE + b"\nb\n") for line in part]
    assert (b"".join(lines), lines[-1]) == (MORE + b"b", b"b")
