import json
import math
import os
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nsa import heartbeat
from nsa.heartbeat import Heartbeat

ALWAYS = {"v", "ts", "iso", "mono", "pid", "rank", "boot", "seq", "step", "msg"}
ALWAYS |= {"section", "section_seq"}


def _heart(file: Path, **changes: Any) -> Heartbeat:
    return Heartbeat(file, **{"rank": 3, "boot": "b", "alive_every_s": 60.0, **changes})


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _wait_for(file: Path, msg: str) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for line in _lines(file):
            if line["msg"] == msg:
                return line
        time.sleep(0.01)
    raise AssertionError(f"no {msg} line")


def test_every_line_has_the_fields_that_readers_rely_on(tmp_path: Path) -> None:
    heart = _heart(tmp_path / "h")
    heart.beat("boot", backend="single")
    heart.step = 4
    heart.beat("done")
    heart.close()
    first, second = _lines(tmp_path / "h")
    assert first.keys() == ALWAYS | {"backend"}
    assert second.keys() == ALWAYS
    assert (first["rank"], first["boot"], first["pid"]) == (3, "b", os.getpid())
    assert [first["seq"], second["seq"]] == [1, 2]
    assert [first["step"], second["step"]] == [0, 4]
    assert abs(first["ts"] - time.time()) < 60
    assert first["mono"] <= second["mono"]


def test_numbers_that_are_not_finite_are_strings_and_losses_keep_their_digits(
    tmp_path: Path,
) -> None:
    heart = _heart(tmp_path / "h")
    loss = 5.545177444479562
    heart.beat("progress", loss=loss, a=math.nan, b=math.inf, c={"d": [-math.inf]})
    heart.close()
    (line,) = _lines(tmp_path / "h")
    assert line["loss"] == loss
    assert (line["a"], line["b"], line["c"]) == ("NaN", "Infinity", {"d": ["-Infinity"]})


def test_sequence_numbers_have_no_gap_when_threads_write_at_once(tmp_path: Path) -> None:
    heart = _heart(tmp_path / "h")

    def write() -> None:
        for _ in range(200):
            heart.beat("x")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    heart.close()
    assert [line["seq"] for line in _lines(tmp_path / "h")] == list(range(1, 801))


def test_a_section_outside_a_step_is_told_at_both_edges_and_inside_only_when_long(
    tmp_path: Path,
) -> None:
    heart = _heart(tmp_path / "h")
    with heart.in_section("eval"):
        pass
    heart.in_step = True
    with heart.in_section("forward"):
        pass
    assert [(line["msg"], line["section"]) for line in _lines(tmp_path / "h")] == [
        ("section", "eval"),
        ("section", None),
    ]
    heart.start_thread()
    with heart.in_section("backward"):
        line = _wait_for(tmp_path / "h", "section")
        assert line["section"] == "eval"
        deadline = time.monotonic() + 120
        while _lines(tmp_path / "h")[-1]["section"] != "backward":
            assert time.monotonic() < deadline
            time.sleep(0.01)
    line = _lines(tmp_path / "h")[-1]
    assert line["msg"] == "section"
    assert line["section_age_s"] >= 1.0  # written in milliseconds: a hair over a second reads 1.0
    heart.close()


def test_the_thread_speaks_only_in_silence(tmp_path: Path) -> None:
    heart = _heart(tmp_path / "h", alive_every_s=0.3)
    heart.in_step = True
    with heart.in_section("backward"):
        heart.count_collective()
        heart.start_thread()
        line = _wait_for(tmp_path / "h", "alive")
    heart.close()
    assert line["section"] == "backward"
    assert line["collective_seq"] == 1
    assert line["section_age_s"] >= 0.3
    lines = _lines(tmp_path / "h")
    for earlier, later in pairwise(lines):
        if later["msg"] == "alive":
            assert later["mono"] - earlier["mono"] >= 0.3


