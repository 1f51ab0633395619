"""Answers of a comparison: tables of cases, and what holds of any runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.campaign import Answer, Basis, Comparison, Result
from gonogo.contract.canonical import digest
from gonogo.contract.errors import Rejected
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.judge.compare.compare import compare, t_quantile, t_within
from gonogo.judge.compare.unit import NoUnit, Question, Ran, Unit, ask
from tests.judge.compare.units import blocks, runs, single, unit

# Answers of a comparison: tables of cases, and what holds of any runs.


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


def test_the_paired_interval_is_that_of_the_textbook() -> None:
    """Differences of the logs 0.1, 0.12, 0.08: mean 0.1, s 0.02, t(2) 4.30265."""
    import math

    base = [100, 110, 90]
    mine = [a * math.exp(row) for a, row in zip(base, (0.1, 0.12, 0.08), strict=True)]
    (_, row) = of_two(base, mine).variants
    half = 4.30265273 * 0.02 / math.sqrt(3)
    assert row.low == pytest.approx(math.exp(0.1 - half), rel=1e-7)
    assert row.high == pytest.approx(math.exp(0.1 + half), rel=1e-7)


# ---- one run each --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "answer"),
    [
        (1.0, Answer.INCONCLUSIVE), (1.08, Answer.INCONCLUSIVE), (1.3, Answer.BETTER),
        (0.7, Answer.WORSE),
    ],
)  # fmt: skip
def test_a_single_run_shows_only_what_no_spread_between_runs_explains(
    ratio: float, answer: Answer
) -> None:
    base = single("a", blocks(100, noise=0.01, seed=1))
    mine = single("b", blocks(100 * ratio, noise=0.01, seed=2), batch=8)
    found = compare({"a": base, "b": mine}, QUESTION)
    assert found.variants[1].answer is answer
    assert found.variants[1].basis is Basis.BLOCKS
    assert Doubt(kind=DoubtKind.SINGLE_RUN) in found.notes


AGAIN = Doubt(kind=DoubtKind.RUNS_ALIKE, name="a")


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("seed", [1, None], ids=["one seed", "no seed"])
def test_of_what_is_learnt_runs_of_one_seed_are_one_run(seed: int | None, paired: bool) -> None:
    """Kernels with varying rounding show the same run again, not another one."""
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


# What can be asked, and what cannot.


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"metric": "tok_per_s"}, "did you mean toks_per_s"),
        ({"metric": "grad_norm"}, "which is better of grad_norm?"), ({"margin": 1.0}, "margin"),
        ({"margin": float("nan")}, "margin"), ({"confidence": 1.0}, "confidence"),
        ({"warmup_steps": -1}, "warmup"),
    ],
    ids=str,
)  # fmt: skip
def test_a_question_that_cannot_be_answered_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(Rejected, match=said.replace("?", r"\?")):
        ask(**asked)


# Student's t against the printed tables.


TABLE = [
    (0.975, 1, 12.7062047),
    (0.975, 2, 4.30265273),
    (0.975, 3, 3.18244631),
    (0.975, 5, 2.57058184),
    (0.975, 10, 2.22813885),
    (0.975, 30, 2.04227246),
    (0.975, 120, 1.97993041),
    (0.95, 4, 2.13184679),
    (0.99, 7, 2.99795157),
    (0.995, 9, 3.24983554),
    (0.9995, 2, 31.5990546),
    (0.8, 6, 0.905703285),
]


@pytest.mark.parametrize(("p", "df", "t"), TABLE, ids=str)
def test_quantiles_are_those_of_the_tables(p: float, df: int, t: float) -> None:
    assert t_quantile(p, df) == pytest.approx(t, rel=1e-7)


@given(p=st.floats(0.51, 0.9999), df=st.integers(1, 300))
def test_the_quantile_inverts_the_distribution_and_shrinks_with_more_degrees(
    p: float, df: int
) -> None:
    assert t_within(t_quantile(p, df), df) == pytest.approx(2 * p - 1, rel=1e-9)
    assert t_quantile(p, df + 1) < t_quantile(p, df)
