"""Is the report's page whole by itself, and does it trust nothing that stands in it?"""

from __future__ import annotations

import pytest

from service.report.html import render_report


def test_pictures_and_tables_are_inside() -> None:
    text = "# A\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n![x](p.png)"
    page = render_report(text, {"p.png": b"PNG"}, "t")
    assert '<img alt="x" src="data:image/png;base64,UE5H">' in page
    assert "<td>1</td>" in page
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
