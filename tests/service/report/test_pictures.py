"""Are the numbers behind the pictures those of the runs, and is what is missing said in words?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gonogo.contract.order import LeftOut
from gonogo.contract.watch import Watch
from service.report.distribution import Bin
from service.report.pictures import MAX_RANKS, overview_pictures, phase_pictures, spread_out
from service.report.plots import draw
from service.report.shapes import Chart, Curve, Histogram, Mark
from service.report.view import RunReport
from tests.service.report.views import attempt, halt_finding, order_of, report_view, run_report

PNG = b"\x89PNG\r\n\x1a\n"
SERIES = ("host_mb", "device_mb", "util", "gate_entropy", "gate_max", "gate_collapse_frac")


def told(run: RunReport, **series: float) -> RunReport:
    """The run, with series of which every rank tells the same at every step."""
    rows = {name: tuple((step, value) for step in range(1, 41)) for name, value in series.items()}
    return replace(run, ranks=tuple(replace(rank, **rows) for rank in run.ranks))


def charts_of(*runs: RunReport) -> dict[str, Chart | Histogram]:
    shown = phase_pictures(report_view(*runs), "smoke")
    return {row.name: row for row in shown.pictures}


def curves(chart: Chart | Histogram) -> dict[str, Curve]:
    assert isinstance(chart, Chart)
    return {row.label: row for row in chart.curves}


def test_a_resumed_phase_is_one_line_with_a_mark_where_it_went_on() -> None:
    found = charts_of(attempt(1, upto=30), attempt(2, after="run_1", step=20))
    loss = found["smoke-loss"]
    assert isinstance(loss, Chart)
    assert [row.label for row in loss.curves] == ["loss", "validation"]
    assert [step for step, _ in loss.curves[0].points] == list(range(1, 41))
    assert loss.marks == (Mark(at=21, text="attempt 2 from step 21"),)
    steps = found["smoke-steps"]
    assert isinstance(steps, Histogram)
    assert sum(row.count for row in steps.bins) == 80
    assert [row.text for row in steps.marks] == ["median 0.15 s", "p95 0.2 s"]
    speed = curves(found["smoke-speed"])
    assert sorted(speed) == ["rank 0", "rank 1"]
    assert dict(speed["rank 1"].points)[20] == pytest.approx(20_480, rel=1e-5)
    assert dict(speed["rank 1"].points)[21] == pytest.approx(10_240, rel=1e-5)


def test_a_rerun_is_a_second_line_of_the_loss_and_the_newest_of_the_rest() -> None:
    found = charts_of(attempt(1, upto=30), attempt(2))
    names = [f"{what}, attempt {n}" for n in (1, 2) for what in ("loss", "validation")]
    assert list(curves(found["smoke-loss"])) == names
    assert found["smoke-speed"].title == "smoke: tokens/s over all ranks, attempt 2"
    assert len(curves(found["smoke-speed"])["rank 0"].points) == 40


def test_what_was_not_observed_is_a_sentence_and_no_picture() -> None:
    shown = phase_pictures(report_view(run_report()), "smoke")
    assert [row.name for row in shown.pictures] == [
        "smoke-loss", "smoke-speed", "smoke-steps", "smoke-sections",
    ]  # fmt: skip
    assert shown.absent == (
        "host memory: no rank reports any",
        "device memory: no rank reports any, and no device says what is in use",
        "device utilisation: no device line falls into a step",
        "gate statistics: no progress line tells them",
    )


def test_everything_that_is_told_has_its_picture() -> None:
    run = told(run_report(), **dict.fromkeys(SERIES, 500.0))
    shown = phase_pictures(report_view(run), "smoke")
    assert shown.absent == ()
    found = {row.name: row for row in shown.pictures}
    assert curves(found["smoke-device"])["rank 1"].points[0] == (1, 0.5)
    assert curves(found["smoke-util"])["rank 0"].points[-1] == (40, 500.0)
    assert len(curves(found["smoke-gates"])) == 3
    for picture in shown.pictures:
        assert draw(picture).startswith(PNG)


@pytest.mark.parametrize(
    ("missing", "picture"),
    [("loss", "smoke-loss"), ("tok_s", "smoke-speed"), ("step_times", "smoke-steps")],
)
def test_what_ranks_do_not_tell_costs_no_other_picture(missing: str, picture: str) -> None:
    run = run_report()
    empty = {missing: type(getattr(run.ranks[0], missing))(), "val_loss": ()}
    bare = replace(run, ranks=tuple(replace(rank, **empty) for rank in run.ranks))
    assert charts_of(run).keys() - charts_of(bare).keys() == {picture}


def test_one_step_is_no_curve() -> None:
    run = run_report(order_of("sanity"))
    shown = phase_pictures(report_view(run), "sanity")
    assert shown.pictures == ()
    assert shown.absent == ("curves: fewer than two steps have ended",)


def test_the_floor_and_the_halt_stand_in_the_pictures() -> None:
    order = order_of()
    watch = Watch.model_validate({"slow": {"floor_tok_s": 45.0}})
    run = run_report(
        order.model_copy(update={"watch": watch, "left_out": [LeftOut(id="x", why="y")]}),
        findings=(halt_finding(),),
    )
    speed = charts_of(run)["smoke-speed"]
    assert isinstance(speed, Chart)
    assert [(row.value, row.text) for row in speed.bounds] == [(45.0, "floor 45")]
    assert speed.marks == (Mark(at=12, text="stall at step 12", grave=True),)
    assert "stall at step 12" in speed.words


def test_many_ranks_are_shown_by_some_from_the_lowest_to_the_highest() -> None:
    rows = [Curve(label=f"rank {rank}", points=((1, 100.0 - rank),)) for rank in range(64)]
    kept = spread_out(rows)
    assert len(kept) == MAX_RANKS
    assert (kept[0].label, kept[-1].label) == ("rank 63", "rank 0")
    assert spread_out(rows[:3]) == rows[:3]


def test_phases_follow_each_other_in_the_overview_and_a_resume_adds_no_steps() -> None:
    sanity = run_report(order_of("sanity"))
    view = report_view(sanity, attempt(1, upto=30), attempt(2, after="run_1", step=20))
    loss, speed = overview_pictures(view)
    assert [row.label for row in loss.curves] == ["sanity", "smoke"]
    assert loss.curves[0].points[0][0] == 1
    assert [step for step, _ in loss.curves[1].points] == list(range(2, 42))
    assert [row.label for row in speed.curves] == ["sanity", "smoke"]


def test_an_experiment_without_steps_has_no_overview() -> None:
    assert overview_pictures(report_view(run_report(ranks=()))) == ()


def test_a_histogram_of_equal_times_can_be_drawn() -> None:
    bins = (Bin(low=0.0, high=0.0, count=3),)
    assert draw(Histogram(name="x", title="t", x="s", bins=bins)).startswith(PNG)
