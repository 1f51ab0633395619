"""The predecessor's lines become ordinary heartbeats, and its speed is that of its own lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gonogo.contract.heartbeat import Heartbeat, parse_heartbeat
from gonogo.timeline.old_format import convert, is_predecessor
from gonogo.timeline.rank_steps import read_lines


def line(ts: float, step: int, msg: str = "progress", **fields: Any) -> bytes:
    return json.dumps({"ts": ts, "pid": 1, "step": step, "msg": msg, **fields}).encode()


def beats(*lines: bytes, tokens: int | None = None) -> list[Heartbeat]:
    return [parse_heartbeat(raw) for raw in convert(0, lines, tokens)]


@pytest.mark.parametrize(
    ("lines", "theirs"),
    [
        ([line(1.0, 1)], True), ([b"torn", line(1.0, 1)], True),
        ([b"[]", b'{"ts": 1, "step": 1}'], False), ([line(1.0, 1, seq=1)], False),
        ([line(1.0, 1, boot="b")], False), ([line(1.0, 1), line(2.0, 2, boot="b", seq=1)], False),
        ([], False),
    ],
)  # fmt: skip
def test_its_lines_have_neither_boot_nor_seq(lines: list[bytes], theirs: bool) -> None:
    assert is_predecessor([[], lines]) is theirs


def test_lines_are_numbered_and_a_stamp_that_goes_back_does_not_move_the_clock() -> None:
    found = beats(line(5.0, 1, "beat"), line(4.0, 2, "loader_timeout", section="x"))
    assert [(beat.msg, beat.mono, beat.seq) for beat in found] == [
        ("alive", 5.0, 1),
        ("loader_error", 5.0, 2),
    ]
    assert {(beat.boot, beat.step, beat.section) for beat in found} == {("pid-1", 0, None)}


@pytest.mark.parametrize("raw", [b"torn", b"[]", line(1.0, -1), line(1.0, 1, loss="low")])
def test_a_line_that_is_none_stays_and_counts_as_unreadable(raw: bytes) -> None:
    converted = [*convert(0, [raw, line(2.0, 1)], None)]
    assert converted[0] == raw + b"\n"
    assert read_lines(0, converted).unreadable == 1


def test_steps_between_two_lines_share_the_time_between_them() -> None:
    raw = convert(0, [line(10.0, 10), line(10.0, 10, "step_end"), line(30.0, 20, loss=2.0)], None)
    steps = read_lines(0, raw).steps
    assert steps.steps.step_times() == pytest.approx(dict.fromkeys(range(11, 21), 2.0))
    assert (steps.last_step, steps.samples("loss")) == (20, {20: 2.0})


@pytest.mark.parametrize(
    ("told", "ordered", "tokens"),
    [
        (2048.0, 4096, 4096),
        (2000.0, 4096, 4096),
        (128.0, 4096, 256),  # a toy under the name of the model
        (128.0, None, 256),
        (2200.0, 4000, 4000),
        (2210.0, 4000, 4420),
        (None, 4096, 4096),
        (1e300, 4096, 4096),
        (1e12, 4096, 4096),
        (1.5e12, 4096, 4096),
        (0.0, 4096, 4096),
        (0.4, 4096, 1),
    ],
)
def test_tokens_are_those_that_the_reported_speed_implies(
    told: float | None, ordered: int | None, tokens: int
) -> None:
    speed = {} if told is None else {"toks_per_s": told}
    *_, last = beats(line(0.0, 10, **speed), line(20.0, 20, **speed), tokens=ordered)
    assert (last.msg, last.tokens) == ("step_end", tokens)


def test_a_process_that_starts_again_begins_anew() -> None:
    again = line(100.0, 1, pid=2)
    assert read_lines(0, convert(0, [line(1.0, 5), again], None)).steps.steps.step_times() == {}


def test_lines_of_one_moment_time_no_step() -> None:
    assert [beat.msg for beat in beats(line(1.0, 1), line(1.0, 5))] == ["progress", "step_end"] * 2


def test_of_a_great_gap_only_the_newest_steps_are_timed() -> None:
    found = [
        beat.step for beat in beats(line(0.0, 1), line(1.0, 12_001)) if beat.msg == "step_start"
    ]
    assert (found[0], found[-1], len(found)) == (2_002, 12_001, 10_000)


def test_a_line_may_omit_its_process() -> None:
    rows = [{"ts": 1.0 + step, "step": step, "msg": "progress"} for step in (1, 2)]
    lines = [json.dumps(row).encode() for row in rows]
    assert is_predecessor([lines])
    assert {(beat.pid, beat.boot) for beat in beats(*lines)} == {(0, "pid-0")}
