"""Answers of a comparison: tables of cases, and what holds of any runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.canonical import digest
from gonogo.contract.comparison import Answer, Basis, Comparison, PathEvidence, Result
from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.errors import Rejected
from gonogo.judge.compare.compare import compare
from gonogo.judge.compare.paths import Ran
from gonogo.judge.compare.question import Question, ask
from gonogo.judge.compare.unit import NoUnit, Unit
from tests.judge.compare.units import blocks, ran, runs, single, unit

QUESTION = ask()
MIRROR = {
    Answer.BETTER: Answer.WORSE,
    Answer.WORSE: Answer.BETTER,
    Answer.TIE: Answer.TIE,
    Answer.INCONCLUSIVE: Answer.INCONCLUSIVE,
}
VALUES = st.lists(st.floats(50, 200), min_size=2, max_size=6)


def of_two(
    base: Sequence[float], mine: Sequence[float], question: Question = QUESTION, **more: Any
) -> Comparison:
    return compare({"a": runs("a", base, **more), "b": runs("b", mine, batch=8, **more)}, question)


@pytest.mark.parametrize(
    ("base", "mine", "answer", "result", "kept"),
    [
        ([100, 101, 99], [110, 111, 109], Answer.BETTER, Result.WINNER, "b"),
        ([100, 101, 99], [90, 91, 89], Answer.WORSE, Result.WINNER, "a"),
        ([100, 100.1, 99.9], [100.2, 100.3, 100.1], Answer.TIE, Result.TIE, "a"),
        ([100, 110, 90], [104, 95, 120], Answer.INCONCLUSIVE, Result.INCONCLUSIVE, "a"),
        ([100, 100.1, 99.9], [102, 102.2, 101.9], Answer.INCONCLUSIVE, Result.INCONCLUSIVE, "a"),
    ],
    ids=["faster", "slower", "equal", "noisy", "at the margin"],
)
def test_the_answer_follows_from_interval_and_margin(
    base: list[float], mine: list[float], answer: Answer, result: Result, kept: str
) -> None:
    for paired in (True, False):
        found = of_two(base, mine, paired=paired)
        row = found.variants[1]
        assert (row.answer, found.result, found.kept) == (answer, result, kept)
        assert row.basis is (Basis.PAIRED_RUNS if paired else Basis.RUNS)
        assert row.low is not None
        assert row.ratio is not None
        assert row.high is not None
        assert row.low <= row.ratio <= row.high


def test_of_a_loss_lower_is_better() -> None:
    found = of_two([2.0, 2.01, 1.99], [1.8, 1.81, 1.79], ask("loss"))
    assert found.winner == "b"
    assert found.text == "b wins: loss is 10 % lower (ratio 0.899 to 0.901) than that of a"


def test_the_paired_interval_is_that_of_the_textbook() -> None:
    """Differences of the logs 0.1, 0.12, 0.08: mean 0.1, s 0.02, t(2) 4.30265."""
    import math

    base = [100, 110, 90]
    mine = [a * math.exp(row) for a, row in zip(base, (0.1, 0.12, 0.08), strict=True)]
    (_, row) = of_two(base, mine).variants
    half = 4.30265273 * 0.02 / math.sqrt(3)
    assert row.low == pytest.approx(math.exp(0.1 - half), rel=1e-7)
    assert row.high == pytest.approx(math.exp(0.1 + half), rel=1e-7)


def test_pairing_takes_out_what_repeats_share() -> None:
    drift = [100, 80, 120, 90]
    mine = [value * ratio for value, ratio in zip(drift, (1.05, 1.051, 1.049, 1.05), strict=True)]
    assert of_two(drift, mine).winner == "b"
    assert of_two(drift, mine, paired=False).result is Result.INCONCLUSIVE


def test_only_repeats_that_match_are_paired() -> None:
    base, mine = runs("a", [100, 101, 99, 100]), runs("b", [110, 111, 109], batch=8)
    found = compare({"a": base, "b": mine}, QUESTION)
    assert found.variants[1].basis is Basis.PAIRED_RUNS
    apart = [replace(row, repeat=(row.repeat or 0) + 10) for row in mine]
    assert compare({"a": base, "b": apart}, QUESTION).variants[1].basis is Basis.RUNS


def test_more_variants_make_every_interval_wider() -> None:
    a, b = runs("a", [100, 101, 99]), runs("b", [106, 108, 105], batch=8)
    c = runs("c", [100, 102, 98], batch=16)
    two = compare({"a": a, "b": b}, QUESTION).variants[1]
    three = compare({"a": a, "b": b, "c": c}, QUESTION).variants[1]
    assert two.low is not None
    assert three.low is not None
    assert three.low < two.low


def test_of_several_better_ones_the_best_wins_and_the_others_are_named() -> None:
    found = compare(
        {
            "a": runs("a", [100, 101, 99]),
            "b": runs("b", [120, 121, 119], batch=8),
            "c": runs("c", [130, 131, 129], batch=16),
        },
        QUESTION,
    )
    assert found.winner == "c"
    assert found.text.endswith("; b beat the baseline too, and may be as good")


# ---- one run each --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "answer"),
    [
        (1.0, Answer.INCONCLUSIVE),
        (1.08, Answer.INCONCLUSIVE),
        (1.3, Answer.BETTER),
        (0.7, Answer.WORSE),
    ],
)
def test_a_single_run_shows_only_what_no_spread_between_runs_explains(
    ratio: float, answer: Answer
) -> None:
    base = single("a", blocks(100, noise=0.01, seed=1))
    mine = single("b", blocks(100 * ratio, noise=0.01, seed=2), batch=8)
    found = compare({"a": base, "b": mine}, QUESTION)
    assert found.variants[1].answer is answer
    assert found.variants[1].basis is Basis.BLOCKS
    assert Doubt(kind=DoubtKind.SINGLE_RUN) in found.notes


def test_blocks_that_follow_each_other_count_for_less() -> None:
    draw, level, series = random.Random(5), 0.0, []
    for _ in range(64):
        level = 0.9 * level + draw.gauss(0, 0.01)
        series.append(100 * (1 + level))
    shuffled = draw.sample(series, len(series))
    wide, narrow = (
        compare(
            {"a": single("a", [100.0] * 64), "b": single("b", rows, batch=8)}, QUESTION
        ).variants[1]
        for rows in (series, shuffled)
    )
    assert narrow.high is not None
    assert wide.high is None or wide.high > narrow.high


def test_a_course_that_both_share_drops_out() -> None:
    course = [5.0 - 0.04 * step for step in range(64)]
    other = [value * factor for value, factor in zip(course, blocks(0.7, noise=0.001), strict=True)]
    found = compare({"a": single("a", course), "b": single("b", other, batch=8)}, ask("loss"))
    assert found.variants[1].answer is Answer.BETTER


def test_too_few_blocks_make_no_interval() -> None:
    found = compare({"a": single("a", [1.0] * 7), "b": single("b", [2.0] * 7, batch=8)}, QUESTION)
    row = found.variants[1]
    assert (row.answer, row.low, row.basis, row.ratio) == (Answer.INCONCLUSIVE, None, None, 2.0)


def test_one_run_beside_several_is_one_run() -> None:
    series = blocks(130, noise=0.01)
    mine = [unit(f"b{n}", 130 + n, blocks=series, repeat=n, ran=ran(batch=8)) for n in (1, 2, 3)]
    found = compare({"a": single("a", blocks(100, noise=0.01, seed=3)), "b": mine}, QUESTION)
    assert found.variants[1].basis is Basis.BLOCKS


AGAIN = Doubt(kind=DoubtKind.RUNS_ALIKE, name="a")


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("seed", [1, None], ids=["one seed", "no seed"])
def test_of_what_is_learnt_runs_of_one_seed_are_one_run(seed: int | None, paired: bool) -> None:
    """Kernels that round anew each time tell the same run again, and not what another would do."""
    base, mine = (
        runs(letter, values, paired=paired, seeds=[seed] * 3, batch=batch)
        for letter, values, batch in (
            ("a", [5.0, 5.0001, 4.9999], 4),
            ("b", [4.8, 4.8001, 4.7999], 8),
        )
    )
    found = compare({"a": base, "b": mine}, ask("loss"))
    assert found.result is Result.INCONCLUSIVE
    assert AGAIN in found.notes
    of_speed = compare({"a": base, "b": mine}, ask("dt_step_s"))
    assert of_speed.winner == "b"
    assert AGAIN not in of_speed.notes


def test_one_seed_on_one_side_is_one_run_beside_several() -> None:
    base = runs("a", [5.0, 5.0001, 4.9999], seeds=[1, 1, 1])
    mine = runs("b", [4.8, 4.81, 4.79], batch=8)
    for named in ({"a": base, "b": mine}, {"b": mine, "a": base}):
        assert compare(named, ask("loss")).result is Result.INCONCLUSIVE


def test_where_no_order_is_at_hand_another_configuration_is_another_seed() -> None:
    def by_rules(*digests: str) -> list[Unit]:
        rows = runs("a", [5.0, 5.001, 4.999])
        known = [Ran(by_rules={"config_digest": row, "world_size": 1}) for row in digests]
        return [replace(row, ran=ran) for row, ran in zip(rows, known, strict=True)]

    mine = [replace(row, name=f"b{n}", run=f"b{n}/1") for n, row in enumerate(by_rules(*"789"))]
    mine = [replace(row, value=row.value * 0.9) for row in mine]
    assert compare({"a": by_rules(*"123"), "b": mine}, ask("loss")).winner == "b"
    assert compare({"a": by_rules(*"111"), "b": mine}, ask("loss")).winner is None


def test_repeats_that_are_the_same_to_the_last_digit_are_none() -> None:
    found = of_two([5.0, 5.0, 5.0], [4.0, 4.0, 4.0], ask("loss"))
    assert found.result is Result.INCONCLUSIVE
    assert AGAIN in found.notes


# ---- missing evidence ----------------------------------------------------------------------------


def test_a_variant_without_a_run_is_inconclusive_and_says_so() -> None:
    gone = [NoUnit(name="b1", why="it did not complete: stalled")]
    for named in ({"a": runs("a", [100, 101]), "b": gone}, {"b": gone, "a": runs("a", [1, 2])}):
        found = compare(named, QUESTION)
        assert found.result is Result.INCONCLUSIVE
        assert found.winner is None
        assert "no run that counts" in found.text
        assert [row.model_dump() for row in found.left_out] == [
            {"variant": "b", "name": "b1", "why": "it did not complete: stalled"}
        ]


def test_the_same_run_counts_once() -> None:
    (a,) = runs("a", [100])
    found = compare({"a": [a, a], "b": [a]}, QUESTION)
    assert [row.why for row in found.left_out] == ["it is the same run as a1"] * 2
    assert found.result is Result.INCONCLUSIVE


@pytest.mark.parametrize(
    "variants", [{}, {"a": runs("a", [1])}, {"a": runs("a", [1]), "b": []}], ids=["0", "1", "empty"]
)
def test_nothing_to_compare_is_the_askers_fault(variants: dict[str, list[Unit]]) -> None:
    with pytest.raises(Rejected):
        compare(variants, QUESTION)


# ---- what really differed ------------------------------------------------------------------------


def test_variants_that_ran_the_same_thing_are_inconclusive_however_they_look() -> None:
    found = compare({"a": runs("a", [100, 101, 99]), "b": runs("b", [150, 151, 149])}, QUESTION)
    assert found.result is Result.INCONCLUSIVE
    assert found.text.startswith("inconclusive: the variants ran the same thing;")
    assert found.paths == []


def test_a_seed_is_no_difference() -> None:
    found = compare(
        {"a": runs("a", [100, 101], seeds=[1, 1]), "b": runs("b", [150, 151], seeds=[2, 2])},
        QUESTION,
    )
    assert found.text.startswith("inconclusive: the variants ran the same thing;")


def test_what_the_runs_told_alike_did_not_differ() -> None:
    def of(letter: str, flag: str) -> list[Unit]:
        told = {"env": True, "env.NSA_FLASH": "0"}
        what = Ran(ordered={"env.NSA_FLASH": flag}, told=told)
        return [unit(f"{letter}{n}", 100 + n, repeat=n, ran=what) for n in (1, 2)]

    found = compare({"a": of("a", "0"), "b": of("b", "1")}, QUESTION)
    assert found.paths[0].evidence is PathEvidence.DENIED
    assert "what was ordered to differ (env.NSA_FLASH) did not" in found.variants[1].text


def test_all_that_differs_is_listed_with_who_says_so() -> None:
    def of(letter: str, batch: int, sha: str) -> list[Unit]:
        what = Ran(
            ordered={"train.batch": batch, "env.OMP_NUM_THREADS": str(batch)},
            told={"git_sha": sha, "config_digest": f"digest{batch}", "tokens_per_step": batch},
        )
        return [unit(f"{letter}{n}", 100 + n, repeat=n, ran=what) for n in (1, 2)]

    found = compare({"a": of("a", 4, "aaa"), "b": of("b", 8, "bbb")}, QUESTION)
    assert {row.path: row.evidence.value for row in found.paths} == {
        "env.OMP_NUM_THREADS": "ordered",
        "git_sha": "told",
        "train.batch": "told",
    }
    assert found.paths[1].values == {"a": ["aaa"], "b": ["bbb"]}


def test_without_every_order_the_digests_stand_for_the_configuration() -> None:
    known = Ran(ordered={"train.batch": 4}, by_rules={"config_digest": "x", "world_size": 1})
    by_rules = Ran(by_rules={"config_digest": "y", "world_size": 1})
    found = compare(
        {"a": [unit("a1", 1.0, ran=known)], "b": [unit("b1", 1.0, ran=by_rules)]}, QUESTION
    )
    assert [row.path for row in found.paths] == ["config_digest"]


# ---- what holds of any runs ----------------------------------------------------------------------


@given(base=VALUES, mine=VALUES, paired=st.booleans())
def test_swapping_baseline_and_variant_mirrors_the_answer(
    base: list[float], mine: list[float], paired: bool
) -> None:
    there = of_two(base, mine, paired=paired).variants[1]
    a, b = runs("a", base, paired=paired), runs("b", mine, paired=paired, batch=8)
    back = compare({"b": b, "a": a}, QUESTION).variants[1]
    assert there.answer is not None
    assert back.answer is MIRROR[there.answer]
    if there.low is not None and there.high is not None and there.ratio is not None:
        assert back.ratio == pytest.approx(1 / there.ratio, rel=1e-6)
        assert back.high == pytest.approx(1 / there.low, rel=1e-6)


@given(base=VALUES, mine=VALUES, paired=st.booleans(), seed=st.integers(0, 99))
def test_the_order_in_which_runs_are_named_changes_nothing(
    base: list[float], mine: list[float], paired: bool, seed: int
) -> None:
    a, b = runs("a", base, paired=paired), runs("b", mine, paired=paired, batch=8)
    mixed = random.Random(seed)
    there = compare({"a": a, "b": b}, QUESTION)
    again = compare({"a": mixed.sample(a, len(a)), "b": mixed.sample(b, len(b))}, QUESTION)
    assert digest(there.wire()) == digest(again.wire())


@given(base=VALUES, mine=VALUES, scale=st.floats(0.01, 1000), paired=st.booleans())
def test_another_unit_of_measure_changes_no_ratio(
    base: list[float], mine: list[float], scale: float, paired: bool
) -> None:
    there = of_two(base, mine, paired=paired).variants[1]
    scaled = of_two([scale * v for v in base], [scale * v for v in mine], paired=paired).variants[1]
    assert scaled.ratio == pytest.approx(there.ratio, rel=1e-6)
    if there.low is not None and scaled.low is not None:
        assert scaled.low == pytest.approx(there.low, rel=1e-5)


@given(base=VALUES, mine=VALUES)
def test_lower_is_better_is_the_mirror_of_higher_is_better(
    base: list[float], mine: list[float]
) -> None:
    higher = of_two(base, mine, ask("loss", higher_is_better=True)).variants[1].answer
    lower = of_two(base, mine, ask("loss", higher_is_better=False)).variants[1].answer
    assert higher is not None
    assert lower is MIRROR[higher]


@given(base=VALUES, mine=VALUES)
def test_the_same_runs_give_the_same_comparison(base: list[float], mine: list[float]) -> None:
    assert of_two(base, mine) == of_two(base, mine)
    assert Comparison.model_validate(of_two(base, mine).wire()) == of_two(base, mine)


@settings(max_examples=50)
@given(base=VALUES, mine=VALUES, gone=st.integers(0, 5))
def test_missing_evidence_never_wins(base: list[float], mine: list[float], gone: int) -> None:
    """A variant whose runs are gone, all of them, is never better, and never decides a tie."""
    rows: dict[str, list[Unit | NoUnit]] = {
        "a": [*runs("a", base)],
        "b": [NoUnit(name=f"b{n}", why="gone") for n in range(gone + 1)],
        "c": [*runs("c", mine, batch=8)],
    }
    found = compare(rows, QUESTION)
    assert found.variants[1].answer is Answer.INCONCLUSIVE
    assert found.winner in (None, "c")
    assert found.result is not Result.TIE
    assert len(found.left_out) == gone + 1
