"""Is the report's page whole by itself, and does it trust nothing that stands in it?"""

from __future__ import annotations

import re

import pytest

from service.report.html import render_report
from service.report.markdown import build_report
from tests.service.report.views import report_view, run_report


def test_pictures_and_tables_are_inside() -> None:
    text = "# A\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n![x](p.png)"
    page = render_report(text.replace("![x]", "![a \\| \\*b]"), {"p.png": b"PNG"}, "t")
    assert '<img alt="a | *b" src="data:' in page
    page = render_report(text, {"p.png": b"PNG"}, "t")
    assert '<img alt="x" src="data:image/png;base64,UE5H">' in page
    assert '<td data-name="a">1</td>' in page
    assert page.count("http") == 1  # http-equiv


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;"),
        ("a <img src=x> b", "&lt;img"),
        ("[x](javascript:alert(1))", "[x]"),
        ("![<b>](http://elsewhere/x.png)", "<em>&lt;b&gt;</em>"),
        ("![x](../../key)", "<em>x</em>"),
    ],
)
def test_what_a_program_may_have_put_into_a_text_stays_text(text: str, kept: str) -> None:
    page = render_report(text, {}, "<title>")
    assert kept in page
    assert "&lt;title&gt;" in page
    for bad in ("<script", "<img", 'href="javascript', 'src="http', 'src="..'):
        assert bad not in page


def test_what_few_read_is_closed_until_it_is_opened() -> None:
    page = render_report("## a\n\n### Artifacts\n\nx\n\n## b\n\n#### Artifacts\n\ny", {}, "t")
    assert page.count("<details><summary>Artifacts</summary>") == page.count("</details>") == 2
    first, second = page.split('<h2 id="b">')
    assert first.index("<summary>") < first.index("<p>x</p>") < first.index("</details>")
    assert second.rstrip().endswith("<p>y</p>\n</details>\n</body></html>")


def test_the_contents_lead_to_their_headings() -> None:
    view = report_view(run_report())
    page = render_report(build_report(view), {}, "t")
    links = re.findall(r'href="#([^"]+)"', page)
    assert "smoke-go" in links
    assert links == re.findall(r'<h2 id="([^"]+)">', page)


def test_a_verdict_has_its_colour_and_its_word() -> None:
    page = render_report("**GO** **NO_GO** **open** **other**", {}, "t")
    for said in ('"good">GO<', '"bad">NO_GO<', '"open">open<', "<strong>other<"):
        assert said in page


def test_a_table_of_sentences_is_cards_on_a_telephone_and_one_of_numbers_is_not() -> None:
    long = "a sentence that is longer than forty characters are"
    text = f"| a | b |\n|---|---|\n| 1 | {long} |\n| – |  |\n\n| n |\n|---|\n| 1 |\n"
    page = render_report(text, {}, "t")
    assert page.count('<table class="cards">') == 1
    assert f'<td data-name="b">{long}</td>' in page
    assert page.count('class="none"') == 2
    assert (
        "cards"
        not in render_report(f"|  |  |\n|---|---|\n| 1 | {long} |", {}, "t").split("</style>")[1]
    )
