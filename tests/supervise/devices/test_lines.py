"""Does the watcher see every sample once, whatever the file looks like and whenever it starts?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.canonical import wire_line
from gonogo.contract.tick import LinesSeen, ProcessState, RankProbe, Tick
from gonogo.rundir import RunDir, iter_lines
from gonogo.supervise.devices import lines
from gonogo.supervise.devices.lines import DeviceLines, find_offset


def line(mono: float, **more: Any) -> bytes:
    row = {"v": 1, "ts": 1000.0 + mono, "mono": mono, "uuid": "GPU-a", "index": 0, "util": 90.0}
    return json.dumps({**row, **more}).encode() + b"\n"


def clocks(payload: list[dict[str, Any]] | None) -> list[float]:
    return [row["mono"] for row in payload or []]


def test_without_a_file_there_is_nothing_to_see(tmp_path: Path) -> None:
    assert DeviceLines(RunDir(tmp_path)).look(0.0) is None


def test_what_came_while_the_watcher_was_away_makes_ticks_that_are_read_as_whole(
    tmp_path: Path,
) -> None:
    """A tick in two pieces is no tick, and a run of which one cannot be read is inconclusive."""
    run, ranks = RunDir(tmp_path), range(256)
    run.devices.write_bytes(b"".join(line(0.001 * number) for number in range(9_000)))
    source = DeviceLines(run)
    told = 0
    while payload := source.look(0.0):
        told += len(payload)
        seen = {str(rank): LinesSeen(boot="b" * 32, seq=10**6, digest="d" * 64) for rank in ranks}
        tick = Tick(
            n=9, mono=1.0, ts=1.0, observations={"devices": payload},
            upto={str(rank): 10**9 for rank in ranks}, lines=seen,
            ranks=[RankProbe(rank=rank, pid=10**6, state=ProcessState.ALIVE) for rank in ranks],
        )  # fmt: skip
        raw = wire_line(tick.model_dump(mode="json", exclude_defaults=True))
        run.watch.write_bytes(raw)
        assert list(iter_lines(run.watch)) == [raw]
    assert told == 9_000


def test_each_sample_is_seen_once_and_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    source = DeviceLines(run)
    whole = line(3.0)
    run.devices.write_bytes(line(1.0) + line(2.0) + whole[:20])
    assert clocks(source.look(0.0)) == [1.0, 2.0]
    assert source.look(1.0) is None
    with run.devices.open("ab") as stream:
        stream.write(whole[20:])
    assert clocks(source.look(2.0)) == [3.0]


@pytest.mark.parametrize(
    "odd",
    [
        b"nonsense\n",
        b"\n",
        b"{}\n",
        b"[1]\n",
        b'{"v":1,"ts":1,"mono":NaN,"uuid":"GPU-a"}\n',
        b'{"v":1,"ts":1,"mono":"soon","uuid":"GPU-a"}\n',
        b'{"v":1,"ts":1,"mono":2,"uuid":"GPU-a","xids":"79"}\n',
        b"\xff\xfe\n",
        b"x" * 300_000 + b"\n",
    ],
)
def test_a_line_that_is_no_sample_is_counted_and_hides_no_other(tmp_path: Path, odd: bytes) -> None:
    run = RunDir(tmp_path)
    run.devices.write_bytes(line(1.0) + odd + line(2.0))
    source = DeviceLines(run)
    seen = [mono for _ in range(4) for mono in clocks(source.look(0.0))]
    assert seen == [1.0, 2.0]
    assert source.unreadable >= 1


def test_a_folder_in_place_of_the_file_is_an_os_error(tmp_path: Path) -> None:
    RunDir(tmp_path).devices.mkdir()
    with pytest.raises(OSError):
        DeviceLines(RunDir(tmp_path)).look(0.0)


@pytest.mark.parametrize("payload", [None, [], {}, "x", [None], [{"uuid": "GPU-a"}]])
def test_a_payload_without_a_clock_leaves_nothing_out(tmp_path: Path, payload: Any) -> None:
    run = RunDir(tmp_path)
    run.devices.write_bytes(line(1.0))
    source = DeviceLines(run)
    source.resume(payload)
    assert clocks(source.look(0.0)) == [1.0]


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 200), seen=st.integers(0, 200), text=st.integers(0, 60))
def test_a_new_watcher_goes_on_exactly_after_the_last_recorded_sample(
    tmp_path_factory: pytest.TempPathFactory, count: int, seen: int, text: int
) -> None:
    run = RunDir(tmp_path_factory.mktemp("run"))
    rows = [line(float(n), uuid="GPU-" + "x" * (n * text % 97)) for n in range(count)]
    run.devices.write_bytes(b"".join(rows))
    before = lines.LOOK_BYTES
    try:
        lines.LOOK_BYTES = 512  # so that a short file is halved, too
        source = DeviceLines(run)
        source.resume([{"mono": float(seen - 1)}] if seen else [])
        found: list[float] = []
        for now in range(count + 1):
            found += clocks(source.look(float(now)))
    finally:
        lines.LOOK_BYTES = before
    assert found == [float(n) for n in range(min(seen, count), count)]


def test_the_place_in_a_long_file_is_found_by_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = RunDir(tmp_path).devices
    path.write_bytes(b"".join(line(float(n)) for n in range(40_000)))
    reads = []
    real = lines._first_sample
    monkeypatch.setattr(lines, "_first_sample", lambda *a: (reads.append(1), real(*a))[1])
    offset = find_offset(path, 29_999.0)
    first = json.loads(path.read_bytes()[offset:].splitlines()[0])["mono"]
    assert 29_999.0 - lines.LOOK_BYTES / 60 <= first <= 30_000.0
    assert len(reads) < 20
