"""Is a phase one line by step, whatever it was interrupted by?"""

from __future__ import annotations

from dataclasses import replace

from service.report.courses import build_courses, discarded_text
from tests.service.report.views import attempt


def test_a_resumed_run_is_one_line_and_the_later_attempt_counts() -> None:
    first = attempt(1, upto=30)
    second = attempt(2, after="run_1", step=20)
    (course,) = build_courses([first, second])
    assert course.title == "attempts 1, 2"
    loss = course.series(0, "loss")
    assert [step for step, _ in loss] == list(range(1, 41))
    assert dict(loss) == {**dict.fromkeys(range(1, 21), 1.0), **dict.fromkeys(range(21, 41), 2.0)}
    assert [round(value, 6) for value in course.step_times(1)] == [0.1] * 20 + [0.2] * 20
    assert [(step, run.view.attempt) for step, run in course.seams] == [(21, 2)]
    assert discarded_text(course) == (
        "Done again after a resume, and left out: attempt 1: steps 21 to 30."
    )


def test_nothing_is_discarded_by_a_resume_at_the_end() -> None:
    (course,) = build_courses([attempt(1, upto=20), attempt(2, after="run_1", step=20)])
    assert discarded_text(course) is None
    assert course.last_step == 40


def test_an_attempt_that_died_before_its_first_step_leaves_no_hole() -> None:
    dead = attempt(2, after="run_1", step=20, upto=20)
    (course,) = build_courses([attempt(1, upto=30), dead, attempt(3, after="run_1", step=20)])
    assert dict(course.series(0, "loss"))[20] == 1.0
    assert dict(course.series(0, "loss"))[21] == 3.0
    assert len(course.series(0, "loss")) == 40


def test_an_attempt_that_goes_back_further_takes_the_place_of_those_between() -> None:
    runs = [
        attempt(1, upto=20),
        attempt(2, after="run_1", step=20, upto=30),
        attempt(3, after="run_1", step=10),
    ]
    (course,) = build_courses(runs)
    assert course.title == "attempts 1, 3"
    assert {value for step, value in course.series(0, "loss") if step > 10} == {3.0}


def test_a_rerun_is_another_line_and_the_newest_is_last() -> None:
    courses = build_courses([attempt(1, upto=30), attempt(2)])
    assert [course.title for course in courses] == ["attempt 1", "attempt 2"]


def test_a_resume_goes_on_with_the_line_whose_checkpoint_it_took() -> None:
    runs = [attempt(1, upto=30), attempt(2, upto=25), attempt(3, after="run_1", step=20)]
    assert [course.title for course in build_courses(runs)] == ["attempt 2", "attempts 1, 3"]


def test_what_another_experiment_began_is_not_a_part_of_the_line() -> None:
    (course,) = build_courses([attempt(1, after="run_elsewhere", step=10)])
    assert [step for step, _ in course.series(0, "loss")] == list(range(11, 41))
    assert discarded_text(course) is None


def test_weights_of_another_phase_begin_a_line() -> None:
    courses = build_courses([attempt(1, upto=9), attempt(2, after="run_1", step=0)])
    assert len(courses) == 2


def test_a_rank_that_an_attempt_lacks_is_left_out_of_its_steps() -> None:
    first = attempt(1, upto=20)
    second = attempt(2, after="run_1", step=20)
    second = replace(second, ranks=second.ranks[:1])
    (course,) = build_courses([first, second])
    assert course.ranks == [0, 1]
    assert [step for step, _ in course.series(1, "loss")] == list(range(1, 21))
    assert course.series(7, "loss") == ()
