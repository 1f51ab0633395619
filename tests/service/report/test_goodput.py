"""Does the report say where the time went, in a picture and a table that mean the same?"""

from __future__ import annotations

import pytest

from gonogo.contract.goodput import ExperimentGoodput, Part, goodput_of
from service.report.goodput import goodput_parts, goodput_picture, goodput_table, ratio_words
from service.report.markdown import build_report, pictures_of
from service.report.plots import PARTS, draw
from service.report.view import ReportView
from tests.service.report.views import EXPERIMENT, RUN, report_view, run_report

SPENT = {Part.QUEUE: 600.0, Part.START: 60.0, Part.PRODUCTIVE: 1800.0, Part.UNKNOWN: 90.0}


def view(**more: object) -> ReportView:
    goodput = ExperimentGoodput(
        experiment=EXPERIMENT, runs={RUN: goodput_of(SPENT)}, **dict(goodput_of(SPENT))
    )
    return report_view(run_report(), **{"goodput": goodput, **more})


def test_the_picture_has_a_bar_of_all_and_one_of_each_run() -> None:
    found = goodput_picture(view())
    assert found is not None
    assert found.rows == ("all", "smoke")
    assert found.x == "minutes"
    assert dict(found.parts)[Part.PRODUCTIVE] == (30.0, 30.0)
    assert Part.STALL not in dict(found.parts)
    assert "productive 30 min" in found.words
    assert draw(found).startswith(b"\x89PNG")


def test_every_part_has_a_colour() -> None:
    assert set(PARTS) == set(Part)


def test_the_report_names_the_picture_and_tells_the_numbers() -> None:
    shown = view()
    text = build_report(shown)
    assert "![Where the time went" in text
    assert "(goodput.png)" in text
    assert "goodput" in [picture.name for picture in pictures_of(shown)]
    head, _, *rows = goodput_table([("all", goodput_of(SPENT))]).splitlines()
    assert head == "|  | effective | wall time | productive | queue | start | unknown |"
    assert rows[0].startswith("| all | at least 92.3 % |")


def test_without_an_account_the_report_says_so() -> None:
    assert goodput_picture(view(goodput=None)) is None
    assert goodput_parts(view(goodput=None)) == ["No account was taken."]


@pytest.mark.parametrize(
    ("unknown", "words"), [(0.0, "50.0 %"), (0.5, "49.9 %"), (100.0, "at least 33.3 %")]
)
def test_a_ratio_is_a_least_one_where_much_is_unknown(unknown: float, words: str) -> None:
    seconds = {Part.PRODUCTIVE: 100.0, Part.STALL: 100.0, Part.UNKNOWN: unknown}
    assert ratio_words(goodput_of(seconds)) == words
    assert ratio_words(goodput_of({})) == "–"
