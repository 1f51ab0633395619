"""The picture of a comparison: every variant has its place, whatever its numbers are."""

from __future__ import annotations

import math
import re

import pytest

from gonogo.contract.campaign import Answer, ComparedVariant, Comparison, Result
from service.pages.drawings import interval_chart, ratio_text

BASE = ComparedVariant(name="plain", runs=[], value=100.0)


def comparison(*rows: ComparedVariant) -> Comparison:
    return Comparison(
        metric="toks_per_s",
        higher_is_better=True,
        margin=0.02,
        confidence=0.95,
        warmup_steps=5,
        baseline="plain",
        variants=[BASE, *rows],
        result=Result.TIE,
        kept="plain",
        text="",
    )


def variant(name: str, *numbers: float | None, answer: Answer = Answer.BETTER) -> ComparedVariant:
    ratio, low, high = (*numbers, None, None, None)[:3]
    return ComparedVariant(name=name, runs=[], ratio=ratio, low=low, high=high, answer=answer)


def numbers_of(svg: str, what: str) -> list[float]:
    return [float(value) for value in re.findall(rf'{what}="(-?[0-9.]+)"', svg)]


def test_a_bar_spans_its_interval_and_the_dot_lies_within() -> None:
    svg = str(interval_chart(comparison(variant("flash", 1.05, 1.03, 1.07))))
    ((low, high),) = re.findall(r'class="interval better" x1="([0-9.]+)" x2="([0-9.]+)"', svg)
    baseline, flash = numbers_of(svg, "cx")
    assert float(low) < flash < float(high)
    assert baseline < float(low)
    assert "flash better, 1.050 (1.030 to 1.070)" in svg


@pytest.mark.parametrize(
    "row",
    [
        variant("a", answer=Answer.INCONCLUSIVE),
        variant("a", 1.0, answer=Answer.INCONCLUSIVE),
        variant("a", 1.2, 0.0, math.inf, answer=Answer.INCONCLUSIVE),
        variant("a", 1e9, 1e8, 1e10),
        variant("a", 1.0, 1.0, 1.0, answer=Answer.TIE),
    ],
)
def test_nothing_leaves_the_picture(row: ComparedVariant) -> None:
    svg = str(interval_chart(comparison(row)))
    for name in ("x", "x1", "x2", "cx"):
        assert all(0.0 <= value <= 640.0 for value in numbers_of(svg, f" {name}")), svg
    assert re.search(r'="-?(nan|inf)', svg) is None
    assert svg.count('class="name"') == 2


def test_names_are_text_and_long_ones_are_cut() -> None:
    svg = str(interval_chart(comparison(variant("<b>&" + "x" * 40, 1.0, 0.9, 1.1))))
    assert "<b>" not in svg
    assert "…</text>" in svg


def test_ratios_in_words() -> None:
    assert ratio_text(BASE) == "1"
    assert ratio_text(variant("a")) == "no run that counts"
    assert ratio_text(variant("a", 1.5)) == "1.500"
