"""Growth of a step's tokens is held against what the first lines told."""

import math
import random
from collections.abc import Iterable, Sequence
from itertools import accumulate

import pytest

from gonogo.watch.tokens import TokenGrowth, rise_of_sums


def grown(*tokens: int | None) -> float:
    """Return the growth after steps that told so many tokens."""
    growth = TokenGrowth()
    for told in tokens:
        growth = growth.after(told)
    return growth.ratio


@pytest.mark.parametrize(
    ("tokens", "ratio"),
    [
        ((), 1.0),
        ((None,) * 40, 1.0),
        ((100,) * 40, 1.0),
        ((100,) * 15 + (900,), 9.0),
        ((100,) * 15 + (None, 0, -5), 1.0),
        ((100,) * 15, 1.0),
        ((100,) * 16 + (200,), 2.0),
        ((100,) * 16 + (200, None), 2.0),
        ((100,) * 16 + (50,), 0.5),
        ((1,) + (100,) * 15 + (300,), 3.0),
    ],
)
def test_growth(tokens: tuple[int | None, ...], ratio: float) -> None:
    assert grown(*tokens) == ratio


def test_what_was_told_of_a_step_that_was_counted_changes_nothing() -> None:
    """Told again for each step in between, sums that are told of every tenth step were none."""
    growth = TokenGrowth()
    for step in range(1, 401):
        told = step // 10 * 10
        growth = growth.after(100 * told, 100, step=told)
    assert (growth.sums, growth.ratio, growth.step) == (True, 1.0, 400)
    assert growth.after(99, 100, step=400) is growth
    assert growth.restarted().after(39_900, 100, step=390).step == 390
    assert growth.restarted().after(100, 100, step=1).before == 100
    assert TokenGrowth().after(100, 100, step=1).first == (100,)


@pytest.mark.parametrize(
    ("ordered", "tokens", "ratio"),
    [
        (100, (100,) * 5 + (170,), 1.7),
        (None, (100,) * 5 + (170,), 1.0),
        (100, (2500,) * 6, 1.0),
        (100, (100, 200, 300, 400), 1.0),
        (100, (100, 200), 1.0),
        (100, (170,), 1.0),
        (100, (100, 100, 50), 0.5),
    ],
    ids=["ramp", "nothing ordered", "another unit", "sums", "two", "one", "fewer"],
)
def test_the_growth_of_the_first_lines_is_against_what_was_ordered(
    ordered: int | None, tokens: tuple[int, ...], ratio: float
) -> None:
    """A batch that grew at step 50, of a program that tells every tenth, looked like slowness."""
    growth = TokenGrowth()
    for told in tokens:
        growth = growth.after(told, ordered)
    assert growth.ratio == pytest.approx(ratio)


def of_ordered(ordered: int | None, *tokens: int) -> float:
    """Return the growth where so many tokens were ordered for a step."""
    growth = TokenGrowth()
    for told in tokens:
        growth = growth.after(told, ordered)
    return growth.ratio


@pytest.mark.parametrize(
    ("ordered", "tokens", "ratio"),
    [
        (100, (*range(100, 1701, 100),), 1.0),
        (100, (*range(200, 1801, 100), 2300), 5.0),
        (100, (*range(300, 1801, 100), 1800, 400, 600), 2.0),
        (100, (*range(400, 1901, 100), 2300), 2.0),  # it did not begin at naught
        (100, (*range(100, 1501, 100), 1500, 1700), 2.0),  # it did not rise with every line
        (849, (*range(100, 1701, 100),), 1.0),
        (850, (*range(100, 1701, 100),), 2.0),  # sequences that grow look so, too
        (850, (*range(100, 1701, 100), 1800), 1.0),
        (None, (*range(100, 1701, 100),), 2.0),
    ],
)
def test_a_sum_grows_by_what_it_rises_by(
    ordered: int | None, tokens: tuple[int, ...], ratio: float
) -> None:
    assert of_ordered(ordered, *tokens) == ratio