def _refuse(fd: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("shown", [False, True])
def test_lines_are_shown_where_the_watcher_may_be_on_another_host(
    shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file system's client kept them for half a minute."""
    sync, synced = os.fdatasync, list[int]()

    def counted(descriptor: int) -> None:
        sync(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fdatasync", counted)
    monkeypatch.setattr(heartbeat, "_SHOW_EVERY_S", 0.0)
    monkeypatch.setattr(heartbeat, "_ANNOUNCE_AFTER_S", math.inf)  # no other line
    heart = _heart(tmp_path / "h", shown=shown)
    heart.start_thread()
    heart.beat("boot")
    size = (tmp_path / "h").stat().st_size
    deadline = time.monotonic() + (120.0 if shown else 0.5)
    while not synced and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)  # a few more looks of the thread: what is synced is not synced again
    heart.close()
    assert synced == ([size] if shown else []), "and nothing is synced twice"


def test_a_full_disk_is_counted_and_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_LAST_S", 0.2)
    heart = _heart(Path("/dev/full"))
    heart.beat("boot")
    heart.beat("progress", loss=1.0)
    assert heart.write_failures == 2
    heart.close()
    assert heart.write_failures > 2


def test_refused_lines_wait_and_are_written_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was full for a moment left a hole, and the whole run was inconclusive."""
    heart = _heart(tmp_path / "h")
    real = os.write
    heart.beat("one")
    monkeypatch.setattr(os, "write", _refuse)
    heart.beat("two")
    heart.beat("three")
    monkeypatch.setattr(os, "write", real)
    heart.beat("four")
    heart.close()
    lines = _lines(tmp_path / "h")
    assert [(line["msg"], line["seq"]) for line in lines] == [
        ("one", 1), ("two", 2), ("three", 3), ("four", 4),
    ]  # fmt: skip
    assert [line.get("write_failures") for line in lines] == [None, None, 1, 2]


def test_who_leaves_waits_for_a_disk_to_take_the_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heart = _heart(tmp_path / "h")
    real, tried = os.write, []

    def write(fd: int, data: bytes) -> int:
        tried.append(data)
        return real(fd, data) if len(tried) > 3 else _refuse(fd, data)

    monkeypatch.setattr(os, "write", write)
    heart.beat("done")
    heart.close()
    assert [line["msg"] for line in _lines(tmp_path / "h")] == ["done"]


def test_of_what_waits_too_long_the_oldest_is_lost_and_the_numbers_show_the_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_KEPT_BYTES", 2_000)
    heart = _heart(tmp_path / "h")
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
    heart.beat("first")
    monkeypatch.setattr(os, "write", _refuse)
    for _ in range(30):
        heart.beat("x")
    monkeypatch.setattr(os, "write", real)
    heart.beat("last")
    heart.close()
    numbers = [line["seq"] for line in _lines(tmp_path / "h")]
    assert (numbers[0], numbers[-1]) == (1, 32)
    assert 5 < len(numbers) < 15
    assert numbers[1:] == list(range(numbers[1], 33))


@pytest.mark.parametrize("refused", [0, 20], ids=["a disk with room", "a full disk at first"])
def test_a_line_that_an_earlier_process_left_torn_does_not_spoil_the_next(
    refused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The boot line of a restart stood behind it, and was read as no line at all."""
    monkeypatch.setattr(heartbeat, "_KEPT_BYTES", 2_000)
    (tmp_path / "h").write_text('{"seq":1}\n{"seq":2,"ms')
    heart = _heart(tmp_path / "h")
    real = os.write
    monkeypatch.setattr(os, "write", _refuse)
    for _ in range(refused):
        heart.beat("x")
    monkeypatch.setattr(os, "write", real)
    heart.beat("boot")
    heart.close()
    first, torn, *ours = (tmp_path / "h").read_text().splitlines()
    assert (first, torn) == ('{"seq":1}', '{"seq":2,"ms')
    assert json.loads(ours[-1])["msg"] == "boot"
    assert {json.loads(line)["boot"] for line in ours} == {json.loads(ours[-1])["boot"]}
