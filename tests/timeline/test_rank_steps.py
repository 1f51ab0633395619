"""Steps are the same in whatever order lines come; of two lines the later one counts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gonogo.contract.heartbeat import Heartbeat, Msg, StepSections
from gonogo.timeline.columns import NEVER, STEP_MESSAGES
from gonogo.timeline.rank_steps import MAX_PIDS, RankSteps


def beat(seq: int, msg: str = "alive", mono: float | None = None, **fields: Any) -> Heartbeat:
    at = float(seq) if mono is None else mono
    base = {"ts": at, "pid": 1, "rank": 0, "boot": "b", "step": 1, **fields}
    return Heartbeat(mono=at, seq=seq, msg=msg, **base)


def in_any_order(*beats: Heartbeat) -> list[RankSteps]:
    return [RankSteps(rows) for rows in itertools.permutations(beats)]


def test_of_two_lines_of_a_process_that_say_the_same_thing_the_later_one_counts() -> None:
    for msg, field, seen in (
        ("eval", "val_loss", lambda steps: steps.evals),
        ("progress", "loss", lambda steps: steps.samples("loss")),
    ):
        for steps in in_any_order(
            beat(0, msg, **{field: 9.0}), beat(3, msg, **{field: 1.0}), beat(2, msg, **{field: 2.0})
        ):
            assert seen(steps) == {1: 1.0}
    for steps in in_any_order(beat(0, "done", step=5), beat(3, "done", step=7), beat(2, "done")):
        assert steps.done_step == 7
    for steps in in_any_order(beat(0, "boot", dim=1), beat(3, "boot", dim=3), beat(2, "boot")):
        identity = steps.identity()
        assert identity is not None
        assert identity.dim == 3


def test_a_first_line_of_seq_zero_is_taken() -> None:
    assert RankSteps([beat(0, "eval", val_loss=2.0)]).evals == {1: 2.0}
    assert RankSteps([beat(0, "done")]).done_step == 1
    assert RankSteps([beat(0, "boot", dim=1)]).identity() is not None
    assert RankSteps([beat(0, "progress", loss=1.0)]).samples("loss") == {1: 1.0}
    boot = RankSteps([beat(0, "alive", section="data")]).last_boot
    assert boot is not None
    assert (boot.section, boot.top, boot.low) == ("data", 0, 0)


@pytest.mark.parametrize(
    ("seqs", "gaps"),
    [((0, 1, 2), 0), ((1, 2), 0), ((2, 3), 1), ((1, 4), 2), ((0, 1, 5), 3), ((0,), 0), ((3,), 2)],
)
def test_seq_begins_at_zero_or_one_and_has_no_gaps(seqs: tuple[int, ...], gaps: int) -> None:
    for steps in in_any_order(*(beat(seq) for seq in seqs)):
        assert (steps.gaps, steps.count) == (gaps, len(seqs))


def test_of_a_step_that_two_processes_took_the_later_one_counts() -> None:
    first = [
        beat(1, "step_start", 1.0),
        beat(2, "progress", 1.5, loss=9.0, skipped=True),
        beat(3, "step_end", 2.0, tokens=5, step_sections=sections(1.0)),
    ]
    later = {"boot": "c", "pid": 2}
    second = [
        beat(1, "step_start", 11.0, **later),
        beat(2, "progress", 11.5, loss=1.0, **later),
        beat(3, "step_end", 14.0, tokens=7, step_sections=sections(2.0), **later),
    ]
    for beats in ([*first, *second], [*second, *first]):
        steps = RankSteps(beats)
        assert steps.samples("loss") == {1: 1.0}
        assert (steps.steps.skipped(), steps.steps.step_times()) == (frozenset(), {1: 3.0})
        assert (steps.steps.tokens[0], steps.steps.sections()[0][0]) == (7, 2.0)
    begun = RankSteps([*first, second[0]])
    assert begun.samples("loss") == {1: 9.0}
    assert begun.steps.skipped() == {1}
    assert begun.steps.step_times() == {}, "two processes share it"
    assert begun.steps.tokens[0] == 5


def test_a_rank_is_done_where_its_last_process_says_so() -> None:
    """The reports of an earlier training are old: the last of several may have failed."""
    first = [beat(1, "boot", 1.0), beat(2, "done", 2.0, step=5)]
    later = {"boot": "c", "pid": 2}
    begun = [beat(1, "boot", 3.0, **later), beat(2, "step_start", 4.0, **later)]
    for more, step in (
        ([], None),
        ([beat(3, "error", 5.0, **later)], None),
        ([beat(3, "done", 5.0, **{**later, "step": 4})], 4),
        ([beat(3, "done", 5.0, **{**later, "step": 5})], 5),
    ):
        assert RankSteps([*first, *begun, *more]).done_step == step
        assert RankSteps([*more, *begun, *first]).done_step == step


def sections(seconds: float) -> StepSections:
    return StepSections(
        data=seconds, forward=seconds, backward=seconds, optimizer=seconds, wait=seconds
    )


def test_a_step_has_a_time_when_one_process_began_and_ended_it() -> None:
    start, end = beat(1, "step_start", 5.0), beat(2, "step_end", 7.5)
    assert RankSteps([start, end]).steps.step_times() == {1: 2.5}
    assert RankSteps([end]).steps.step_times() == {}
    assert RankSteps([start]).steps.step_times() == {}
    assert RankSteps([start, beat(2, "step_end", 5.0)]).steps.step_times() == {}
    again = beat(4, "step_start", 7.0)
    assert RankSteps([start, again, beat(5, "step_end", 7.5)]).steps.step_times() == {1: 0.5}


@pytest.mark.parametrize(("reached", "began"), [(8, 0), (8, 1), (10, 0), (10, 10)])
def test_a_process_that_goes_back_repeats_steps(reached: int, began: int) -> None:
    lines = [
        beat(step + 1, "progress" if step > first else "boot", at + step, boot=boot, step=step)
        for boot, at, first, last in (("b", 0.0, 0, reached), ("c", 90.0, began, 10))
        for step in range(first, last + 1)
    ]
    found = [(reached, began)] if began < reached else []
    assert RankSteps(lines).returns() == found


def test_the_wall_clock_orders_no_process() -> None:
    first = beat(1, "progress", 1.0, loss=9.0, ts=900.0)
    second = beat(1, "progress", 2.0, loss=1.0, ts=100.0, boot="a")
    for steps in in_any_order(first, second):
        assert steps.samples("loss") == {1: 1.0}
        steps.order_by(("a", "b"))
        assert steps.samples("loss") == {1: 9.0}, "as the ticks say"


def spaced(gaps: dict[int, float], count: int, **others: dict[str, Any]) -> RankSteps:
    """Steps of one second, each a tenth after the one before but where a gap is given.

    A line of `others` comes right behind the end of its step.
    """
    lines, mono = [], 10.0
    for step in range(1, count + 1):
        mono += gaps.get(step, 0.1)
        lines.append(beat(len(lines), "step_start", mono=mono, step=step))
        mono += 1.0
        lines.append(beat(len(lines), "step_end", mono=mono, step=step))
        lines += [
            beat(len(lines), mono=mono, **{"step": step, **line})
            for line in others.values()
            if line["step"] == step
        ]
    return RankSteps(lines)


@pytest.mark.parametrize(
    ("gaps", "count", "others", "mean_s"),
    [
        ({}, 9, {}, 0.1),
        (dict.fromkeys(range(2, 42), 3.0), 41, {}, 3.0),
        ({5: 60.0, 9: 70.0}, 41, {}, 0.1),
        ({5: 60.0, 9: 3.0}, 20, {"saved": {"step": 4, "msg": "checkpoint"}}, 0.1),
        ({5: 60.0, 9: 3.0}, 20, {"ahead": {"step": 5, "msg": "eval"}}, 0.1),
        ({}, 1, {}, 0.0),
        ({2: 4.0}, 3, {}, 0.1),
    ],
)
def test_what_lies_between_steps_is_what_most_of_them_spend_there(
    gaps: dict[int, float], count: int, others: dict[str, Any], mean_s: float
) -> None:
    assert spaced(gaps, count, **others).between_steps_s() == pytest.approx(mean_s)


def test_an_evaluation_without_a_loss_is_not_kept() -> None:
    for steps in in_any_order(beat(1, "eval", val_loss=2.0), beat(2, "eval")):
        assert steps.evals == {1: 2.0}


def test_four_process_ids_of_a_boot_are_kept() -> None:
    beats = [beat(pid, pid=pid) for pid in (9, 3, 3, 5, 7, 1, 2)]
    assert RankSteps(beats).boots[0].pids == [3, 5, 7, 9]
    assert MAX_PIDS == 4


def test_the_first_and_the_last_boot_line_are_kept() -> None:
    (boot,) = RankSteps([beat(seq, "boot") for seq in range(1, 13)]).boots
    assert [line.seq for line in boot.boot_lines] == [1, 2, 3, 4, 5, 6, 7, 12]


def test_the_first_ready_line_of_the_loader_counts() -> None:
    ready = [beat(seq, "loader_ready", dt=dt) for seq, dt in ((1, 1.5), (2, 9.0))]
    assert RankSteps(ready).boots[0].loader_s == 1.5
    assert RankSteps([beat(1, "alive", dt=3.0)]).boots[0].loader_s is None


def test_unreported_numbers_of_a_step_are_missing() -> None:
    steps = RankSteps(
        [beat(1, "progress", loss=1.0), beat(2, "step_end"), beat(3, "progress", step=2)]
    )
    table = steps.steps
    assert (table.samples("loss"), table.samples("grad_norm")) == ({1: 1.0}, {})
    assert table.tokens[0] == NEVER == -1
    assert [table.said(msg, 1) for msg in STEP_MESSAGES] == [False, True, True]
    assert not table.said(Msg.PROGRESS, 9)


def test_the_steps_that_a_process_ended_are_counted() -> None:
    steps = RankSteps([beat(seq, "step_end", step=seq) for seq in (1, 2, 5)])
    assert steps.boots[0].ended_steps == 3


def test_time_between_two_processes_is_between_no_steps() -> None:
    lines = [
        beat(number, msg, mono=at, step=step, boot=boot)
        for number, (msg, at, step, boot) in enumerate(
            [
                ("step_start", 1.0, 1, "b"),
                ("step_end", 2.0, 1, "b"),
                ("step_start", 2.5, 2, "b"),
                ("step_end", 3.0, 2, "b"),
                ("step_start", 90.0, 3, "c"),
                ("step_end", 91.0, 3, "c"),
                ("step_start", 91.25, 4, "c"),
                ("step_end", 92.0, 4, "c"),
            ]
        )
    ]
    assert RankSteps(lines).steps.gaps() == {2: 0.5, 4: 0.25}


def test_the_first_error_is_the_programs_own() -> None:
    last = beat(7, "error", type="OSError", text="gone")
    steps = RankSteps([last, beat(5, "error"), beat(3, "loader_error")])
    assert (steps.boots[0].error_seq, RankSteps([]).last_step) == (5, 0)
    assert steps.boots[0].errors["error"] == (7, ("OSError: gone",))


def test_without_starts_a_step_takes_the_mean_between_two_ends() -> None:
    ends = {1: 1.0, 2: 3.0, 4: 5.0, 5: 5.0}
    steps = RankSteps([beat(n, "step_end", mono, step=n) for n, mono in ends.items()])
    assert steps.mean_step_times() == {2: 2.0, 3: 1.0, 4: 1.0}
    leap = RankSteps([beat(1, "step_end"), beat(2, "step_end", step=300_000)])
    assert min(leap.mean_step_times()) == 200_000


def test_the_first_sixty_four_numbers_of_a_program_are_kept() -> None:
    steps = RankSteps([beat(1, user={f"m{number}": 1.0 for number in range(65)})])
    assert (steps.own("m63"), steps.own("m64")) == ({1: 1.0}, {})
