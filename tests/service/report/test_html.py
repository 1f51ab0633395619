"""The report as one page: folded details, and only text and charts of its own."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from service.report.details import build_report
from service.report.files import render_report
from tests.service.report.views import halt_finding, report_view, run_report

CHART = Markup('<svg class="chart"></svg>')


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;"), ("a <img src=x> b", "&lt;img"),
        ("[x](javascript:alert(1))", "[x]"),
        ("![<b>](http://elsewhere/x.svg)", "<em>&lt;b&gt;</em>"), ("![x](../../key)", "<em>x</em>"),
        ("![x](p.svg)", str(CHART)),
    ],
)  # fmt: skip
def test_only_text_and_its_own_charts_are_shown(text: str, kept: str) -> None:
    page = render_report(text, {"p.svg": CHART}, "<title>")
    assert kept in page
    assert "&lt;title&gt;" in page
    for bad in ("<script", "<img", 'href="javascript', 'src="'):
        assert bad not in page


def test_details_are_folded_below_the_first_page() -> None:
    run = run_report(findings=(halt_finding(),))
    view = run.view.model_validate({**run.view.wire(), "verdict": "NO_GO"})
    run = run_report(view=view, findings=(halt_finding(),))
    page = render_report(build_report(report_view(run)), {}, "t")
    body = page.split("<body>")[1]
    assert body.count("<details") == body.count("</details>")
    assert body.count("<details open>") == 1
    assert body.index("<details open><summary>Look here first") < body.index("<details><summary>")
    assert body.index("Recommendation") < body.index("<details")


def test_a_verdict_has_its_colour_and_its_word() -> None:
    page = render_report("**GO** **NO_GO** **open** **GO by hand**", {}, "t")
    for said in ('"good">GO<', '"bad">NO_GO<', '"open">open<', "<strong>GO by hand<"):
        assert said in page
