import json
import math
import os
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from nsa import heartbeat
from nsa.heartbeat import Heartbeat

ALWAYS = {"v", "ts", "iso", "mono", "pid", "rank", "boot", "seq", "step", "msg"}
ALWAYS |= {"section", "section_seq"}


@pytest.fixture
def heart(tmp_path):
    """Makes a heartbeat that writes to `h`; closed at the end."""
    made = []

    def make(file=tmp_path / "h", **changes):
        made.append(Heartbeat(file, **{"rank": 3, "boot": "b", "alive_every_s": 60.0, **changes}))
        return made[-1]

    yield make
    for each in made:
        if not each._closing.is_set():
            each.close()


@pytest.fixture
def lines(tmp_path):
    return lambda: [json.loads(line) for line in (tmp_path / "h").read_text().splitlines()]


def _wait(holds):
    deadline = time.monotonic() + 120
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_every_line_has_the_fields_that_readers_rely_on(heart, lines):
    beating = heart()
    beating.beat("boot", backend="single")
    beating.step = 4
    loss = 5.545177444479562
    beating.beat("progress", loss=loss, a=math.nan, b=math.inf, c={"d": [-math.inf]})
    first, second = lines()
    assert first.keys() == ALWAYS | {"backend"}
    assert second.keys() == ALWAYS | {"loss", "a", "b", "c"}
    assert (first["rank"], first["boot"], first["pid"]) == (3, "b", os.getpid())
    assert [first["seq"], second["seq"]] == [1, 2]
    assert [first["step"], second["step"]] == [0, 4]
    assert abs(first["ts"] - time.time()) < 60
    assert first["mono"] <= second["mono"]
    assert second["loss"] == loss
    assert (second["a"], second["b"], second["c"]) == ("NaN", "Infinity", {"d": ["-Infinity"]})


def test_sequence_numbers_have_no_gap_when_threads_write_at_once(heart, lines):
    beating = heart()

    def write():
        for _ in range(200):
            beating.beat("x")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line["seq"] for line in lines()] == list(range(1, 801))


def test_a_section_outside_a_step_is_told_at_both_edges_and_inside_only_when_long(
    heart, lines, monkeypatch
):
    monkeypatch.setattr(heartbeat, "_ANNOUNCE_AFTER_S", 0.3)
    beating = heart()
    with beating.in_section("eval"):
        pass
    beating.in_step = True
    with beating.in_section("forward"):
        pass
    assert [(line["msg"], line["section"]) for line in lines()] == [
        ("section", "eval"),
        ("section", None),
    ]
    beating.start_thread()
    with beating.in_section("backward"):
        _wait(lambda: lines()[-1]["section"] == "backward")
    line = lines()[-1]
    assert line["msg"] == "section"
    assert line["section_age_s"] >= 0.3


def test_the_thread_speaks_only_in_silence(heart, lines):
    beating = heart(alive_every_s=0.3)
    beating.in_step = True
    with beating.in_section("backward"):
        beating.count_collective()
        beating.start_thread()
        line = _wait(lambda: [line for line in lines() if line["msg"] == "alive"])[0]
    beating.close()
    assert (line["section"], line["collective_seq"]) == ("backward", 1)
    assert line["section_age_s"] >= 0.3
    for earlier, later in pairwise(lines()):
        if later["msg"] == "alive":
            assert later["mono"] - earlier["mono"] >= 0.3


@pytest.mark.parametrize("shown", [False, True])
def test_lines_are_shown_where_the_watcher_may_be_on_another_host(
    shown, heart, tmp_path, monkeypatch
):
    sync, synced = os.fdatasync, []

    def counted(descriptor):
        sync(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fdatasync", counted)
    monkeypatch.setattr(heartbeat, "_SHOW_EVERY_S", 0.0)
    monkeypatch.setattr(heartbeat, "_ANNOUNCE_AFTER_S", math.inf)  # no other line
    beating = heart(shown=shown)
    beating.start_thread()
    beating.beat("boot")
    if shown:
        _wait(lambda: synced)
    time.sleep(0.3)  # a few more looks of the thread: what is synced is not synced again
    assert synced == ([(tmp_path / "h").stat().st_size] if shown else [])


def _refuse(fd, data):
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_counted_and_never_raises(heart, monkeypatch):
    monkeypatch.setattr(heartbeat, "_LAST_S", 0.2)
    beating = heart(Path("/dev/full"))
    beating.beat("boot")
    beating.beat("progress", loss=1.0)
    assert beating.write_failures == 2
    beating.close()
    assert beating.write_failures > 2


def test_refused_lines_wait_and_are_written_before_the_next_one(heart, lines, monkeypatch):
    """Else a disk that was full for a moment leaves a hole, and the run is inconclusive."""
    beating, real = heart(), os.write
    beating.beat("one")
    monkeypatch.setattr(os, "write", _refuse)
    beating.beat("two")
    beating.beat("three")
    monkeypatch.setattr(os, "write", real)
    beating.beat("four")
    numbered = [(line["msg"], line["seq"]) for line in lines()]
    assert numbered == [("one", 1), ("two", 2), ("three", 3), ("four", 4)]
    assert [line.get("write_failures") for line in lines()] == [None, None, 1, 2]


def test_who_leaves_waits_for_a_disk_to_take_the_last_lines(heart, lines, monkeypatch):
    beating, real, tried = heart(), os.write, []

    def write(fd, data):
        tried.append(data)
        return real(fd, data) if len(tried) > 3 else _refuse(fd, data)

    monkeypatch.setattr(os, "write", write)
    beating.beat("done")
    beating.close()
    assert [line["msg"] for line in lines()] == ["done"]


def test_what_waits_is_bounded_and_the_numbers_show_the_gap(heart, lines, monkeypatch):
    monkeypatch.setattr(heartbeat, "_KEPT_BYTES", 2_000)
    beating, real = heart(), os.write
    monkeypatch.setattr(os, "write", _refuse)
    for _ in range(30):
        beating.beat("x")
    monkeypatch.setattr(os, "write", real)
    beating.beat("lost")
    beating.beat("last")
    *numbers, last = [line["seq"] for line in lines()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 5 < len(numbers) < 15
    assert last == 32


def test_a_line_that_an_earlier_process_left_torn_does_not_spoil_the_next(
    heart, tmp_path, monkeypatch
):
    (tmp_path / "h").write_text('{"seq":1}\n{"seq":2,"ms')
    beating, real = heart(), os.write
    monkeypatch.setattr(os, "write", _refuse)
    beating.beat("x")
    monkeypatch.setattr(os, "write", real)
    beating.beat("boot")
    first, torn, *ours = (tmp_path / "h").read_text().splitlines()
    assert (first, torn) == ('{"seq":1}', '{"seq":2,"ms')
    assert json.loads(ours[-1])["msg"] == "boot"
    assert {json.loads(line)["boot"] for line in ours} == {"b"}
