"""One rank's lines, folded in the order in which they come."""

from collections.abc import Sequence

import pytest

from gonogo.contract.heartbeat import Heartbeat
from gonogo.timeline.advance import absorb, absorb_late
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
        if arrival is Arrival.LATE:
            absorb_late(stream, line)
        else:
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


def test_a_step_end_that_comes_late_is_timed_by_its_own_clock() -> None:
    stream, arrivals = told(
        *FIRST,
        beat(5, 3, "step_start", 4.0, "data"),
        beat(4, 2, "step_end", 4.0),
        beat(6, 3, "step_end", 4.5),
    )
    assert arrivals[-3:] == [Arrival.NEW, Arrival.LATE, Arrival.NEW]
    assert list(stream.pace.times_s) == [3.0, 0.5]


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


@pytest.mark.parametrize("paused", [False, True], ids=["at once", "after a checkpoint began"])
def test_a_step_end_that_comes_late_ends_its_step(paused: bool) -> None:
    """A rank that waits for an evaluating one is silent: the end of its step may come last."""
    section = beat(5, 2, "section", 3.0, "checkpoint" if paused else "log")
    before, _ = told(*FIRST, section)
    stream, _ = told(*FIRST, section, beat(4, 2, "step_end", 2.5))
    assert (before.completed, before.completed_steps) == (1, 1)
    assert (stream.completed, stream.completed_steps) == (2, 2)
    again, _ = told(*FIRST, section, beat(4, 1, "step_end", 2.5))
    assert (again.completed, again.completed_steps) == (1, 1)


def test_of_a_long_run_only_the_last_is_kept() -> None:
    seq, lines = 0, list[Heartbeat]()
    for step in range(1, 101):
        for msg, section in (
            ("step_start", f"of {step}"),
            ("step_end", None),
            ("section", "eval"),
            ("checkpoint", None),
        ):
            seq += 1
            lines.append(beat(seq, step, msg, float(seq), section).model_copy(update={"dt": 2.5}))
    stream = after(lines)
    assert [row[0] for row in stream.step_counts] == list(range(37, 101))
    assert len(stream.places) == 16
    assert set(stream.places) == {"eval", *(f"of {step}" for step in range(86, 101))}
    assert stream.section_times == (("eval", 1.0),) * 32
    assert stream.saved_s == (2.5,) * 32
    assert stream.evaluated_s == 100.0


def test_the_collectives_of_a_step_are_known_where_both_ends_report_them() -> None:
    lines = list[Heartbeat]()
    for seq, (step, msg, number) in enumerate(
        [(1, "step_end", 3), (2, "step_end", 5), (4, "step_end", 9), (5, "step_end", 12)]
    ):
        start = beat(2 * seq + 1, step, "step_start", 2.0 * seq)
        end = beat(2 * seq + 2, step, msg, 2.0 * seq + 1.0)
        lines += [start, end.model_copy(update={"collective_seq": number})]
    assert after(lines).step_counts == ((2, 1, 2), (4, 1, -1), (5, 1, 3))


def test_a_rank_names_its_sections_once_it_has_counted_one() -> None:
    silent = [beat(0, 0, "boot", 0.0), beat(0, 0, "alive", 1.0).model_copy(update={"seq": 1})]
    assert not after(silent).labelled
    assert after([*silent[:1], beat(1, 0, "alive", 1.0)]).labelled
    first = after([beat(1, 0, "boot", 0.0)])
    assert (first.labelled, first.collective_seq) == (True, 0)


def test_a_step_that_begins_again_after_an_evaluation_is_the_same_one() -> None:
    lines = [
        beat(1, 0, "boot", 0.0, "boot"),
        beat(2, 1, "step_start", 1.0, "data"),
        beat(3, 1, "section", 2.0, "eval"),
        beat(4, 1, "section", 52.0, "data"),
        beat(5, 1, "step_start", 53.0, "data"),
    ]
    first, again = after(lines[:2]), after(lines)
    assert (first.begun, first.opened, first.advanced_mono) == (1, 1, 1.0)
    assert (again.begun, again.opened, again.advanced_mono) == (2, 0, 1.0)
    ended = after([*lines, beat(6, 1, "step_end", 62.0)])
    assert ended.first_s == 10.0


def test_a_rank_may_say_that_it_is_done_at_an_earlier_step() -> None:
    stream = after([*FIRST, beat(4, 1, "done", 2.0)])
    assert (stream.done, stream.done_mono, stream.step) == (True, 2.0, 2)


