"""Which lines a recorded tick brought, by the bytes that it says it had read, and by `seq`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.tick import LinesSeen, Tick
from gonogo.rundir import RunDir
from gonogo.watch.brought import ByBytes, BySeq

LONG = b"x" * (MAX_LINE_BYTES + 1)
MORE = b"x" * (2**20 + 9)
"""More than is read at once of what no tick brought."""


def brought(folder: Path, written: bytes, *ends: int) -> list[list[bytes]]:
    """Return what each tick brought of a file of rank 0, and what none did."""
    run_dir = RunDir(folder)
    run_dir.heartbeat(0).write_bytes(written)
    files = ByBytes(run_dir)
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


def test_what_outgrew_a_line_was_one_of_that_look_and_so_was_its_rest(tmp_path: Path) -> None:
    written = LONG + b"y\nb\n"
    assert brought(tmp_path, written, len(LONG), len(written)) == [[LONG], [b"y", b"b"]]
    assert brought(tmp_path, b"a\n" + LONG, 2 + len(LONG)) == [[b"a"]]
    assert brought(tmp_path, b"a\n" + LONG, 2 + len(LONG), 99 * len(LONG)) == [[b"a"], []]
    longest = LONG[1:]
    written = longest + b"\nb\n"
    assert brought(tmp_path, written, len(longest), len(written)) == [[], [longest, b"b"]]


def test_what_no_tick_brought_is_read_whole_behind_a_line_that_outgrew_all_bounds(
    tmp_path: Path,
) -> None:
    parts = brought(tmp_path, MORE + b"\nb\n")
    assert [line for part in parts for line in part] == [MORE, b"b"]


def row(seq: int, *, size: int = 200, boot: str = "boot") -> bytes:
    """A line of rank 0, of so many bytes, which says its number."""
    stamp = {"ts": seq, "mono": seq, "pid": 1, "rank": 0, "step": 0, "msg": "alive"}
    raw = json.dumps({"boot": boot, "seq": seq, **stamp}).encode()
    return raw + b" " * (size - 1 - len(raw)) + b"\n"


def by_seq(
    folder: Path, lines: list[bytes], *looks: tuple[int | None, int], gone: int = 0
) -> list[list[int | str]]:
    """Return the numbers of the lines that each tick brought, and of those that none did.

    Args:
        folder: of the run.
        lines: of rank 0, as they stand in its file.
        looks: to which seq, and to which byte, each tick had read.
        gone: bytes that the watcher had read, and which are not in the file any more.
    """
    run_dir = RunDir(folder)
    run_dir.heartbeat(0).write_bytes(b"".join(lines))
    files = BySeq(run_dir, {0: ["boot"]}, {0: sum(map(len, lines)) + gone})
    found = []
    for seq, end in looks:
        seen = {} if seq is None else {"0": LinesSeen(boot="boot", seq=seq, digest="")}
        tick = Tick(n=0, mono=0.0, ts=0.0, lines=seen, upto={"0": end})
        found.append(files.lines_of(tick).get(0, []))
    found += [rows[0] for rows in files.rest()]
    return [[number_of(raw) for raw in rows] for rows in found]


def number_of(raw: bytes) -> int | str:
    return "torn" if raw.startswith(b"torn") else int(json.loads(raw)["seq"])


TORN = b"torn".ljust(299) + b"\n"
"""Longer than a line: without it, one line more would lie in what a tick had read."""


@pytest.mark.parametrize(
    ("lines", "looks", "found"),
    [
        ([row(1), row(2), row(3)], [(1, 200), (3, 600)], [[1], [2, 3]]),
        ([row(1), row(2), row(3)], [(2, 400)], [[1, 2], [3]]),
        ([row(3), row(1), row(2)], [(1, 200), (3, 600)], [[1], [2, 3]]),
        ([row(1), row(3), row(2)], [(1, 400), (3, 600)], [[1], [2, 3]]),
        ([row(1), row(3), row(4)], [(1, 400), (1, 600)], [[1, 3], [4]]),
        ([row(1), row(3), row(4)], [(1, 399), (1, 600)], [[1], [3, 4]]),
        ([row(1), TORN, row(3), row(4)], [(1, 700), (1, 900)], [[1, "torn", 3], [4]]),
        ([TORN, row(2), row(3)], [(0, 500), (0, 700)], [["torn", 2], [3]]),
        ([TORN, row(1), row(2)], [(None, 300), (1, 500), (2, 700)], [["torn"], [1], [2]]),
        ([row(1), TORN, row(2)], [(1, 499), (1, 500), (2, 700)], [[1], ["torn"], [2]]),
    ],
    ids=[
        "in order", "the rest", "moved", "read ahead", "behind a hole", "a part of it",
        "torn in the hole", "the first one torn", "torn in front", "torn between",
    ],
)  # fmt: skip
def test_by_seq_a_tick_brings_what_it_says_and_beyond_a_hole_what_its_bytes_say(
    lines: list[bytes],
    looks: list[tuple[int | None, int]],
    found: list[list[int | str]],
    tmp_path: Path,
) -> None:
    assert by_seq(tmp_path, lines, *looks) == found


def test_what_is_gone_of_the_bytes_stood_where_the_first_line_is_missing(tmp_path: Path) -> None:
    """Whoever takes out of the file what was torn moves no later line to an earlier tick."""
    looks = [(1, 500), (1, 700), (1, 900)]
    assert by_seq(tmp_path, [row(1), row(3), row(4)], *looks, gone=300) == [[1], [3], [4]]
    assert by_seq(tmp_path, [row(2), row(3)], (0, 300), (0, 500), gone=300) == [[], [2], [3]]
