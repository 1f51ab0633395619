"""Which run does a campaign make next, and when does it end?"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.campaign import Answer, CampaignSpec, Comparison, Result
from gonogo.contract.criterion import Compared
from gonogo.contract.errors import Rejected
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.judge.compare.campaign import Begin, End, Member, Wait, next_step, question_of
from gonogo.judge.compare.unit import NoUnit, Unit
from tests.judge.compare.units import ran, unit


def spec_of(*names: str, **said: Any) -> CampaignSpec:
    variants = [{"name": name} for name in names or ("a", "b")]
    return CampaignSpec.model_validate({"variants": variants, **said})


def brought(begin: Begin, value: float, number: int = 0, **more: Any) -> Unit:
    return unit(
        f"{begin.variant}{begin.repeat}-{number}", value, ran=ran(env=begin.variant), **more
    )


def play(
    spec: CampaignSpec, result_of: Any, most: int = 400
) -> tuple[list[tuple[str, int]], Comparison]:
    """Run a campaign to its end, each run bringing what `result_of(begin, try)` says."""
    members: list[Member] = []
    for _ in range(most):
        step = next_step(spec, members)
        if isinstance(step, End):
            return [(row.variant, row.repeat) for row in members], step.comparison
        assert isinstance(step, Begin)
        place = (step.variant, step.repeat)
        before = sum((row.variant, row.repeat) == place for row in members)
        going = [*members, Member(variant=step.variant, repeat=step.repeat)]
        assert next_step(spec, going) == Wait()
        found = result_of(step, before)
        members.append(Member(variant=step.variant, repeat=step.repeat, brought=found))
    raise AssertionError("it does not end")


def test_an_own_metric_is_compared_by_its_last_value_or_as_the_plan_says() -> None:
    spec = spec_of(metric="user/acc", better="higher")
    assert question_of(spec).aggregate == "last"
    assert question_of(spec.model_copy(update={"aggregate": Compared.BEST})).aggregate == "best"
    with pytest.raises(Rejected, match="which is better of user/acc"):
        question_of(spec_of(metric="user/acc"))


def test_variants_take_turns_forth_and_back() -> None:
    speeds = {"a": 100.0, "b": 150.0, "c": 90.0}
    noise = random.Random(1)
    order, found = play(
        spec_of("a", "b", "c"),
        lambda begin, _: brought(begin, speeds[begin.variant] * (1 + noise.gauss(0, 0.001))),
    )
    assert [name for name, _ in order] == [*"abc", *"cba", *"abc"]
    assert [repeat for _, repeat in order] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert (found.result, found.winner, found.kept) == (Result.WINNER, "b", "b")
    assert [row.answer for row in found.variants] == [None, Answer.BETTER, Answer.WORSE]


def test_a_run_that_does_not_count_is_made_once_more() -> None:
    noise = random.Random(3)

    def result(begin: Begin, before: int) -> Unit | NoUnit:
        if (begin.variant, begin.repeat, before) == ("b", 2, 0):
            return NoUnit(name="b2", why="it did not complete: killed")
        speed = 100 if begin.variant == "a" else 120
        return brought(begin, speed * (1 + noise.gauss(0, 0.001)), before)

    order, found = play(spec_of(), result)
    assert order == [("a", 1), ("b", 1), ("b", 2), ("b", 2), ("a", 2), ("a", 3), ("b", 3)]
    assert (found.winner, len(found.left_out)) == ("b", 1)
    assert [len(row.runs) for row in found.variants] == [3, 3]


def test_a_variant_that_fails_twice_is_given_up_and_the_others_go_on() -> None:
    noise = random.Random(4)

    def result(begin: Begin, before: int) -> Unit | NoUnit:
        if begin.variant == "b":
            return NoUnit(name=f"b{before}", why="it did not complete: nonzero_exit")
        speed = 100 if begin.variant == "a" else 120
        return brought(begin, speed * (1 + noise.gauss(0, 0.001)), before)

    order, found = play(spec_of("a", "b", "c"), result)
    assert Counter(name for name, _ in order) == {"a": 3, "b": 2, "c": 3}
    assert (found.result, found.winner) == (Result.WINNER, "c")
    assert found.variants[1].answer is Answer.INCONCLUSIVE
    assert Doubt(kind=DoubtKind.VARIANT_GIVEN_UP, name="b", found=2) in found.notes


@pytest.mark.parametrize(
    ("shown", "answer", "text"),
    [
        ({"a": {"comm_mb": 20.0}, "b": {"comm_mb": 10.0}}, Answer.BETTER, "higher"),
        ({"a": {"comm_mb": 20.0}, "b": {"comm_mb": 20.0}}, Answer.INCONCLUSIVE, "comm_mb is 20"),
        ({"a": {"comm_mb": 0.0}, "b": {"comm_mb": 0.0}}, Answer.INCONCLUSIVE, "comm_mb is 0"),
        ({"a": {"comm_mb": 20.0}, "b": {}}, Answer.INCONCLUSIVE, "not every run reports comm_mb"),
        ({"a": {}, "b": {"comm_mb": 20.0}}, Answer.INCONCLUSIVE, "not every run reports comm_mb"),
    ],
)
def test_what_must_show_a_difference_decides_whether_there_was_one(
    shown: dict[str, dict[str, float]], answer: Answer, text: str
) -> None:
    noise = random.Random(6)
    speeds = {"a": 100.0, "b": 150.0}
    _, found = play(
        spec_of(shown_by=["comm_mb"]),
        lambda begin, n: brought(
            begin, speeds[begin.variant] + noise.random(), n, shown=shown[begin.variant]
        ),
    )
    assert found.variants[1].answer is answer
    assert text in found.variants[1].text
    assert found.winner == ("b" if answer is Answer.BETTER else None)


@given(seed=st.integers(0, 10_000), failing=st.floats(0, 0.6), names=st.integers(2, 5))
def test_it_always_ends_within_its_bound_and_in_turns(
    seed: int, failing: float, names: int
) -> None:
    draw = random.Random(seed)
    spec = spec_of(*"abcde"[:names], max_repeats=draw.choice([3, 4, 6]))
    speeds = {row.name: draw.uniform(90, 130) for row in spec.variants}
    noise = draw.choice([0.0, 0.001, 0.02])

    def result(begin: Begin, before: int) -> Unit | NoUnit:
        if draw.random() < failing:
            return NoUnit(name=f"{begin}{before}", why="it did not complete: killed")
        return brought(begin, speeds[begin.variant] * (1 + draw.gauss(0, noise)), before)

    order, found = play(spec, result)
    assert max(Counter(order).values()) <= 2
    assert max(Counter(name for name, _ in order).values()) <= 2 * spec.bound
    repeats = [repeat for _, repeat in order]
    assert repeats == sorted(repeats)
    assert (found.winner is not None) == (found.result is Result.WINNER)
    counted = {row.name: len(row.runs) for row in found.variants}
    assert max(counted.values()) <= spec.bound
    if failing == 0.0:
        assert len(set(counted.values())) == 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"metric": "toks"}, "toks_per_s"),
        ({"metric": "grad_norm"}, "which is better"),
        ({"shown_by": ["com_mb"]}, "comm_mb"),
    ],
)
def test_what_cannot_be_asked_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(Rejected, match=words):
        question_of(spec_of(**said))


def test_runs_of_one_repeat_on_two_hosts_compare_hosts() -> None:
    noise = random.Random(10)

    def result(begin: Begin, before: int) -> Unit:
        speed = 100 if begin.variant == "a" else 133
        host = "slow" if begin.variant == "a" else "fast"
        return brought(begin, speed + noise.random(), before, host=host)

    _, found = play(spec_of(), result)
    assert (found.result, found.winner) == (Result.INCONCLUSIVE, None)
    assert "hosts are no variants" in found.variants[1].text