@pytest.mark.parametrize(
    ("ordered", "tokens", "ratio"),
    [
        (100, (*range(100, 180, 5), 400), 4.0),
        (100, (*range(104, 184, 5), 400), 400 / 104),
        (100, (*range(70, 230, 10), 300), 3.0),
        (100, (*range(50, 98, 3), 300), 300 / 72.5),  # fewer than were ordered
        (100, (*range(126, 286, 10), 400), 400 / 201),  # in another unit
        (None, (*range(100, 180, 5), 400), 400 / 137.5),
        (100, (100, *(2500,) * 16), 1.0),
    ],
)
def test_a_ramp_that_begins_at_once_has_grown_since_what_was_ordered(
    ordered: int | None, tokens: tuple[int, ...], ratio: float
) -> None:
    assert of_ordered(ordered, *tokens) == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("tokens", "rise"),
    [
        ((*range(100, 2001, 100),), 100),
        ((*range(100, 2001, 100), *range(2000, 4001, 100)), 100),
        ((*range(100, 2001, 100), *range(100, 2001, 100)), 100),
        ((*range(100, 2001, 100), *range(400, 2001, 100)), None),
        ((*range(100, 1601, 100), 1600), None),
        ((*range(100, 2001, 100), 2000, 2000), None),
        ((*range(100, 1601, 100), *(1600,) * 400), None),
        ((100, 200, 300) * 6, 100),
        ((100, 200) * 9, None),
        ((100, 200, 300, 300) * 5, None),
        ((900, 1000, 1100) * 6, None),
        ((*(100, 200, 300, 400) * 3, *(100, 200, 300) * 2), None),
        ((*(100, 200, 300, 400) * 8, *(100, 200, 300) * 6), 100),
        ((*(300, 400), *(100, 200, 300, 400) * 3, *(100, 200)), 100),
    ],
    ids=[
        *("all", "one left out", "of each epoch", "a fall", "few lines", "too many", "a batch"),
        *("of three steps", "of two steps", "not all rise", "three lengths in turns"),
        *("few uneven epochs", "many uneven epochs", "within an epoch"),
    ],
)
def test_numbers_that_may_be_sums(tokens: tuple[int, ...], rise: float | None) -> None:
    assert rise_of_sums(tokens) == rise


@pytest.mark.parametrize("lines", [16, 20, 30, 48, 100])
@pytest.mark.parametrize("spread", [0.5, 0.8, 1.2, 2.0])
def test_batches_of_any_size_are_taken_for_sums_hardly_ever(lines: int, spread: float) -> None:
    """Packed documents, or padded ones: whose numbers are taken for sums have no speed."""
    chance = random.Random(lines)
    batches = (
        [1 + int(512 * math.exp(chance.gauss(0, spread))) for _ in range(lines)]
        for _ in range(2_000)
    )
    assert sum(rise_of_sums(told) is not None for told in batches) <= 3


def over_restarts(*boots: Iterable[int]) -> TokenGrowth:
    """Return the growth after a run that restarted in place between these lines."""
    growth = TokenGrowth()
    for boot in boots:
        for told in boot:
            growth = growth.after(told, 100)
        growth = growth.restarted()
    return growth


SUMS = range(100, 4001, 100)


@pytest.mark.parametrize(
    "boots",
    [
        (SUMS[:10], SUMS),
        (SUMS[:1], SUMS),
        (SUMS[:15], SUMS[:3], SUMS[:8], SUMS),
        (SUMS[:10], SUMS[6:]),
        (SUMS[:10], SUMS[10:]),
        (SUMS[:10], SUMS[9:]),
        (SUMS[:20], SUMS),
    ],
    ids=["anew", "at once", "often", "resumed", "went on", "one again", "known before"],
)
def test_a_sum_is_known_as_one_over_restarts(boots: tuple[Sequence[int], ...]) -> None:
    growth = over_restarts(*boots)
    assert growth.sums
    assert growth.ratio == 1.0


