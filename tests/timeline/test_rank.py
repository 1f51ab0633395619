"""One rank's lines, folded in the order in which they come."""

from collections.abc import Sequence

import pytest

from gonogo.contract.heartbeat import Heartbeat
from gonogo.timeline.advance import absorb
from gonogo.timeline.lines import Arrival, LineRecord
from gonogo.timeline.rank import RankStream
from tests.timeline.test_lines import line_of


def beat(seq: int, step: int, msg: str, mono: float, section: str | None = None) -> Heartbeat:
    return Heartbeat.model_validate(
        {
            "v": 1, "ts": mono, "mono": mono, "pid": 1, "rank": 0, "boot": "b", "seq": seq,
            "step": step, "msg": msg, "section": section, "section_seq": seq,
        }
    )  # fmt: skip


def told(*lines: Heartbeat) -> tuple[RankStream, list[Arrival]]:
    stream, record, arrivals = RankStream(rank=0), LineRecord(), []
    for line in lines:
        arrival = record.admit(line_of(line))
        if arrival is not Arrival.LATE:
            stream = absorb(stream, line, line.mono)
        arrivals.append(arrival)
    return stream, arrivals


def after(lines: Sequence[Heartbeat]) -> RankStream:
    return told(*lines)[0]


FIRST = (
    beat(1, 1, "step_start", 0.0, "data"),
    beat(2, 1, "step_end", 1.0),
    beat(3, 2, "step_start", 1.0, "data"),
)


def test_who_goes_on_from_a_checkpoint_of_its_own_has_its_first_step_before_it() -> None:
    """It says so after its first line: what it had begun by then ends never, and is no step."""
    before = after([beat(1, 0, "boot", 0.0, "boot"), beat(2, 1, "step_start", 1.0)])
    assert (before.from_step, before.started_mono) == (0, 1.0)
    lines = [
        beat(1, 0, "boot", 0.0, "boot"),
        beat(2, 1, "step_start", 1.0),
        beat(3, 20, "boot", 50.0),
        beat(4, 21, "step_start", 50.0),
    ]
    began = after(lines)
    assert (began.from_step, began.completed, began.completed_steps) == (20, 20, 0)
    assert (began.started_mono, began.backwards) == (50.0, None)
    ended = after([*lines, beat(5, 21, "step_end", 450.0)])
    assert (ended.completed, ended.completed_steps, ended.first_s) == (21, 1, 400.0)
    later = after([*lines, beat(5, 21, "step_end", 450.0), beat(6, 30, "boot", 451.0)])
    assert (later.from_step, later.completed) == (20, 21)


@pytest.mark.parametrize("msg", ["alive", "step_end"])
def test_a_line_that_fills_a_hole_moves_no_rank(msg: str) -> None:
    late = beat(4, 2, msg, 3.0, "data")
    lines = (*FIRST, beat(5, 3, "step_start", 4.0, "data"), late, beat(6, 3, "step_end", 5))
    stream, arrivals = told(*lines)
    assert arrivals[-3:] == [Arrival.NEW, Arrival.LATE, Arrival.NEW]
    assert (list(stream.pace.times_s), stream.pace.stride) == ([2.0], 2)
