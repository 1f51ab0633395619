"""Ratios of a comparison in words."""

from __future__ import annotations

from gonogo.contract.campaign import Answer, ComparedVariant
from service.pages.render import ratio_text


def variant(*numbers: float | None, answer: Answer | None = Answer.BETTER) -> ComparedVariant:
    ratio, low, high = (*numbers, None, None, None)[:3]
    return ComparedVariant(name="a", runs=[], ratio=ratio, low=low, high=high, answer=answer)


def test_ratios_in_words() -> None:
    assert ratio_text(variant(answer=None)) == "1"
    assert ratio_text(variant()) == "no run that counts"
    assert ratio_text(variant(1.5)) == "1.500"
    assert ratio_text(variant(1.05, 1.03, 1.07)) == "1.050 (1.030 to 1.070)"