@pytest.mark.parametrize(
    ("boots", "ratio"),
    [
        (((100,) * 10, (100,) * 6, (300,)), 3.0),
        (((100,),) * 5 + ((100,) * 15, (300,)), 3.0),
        (((90, 100, 110, 100) * 2, (90, 110, 100, 100) * 2, (300,)), 3.0),
    ],
    ids=["alike", "one a boot", "of many lengths"],
)
def test_what_is_no_sum_grows_over_restarts(boots: tuple[Sequence[int], ...], ratio: float) -> None:
    growth = over_restarts(*boots)
    assert (growth.sums, growth.ratio) == (False, ratio)


UP, FLAT, ANEW = 100, 0, -100
"""What the number of a line is more than that of the line before."""


def told_by(steps: Iterable[int], first: int = 300) -> list[int]:
    return list(accumulate(steps, initial=first))


@pytest.mark.parametrize(
    ("tokens", "rises_by"),
    [
        (told_by([UP, ANEW] * 6 + [UP] * 3), 100),
        (told_by([UP, ANEW] * 6 + [UP, FLAT, FLAT]), None),
        (told_by([UP, UP, -200] * 3 + [UP, ANEW] * 3, first=200), None),
        (told_by([UP, UP, -200] * 13 + [UP, ANEW] * 4, first=200), 100),
        (told_by([UP, UP, -200] * 13 + [UP, ANEW] * 3 + [UP], first=200), None),
        (told_by([UP, UP, UP, -300] * 6 + [UP]), 100),
        (told_by([UP, UP, UP, -299] * 6 + [UP]), None),
        (told_by([UP] * 19 + [FLAT]), 100),
        (told_by([UP] * 18 + [FLAT, FLAT]), None),
        (told_by([UP] * 10 + [FLAT] * 6), None),
        (told_by([UP, UP, FLAT, ANEW] * 4), None),
        (told_by([UP] * 20, first=301), None),
        (told_by([UP, UP, UP, -300, UP, FLAT, UP, -200, *[UP, UP, UP, -300] * 3]), 100),
        (told_by([1] * 20, first=3), 1),
    ],
    ids=[
        "three of five rise",
        "fewer",
        "a few uneven",
        "48 uneven",
        "47 uneven",
        "anew at three rises",
        "anew beyond",
        "one of twenty is flat",
        "two are",
        "what stays has not begun anew",
        "nor at equal distances",
        "begun too high",
        "what stays is none of those that begin anew",
        "by one token",
    ],
)
def test_where_numbers_may_be_sums(tokens: list[int], rises_by: int | None) -> None:
    assert rise_of_sums(tokens) == rises_by


@pytest.mark.parametrize(
    ("ordered", "tokens", "ratio"),
    [
        (100, (100, 200, 200), 2.0),
        (100, (100, 50), 2 / 3),
        (100, (*range(100, 1700, 100),), 1.0),
        (100, (*range(10, 170, 10),), 160 / 85),
        (100, (*range(10, 170, 10), 150), 150 / 85),
        (100, (*range(100, 1600, 100), 250), 1.0),
        (100, (*range(100, 1800, 100), 1700), 1.0),
        (100, (*range(100, 1800, 100), 1701), 0.01),
    ],
    ids=[
        "the median is twice what was ordered",
        "two lines tell enough",
        "the sixteenth line is a sum's",
        "no sum yet",
        "nor after one that is less",
        "the sixteenth begins anew",
        "told once more",
        "one token more",
    ],
)
def test_growth_at_the_edges(ordered: int, tokens: tuple[int, ...], ratio: float) -> None:
    assert of_ordered(ordered, *tokens) == pytest.approx(ratio)


def test_lines_that_do_not_rise_are_no_sum_that_is_told_again() -> None:
    growth = over_restarts((100,) * 15, (100,))
    assert growth.usual == 100