@pytest.mark.parametrize(("later", "number"), [(16, 0.5), (17, None)])
def test_numbers_may_come_sixteen_steps_late(later: int, number: float | None) -> None:
    """Once the rank has read numbers late at all."""
    stream, seq, mono, found = RankStream(rank=0), 0, 0.0, dict[int, float | None]()

    def tell(step: int, msg: str, **told: float) -> None:
        nonlocal stream, seq, mono
        seq, mono = seq + 1, mono + 1.0
        line = beat(seq, step, msg, mono, "data" if msg == "step_start" else None)
        stream = absorb(stream, line.model_copy(update=told), mono)
        for row in stream.ready:
            found[row.step] = None if row.progress is None else row.progress.loss
        stream.ready.clear()

    for step in range(1, 30):
        tell(step, "step_start")
        tell(step, "step_end")
        if step in (2, 3 + later - 1):
            tell(step + 1, "step_start")
            tell(1 if step == 2 else 3, "progress", loss=0.5)
    assert found[3] == number


def test_collectives_count_from_the_end_of_the_step_before() -> None:
    stream = RankStream(rank=0, collective_seq=7, ended_at=(3, 5), completed=3)
    assert stream.collectives() == 2
    stream.completed = 4
    assert stream.collectives() == 7


def test_a_second_boot_line_counts_only_before_the_first_step_end() -> None:
    lines = [beat(1, 0, "boot", 0.0, "boot"), beat(2, 1, "step_start", 1.0, "data")]
    same = after([*lines, beat(3, 1, "boot", 50.0)])
    assert (same.from_step, same.started_mono) == (0, 1.0)
    ended = [*lines, beat(3, 2, "step_start", 2.0, "data")]
    later = after([*ended, beat(4, 30, "boot", 50.0)])
    assert (later.from_step, later.completed, later.completed_steps) == (0, 1, 1)


def test_steps_before_the_first_opened_one_are_completed() -> None:
    stream = after([beat(1, 5, "step_start", 0.0, "data")])
    assert (stream.from_step, stream.completed, stream.started_mono) == (4, 4, 0.0)
    assert stream.places == ("data",)


def test_only_numbers_that_come_late_show_that_a_rank_reads_late() -> None:
    stream = after([*FIRST, beat(4, 1, "alive", 2.0)])
    assert (stream.reads_late, stream.completed) == (False, 1)
    told_again = [
        *FIRST,
        beat(4, 2, "progress", 2.0),
        beat(5, 3, "step_start", 2.5, "data"),
        beat(6, 2, "progress", 3.0),
    ]
    stream = after(told_again)
    assert stream.progress is not None
    assert (stream.reads_late, stream.progress.seq) == (False, 4)


def test_an_ended_step_waits_for_its_numbers_until_the_next_one() -> None:
    assert [row.step for row in after(FIRST).ready] == [1]
    lines = [beat(4, 2, "step_end", 2.0), beat(5, 2, "section", 2.0, "log")]
    rows = after([*FIRST, *lines, beat(6, 2, "progress", 2.5)]).ready
    assert [(row.step, row.progress and row.progress.seq) for row in rows] == [(1, None), (2, 6)]


def test_a_short_evaluation_keeps_its_time() -> None:
    lines = [*FIRST, beat(4, 2, "section", 2.0, "eval"), beat(5, 2, "section", 2.25, "data")]
    assert after(lines).section_times == (("eval", 0.25),)


@pytest.mark.parametrize(("dt", "saved_s"), [(0.0, ()), (float("inf"), ()), (0.25, (0.25,))])
def test_a_pause_without_a_valid_time_is_not_kept(dt: float, saved_s: tuple[float, ...]) -> None:
    saved = beat(4, 2, "checkpoint", 2.0).model_copy(update={"dt": dt})
    evaluated = beat(5, 2, "eval", 2.0).model_copy(update={"dt": dt})
    stream = after([*FIRST, saved, evaluated])
    assert (stream.saved_s, stream.pace.excluded_s) == (saved_s, 2 * sum(saved_s))


