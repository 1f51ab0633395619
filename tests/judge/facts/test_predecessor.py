"""What the predecessor's lines still tell: numbers, silence, and a list of what they do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.watch import Watch
from gonogo.judge.facts.predecessor import Read, is_predecessor, read_predecessor
from tests.data.make_runs import order_of
from tests.judge.runs import exit_record

ORDER = order_of(sets={"phases.smoke.steps": 100}).model_copy(update={"watch": Watch()})
WATCH = Watch()


def line(ts: float, step: int, msg: str = "progress", **fields: Any) -> bytes:
    return json.dumps({"ts": ts, "pid": 1, "step": step, "msg": msg, **fields}).encode()


def read(*lines: bytes, order: Order | None = ORDER, now: float | None = None) -> Read:
    return read_predecessor({0: list(lines)}, order, None, now)


@pytest.mark.parametrize(
    ("lines", "theirs"),
    [
        ([line(1.0, 1)], True),
        ([b"torn", line(1.0, 1)], True),
        ([b"[]", b'{"ts": 1, "step": 1}'], False),
        ([b'{"ts": 1, "step": 1, "msg": "progress"}'], True),
        ([line(1.0, 1, seq=1)], False),
        ([line(1.0, 1, boot="b")], False),
        ([line(1.0, 1), line(2.0, 2, boot="b", seq=1)], False),
        ([], False),
    ],
)
def test_its_lines_have_neither_boot_nor_seq(lines: list[bytes], theirs: bool) -> None:
    assert is_predecessor([[], lines]) is theirs


def test_its_lines_are_read_as_ours_with_what_stands_for_clock_process_and_number() -> None:
    found = read(line(5.0, 1, "beat"), b"torn", line(4.0, 2, "loader_timeout", section="x"))
    assert found.unreadable == {0: 1}
    assert [(beat.msg, beat.ts, beat.mono, beat.seq) for beat in found.beats[0]] == [
        ("alive", 5.0, 5.0, 1),
        ("loader_error", 4.0, 5.0, 3),
    ]
    assert {(beat.boot, beat.rank, beat.section) for beat in found.beats[0]} == {("pid-1", 0, None)}
    (beat,) = read(json.dumps({"ts": 1, "step": 1, "msg": "x"}).encode()).beats[0]
    assert (beat.pid, beat.boot) == (0, "pid-0")


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"loss": 2.0, "grad_norm": 1.0}, []),
        ({"loss": "NaN"}, ["loss is nan at step 2"]),
        ({"loss": 1.0, "grad_norm": "Infinity"}, ["grad_norm is inf at step 2"]),
        ({"loss": "NaN", "skipped": True}, []),
    ],
)
def test_the_first_number_that_is_not_finite_is_found(
    fields: dict[str, Any], texts: list[str]
) -> None:
    found = read(line(1.0, 1, loss=1.0), line(2.0, 2, **fields), line(3.0, 3, **fields))
    assert [row.text for row in found.findings] == texts
    for row in found.findings:
        assert (row.detector, row.severity, row.rank, row.step) == ("non_finite", "halt", 0, 2)


def silences(*lines: bytes, now: float, order: Order | None = ORDER) -> list[Finding]:
    return list(read(*lines, order=order, now=now).findings)


def steady(count: int, every_s: float) -> list[bytes]:
    return [line(every_s * number, 10 * number) for number in range(1, count + 1)]


def test_a_halt_is_a_multiple_of_the_usual_interval_and_never_below_the_plans_seconds() -> None:
    every_s = 100.0
    limit = WATCH.stall.halt_x * every_s
    assert limit > WATCH.stall.halt_s
    lines, last = steady(4, every_s), 4 * every_s
    assert silences(*lines, now=last + limit) == []
    (found,) = silences(*lines, now=last + limit + 1)
    assert (found.detector, found.severity, found.source) == ("stall", "halt", "adaptive")
    assert (found.threshold, found.value, found.since) == (limit, limit + 1, last)
    quick = steady(4, 0.5)
    assert silences(*quick, now=2.0 + WATCH.stall.halt_s) == []
    (found,) = silences(*quick, now=2.0 + WATCH.stall.halt_s + 1)
    assert (found.source, found.threshold) == ("default", WATCH.stall.halt_s)


def test_where_the_multiple_is_the_seconds_it_is_the_multiple_that_counts() -> None:
    every_s = WATCH.stall.halt_s / WATCH.stall.halt_x
    (found,) = silences(*steady(4, every_s), now=1e6)
    assert (found.source, found.threshold) == ("adaptive", pytest.approx(WATCH.stall.halt_s))


def test_before_three_intervals_the_first_step_s_limit_holds() -> None:
    limit = WATCH.no_first_heartbeat.first_step_s
    assert silences(*steady(3, 1.0), now=3.0 + limit) == []
    (found,) = silences(*steady(3, 1.0), now=3.0 + limit + 1)
    assert (found.detector, found.source, found.threshold) == ("stall", "default", limit)
    (found,) = silences(*steady(4, 1.0), now=4.0 + limit + 1)
    assert found.threshold == WATCH.stall.halt_s


def test_who_never_took_a_step_never_began() -> None:
    limit = WATCH.no_first_heartbeat.first_step_s
    lines = [line(7.0, 0, "boot"), line(90.0, 0, "beat")]
    assert silences(*lines, now=7.0 + limit) == []
    (found,) = silences(*lines, now=7.0 + limit + 1)
    assert (found.detector, found.step) == ("no_first_heartbeat", 0)
    assert silences(now=1e9) == []


def test_who_arrived_is_not_silent_and_nobody_is_once_the_end_is_recorded() -> None:
    assert silences(line(1.0, 99), now=1e9) != []
    assert silences(line(1.0, 100), now=1e9) == []
    assert silences(line(1.0, 100), now=1e9, order=None) != [], "nobody said how far"
    both = {0: [line(1.0, 80), line(2.0, 100, "done")], 1: [line(1.0, 99)], 2: []}
    assert [row.rank for row in read_predecessor(both, ORDER, None, 1e9).findings] == [1]
    lines = {0: [line(1.0, 99)]}
    assert read_predecessor(lines, ORDER, exit_record(), 1e9).findings == ()
    assert read_predecessor(lines, ORDER, None, None).findings == ()


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ([line(1.0, 1), line(2.0, 2)], {"step_start"}),
        ([line(1.0, 1, "step_start"), line(2.0, 2)], set()),
        ([line(1.0, 10), line(2.0, 20), line(3.0, 30)], {"step_start", "single steps"}),
    ],
)
def test_what_the_lines_do_not_show_is_listed(lines: list[bytes], names: set[str]) -> None:
    found = [row.name for row in read(*lines).not_observed]
    assert {"identity", "coverage", "sections", "exit.json", *names} <= set(found)
    assert ("single steps" in found) is ("single steps" in names)
    ended = read_predecessor({0: lines}, ORDER, exit_record(), None).not_observed
    assert "exit.json" not in [row.name for row in ended]


def test_ranks_that_wrote_no_line_are_listed() -> None:
    found = read(line(1.0, 1)).not_observed
    assert [row.rank for row in found if row.kind == "rank_silent"] == [1]
    assert "order.json" in [row.name for row in read(line(1.0, 1), order=None).not_observed]
