"""D7: a rank that computes longer than its peers is named; waiting, pauses and noise are not."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Severity, Source
from gonogo.planning.source import bundled_plan
from gonogo.watch.detectors.speed import Straggler
from tests.watch.steps import Ran, feed
from tests.watch.streams import EPOCH, order_of


def lockstep(ran: Ran, own_s: Sequence[float], log_s: float = 0.0) -> Ran:
    """One step in which every rank waits for the slowest."""
    step_s = max(own_s) + log_s
    return ran.step(
        dt_s=[step_s if ran.number else None] * len(own_s),
        sections=[{"forward": own, "wait": step_s - own} for own in own_s],
    )


def steps(ran: Ran, count: int, *own_s: float) -> Ran:
    for _ in range(count):
        lockstep(ran, own_s)
    return ran


def test_a_rank_that_slows_down_is_named_after_three_windows() -> None:
    ran = steps(Ran(ranks=2), 1 + 64, 1.0, 1.0)
    steps(ran, 3 * 64, 1.0, 1.5)
    fed = feed(Straggler, steps(ran, 300, 1.0, 1.5))
    assert fed.severities == [(Severity.WARN, 65 + 192)]
    warning = fed.findings[0]
    assert warning.rank == 1
    assert (warning.value, warning.threshold) == (pytest.approx(1.5), 1.33)
    assert warning.source is Source.DEFAULT
    assert warning.since == EPOCH + 64.0 + 1.5
    assert warning.key == "run_1/1/straggler/warn/rank1"
    assert "1.50 times as long as the fastest rank, for 3 windows (limit 1.33)" in warning.text


def test_a_window_in_which_it_keeps_up_begins_anew() -> None:
    ran = steps(Ran(ranks=2), 65, 1.0, 1.0)
    for _ in range(4):
        steps(steps(ran, 2 * 64, 1.0, 1.5), 64, 1.0, 1.0)
    assert feed(Straggler, ran).findings == []


@pytest.mark.parametrize(("slow", "found"), [(1.32, 0), (1.34, 1)])
def test_the_edge_of_the_ratio(slow: float, found: int) -> None:
    ran = steps(steps(Ran(ranks=2), 65, 1.0, 1.0), 192, 1.0, slow)
    assert len(feed(Straggler, ran).findings) == found


def test_a_rank_that_was_slow_from_the_start_is_named() -> None:
    assert [f.rank for f in feed(Straggler, steps(Ran(ranks=2), 193, 1.5, 1.0)).findings] == [0]


@pytest.mark.parametrize(
    ("own_s", "named"),
    [((1.0, 1.0, 1.0, 1.5), {3}), ((1.0, 1.5, 1.0, 1.6), {1, 3}), ((1.0, 1.5, 1.5, 1.5), set())],
    ids=["one", "half", "one is fast"],
)
def test_at_most_half_of_the_ranks_straggle(own_s: tuple[float, ...], named: set[int]) -> None:
    ran = steps(steps(Ran(ranks=4), 65, 1.0, 1.0, 1.0, 1.0), 192, *own_s)
    assert {f.rank for f in feed(Straggler, ran).findings} == named


def test_without_waiting_times_nothing_is_known_and_that_is_said() -> None:
    ran = Ran(ranks=2)
    for _ in range(400):
        ran.step(dt_s=[1.0, 3.0], sections={"forward": 1.0})
    silent = Ran(ranks=2).many(400)
    for fed in (feed(Straggler, silent), feed(Straggler, Ran(ranks=2).many(9, sections={}))):
        assert fed.findings == []
        assert not fed.armed
        assert fed.missing is not None
        assert "waited" in fed.missing
    assert feed(Straggler, Ran(ranks=2)).missing is None


def test_one_rank_has_nobody_to_be_behind() -> None:
    fed = feed(Straggler, steps(Ran(ranks=1), 300, 1.0))
    assert fed.findings == []
    assert fed.missing is None
    assert not fed.armed


def test_two_ranks_that_wait_arm_it() -> None:
    fed = feed(Straggler, steps(Ran(ranks=2), 5, 1.0, 1.1))
    assert fed.armed
    assert fed.missing is None


@pytest.mark.parametrize("wait_s", [1.0, 7.0])
def test_more_waiting_than_step_is_no_time(wait_s: float) -> None:
    ran = Ran(ranks=2)
    for _ in range(400):
        ran.step(dt_s=1.0, sections=[{"wait": wait_s}, {"wait": 0.1}])
    assert feed(Straggler, ran).findings == []


def test_a_restart_begins_anew() -> None:
    ran = steps(Ran(ranks=2), 129, 1.0, 1.5).back_to(60)
    assert feed(Straggler, steps(ran, 129, 1.0, 1.5)).findings == []


def test_the_demo_plan_names_a_rank_of_factor_two_within_its_forty_steps() -> None:
    order = order_of({"straggler": bundled_plan("demo")["watch"]["straggler"]})
    dice, ran = random.Random(9), Ran(order=order)
    for number in range(1, 41):
        slow = 2.0 if number >= 10 else 1.0
        lockstep(
            ran, (0.4 * dice.lognormvariate(0, 0.15), slow * 0.4 * dice.lognormvariate(0, 0.15))
        )
    fed = feed(Straggler, ran)
    assert [(f.rank, f.source) for f in fed.findings] == [(1, Source.PLAN)]


def test_a_saved_state_goes_on_as_the_whole() -> None:
    ran = steps(steps(Ran(ranks=2), 65, 1.0, 1.0), 192, 1.0, 1.6)
    assert feed(Straggler, ran, saved_every=50).findings == feed(Straggler, ran).findings != []


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([2, 8]), st.floats(0.05, 0.25))
def test_noise_and_pauses_name_nobody(seed: int, ranks: int, sigma: float) -> None:
    dice, ran = random.Random(seed), Ran(ranks=ranks)
    for _ in range(450):
        own_s = [dice.lognormvariate(0, sigma) for _ in range(ranks)]
        if dice.random() < 0.05:
            own_s[dice.randrange(ranks)] += 5.0
        lockstep(ran, own_s)
    assert feed(Straggler, ran).findings == []


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([2, 8]), st.floats(1.6, 5.0))
def test_every_straggler_is_named_and_nobody_else(seed: int, ranks: int, factor: float) -> None:
    dice, ran = random.Random(seed), Ran(ranks=ranks)
    culprit = seed % ranks
    for number in range(450):
        own_s = [dice.lognormvariate(0, 0.1) for _ in range(ranks)]
        own_s[culprit] *= factor if number > 100 else 1.0
        lockstep(ran, own_s)
    assert [f.rank for f in feed(Straggler, ran).findings] == [culprit]


def test_it_says_how_much_slower_the_slowest_rank_is() -> None:
    fed = feed(Straggler, steps(Ran(ranks=2), 30, 1.0, 1.2))
    near = fed.detector.near(fed.own, fed.view, 0.0)
    assert (near.value, near.limit) == (pytest.approx(1.2), 1.33)
    fed = feed(Straggler, Ran(ranks=2))
    assert fed.detector.near(fed.own, fed.view, 0.0).blind is not None