def test_late_numbers_end_a_step_only_without_step_end_lines() -> None:
    unsaid = [
        beat(1, 0, "boot", 0.0, "boot"),
        beat(2, 1, "section", 1.0, "data"),
        beat(3, 2, "section", 2.0, "data"),
        beat(4, 1, "progress", 3.0),
    ]
    assert after(unsaid).completed == 1
    said = [
        *FIRST[:2],
        beat(3, 2, "section", 2.0, "data"),
        beat(4, 3, "section", 3.0, "data"),
        beat(5, 2, "progress", 4.0),
    ]
    assert after(said).completed == 1


def plain(*lines: Heartbeat) -> RankStream:
    """Return the stream of a program that names no sections."""
    return after([line.model_copy(update={"section_seq": 0, "section": None}) for line in lines])


def test_tokens_are_those_of_the_last_line_that_reports_them() -> None:
    stream = after([FIRST[0], FIRST[1].model_copy(update={"tokens": 5}), FIRST[2]])
    assert stream.tokens == 5


@pytest.mark.parametrize(
    ("msg", "step", "completed"), [("step_start", 7, 6), ("step_start", 0, 0), ("boot", 7, 7)]
)
def test_what_a_first_line_says_of_steps_before_it(msg: str, step: int, completed: int) -> None:
    stream = after([beat(1, step, msg, 0.0)])
    assert (stream.completed, stream.from_step) == (completed, completed)


def test_progress_ends_steps_only_of_a_program_without_sections() -> None:
    steps = enumerate((2, 5, 5, 9), start=2)
    lines = [beat(1, 0, "boot", 0.0), *(beat(n, step, "progress", float(n)) for n, step in steps)]
    assert (plain(*lines).completed, plain(*lines).completed_steps) == (9, 3)
    stream = after([*FIRST, beat(4, 2, "progress", 2.0, "data")])
    assert (stream.completed, stream.completed_steps) == (1, 1)


@pytest.mark.parametrize(("step", "between_s"), [(2, 0.25), (3, 0.0)])
def test_the_time_between_steps_counts_from_the_end_of_the_step_before(
    step: int, between_s: float
) -> None:
    stream = after([*FIRST[:2], beat(3, step, "step_start", 1.25, "data")])
    assert stream.between_s == between_s


def test_the_step_of_the_first_line_is_not_started_again() -> None:
    stream = after([beat(1, 5, "boot", 0.0), beat(2, 5, "step_start", 1.0)])
    assert stream.started_mono is None
    assert after([beat(1, 5, "boot", 0.0), beat(2, 6, "step_start", 1.0)]).started_mono == 1.0


def test_a_section_that_is_entered_again_begins_again() -> None:
    again = beat(4, 2, "section", 5.0, "data").model_copy(update={"section_age_s": 0.25})
    stream = after([*FIRST, again])
    assert (stream.section_mono, stream.compute_s) == (4.75, 0.0)
    computes = after([*FIRST, again.model_copy(update={"section": "forward"})])
    assert computes.compute_s == 0.25


def test_a_checkpoint_within_a_step_is_not_its_time() -> None:
    lines = [
        *FIRST,
        beat(4, 2, "section", 2.0, "checkpoint"),
        beat(5, 2, "section", 5.0, "data"),
        beat(6, 2, "checkpoint", 5.0, "data").model_copy(update={"dt": 3.0}),
        beat(7, 2, "step_start", 5.5, "data"),
        beat(8, 2, "step_end", 6.0, "data"),
    ]
    stream = after(lines)
    assert (list(stream.pace.times_s), stream.ending[2].between_s) == ([2.0], 0.0)
    began = beat(4, 2, "section", 5.0, "eval").model_copy(update={"section_age_s": 3.0})
    assert after([*FIRST, began]).pace.excluded_s == 3.0


def test_only_time_outside_of_sections_is_time_apart() -> None:
    lines = [beat(1, 1, "step_start", 0.0, "data"), beat(2, 1, "step_end", 10.0)]
    assert after(lines).longest_apart_s == 0.0
    assert after([*lines, beat(3, 1, "section", 13.0, "data")]).longest_apart_s == 3.0


def test_a_boot_that_was_done_without_a_step_only_evaluated() -> None:
    lines = [beat(1, 0, "boot", 0.0), beat(2, 0, "done", 1.0)]
    again = beat(1, 0, "boot", 2.0).model_copy(update={"boot": "c"})
    assert (after([*lines, again]).idle_boots, after([lines[0], again]).idle_boots) == (0, 1)


def test_a_program_without_sections_always_computes() -> None:
    assert RankStream(rank=0, labelled=False).computing
    assert not RankStream(rank=0, labelled=True).computing
