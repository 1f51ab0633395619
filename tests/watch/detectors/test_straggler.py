"""D7: a rank that computes longer than its peers is named; waiting, pauses and noise are not."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Severity, Source
from gonogo.planning.source import bundled_plan
from gonogo.watch.detectors.straggler import Straggler
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
    assert warning.key == "run_1/1/straggler/warn/rank1/step66"


@pytest.mark.parametrize(
    ("data_s", "said"),
    [
        (0.75, "rank 1 computes 1.5 s a step, 1.50 times as long as"),
        (1.125, "rank 1 takes 1.5 s a step, of which 1.125 s for data, 1.50 times as long as"),
    ],
    ids=["half", "most"],
)
def test_a_rank_whose_time_is_mostly_for_data_is_not_said_to_compute(
    data_s: float, said: str
) -> None:
    """It waited for its own loader, and was said to compute for as long."""
    ran = Ran(ranks=2)
    for number in range(400):
        data = 9.0 if number % 64 == 1 else data_s
        ran.step(
            dt_s=1.5 if number else None,
            sections=[{"forward": 1.0, "wait": 0.5}, {"data": data, "forward": 1.5 - data_s}],
        )
    fed = feed(Straggler, ran, saved_every=50)
    assert [row.text.partition(" the fastest")[0] for row in fed.findings] == [said]


def test_two_windows_are_too_few() -> None:
    ran = steps(Ran(ranks=2), 65, 1.0, 1.0)
    assert feed(Straggler, steps(ran, 2 * 64 + 63, 1.0, 1.5)).findings == []
    assert len(feed(Straggler, steps(ran, 1, 1.0, 1.5)).findings) == 1


def test_a_window_in_which_it_keeps_up_begins_anew() -> None:
    ran = steps(Ran(ranks=2), 65, 1.0, 1.0)
    for _ in range(4):
        steps(steps(ran, 2 * 64, 1.0, 1.5), 64, 1.0, 1.0)
    assert feed(Straggler, ran).findings == []


def test_a_second_episode_is_another_finding() -> None:
    ran = steps(Ran(ranks=2), 65, 1.0, 1.0)
    for _ in range(2):
        steps(steps(ran, 4 * 64, 1.0, 1.5), 64, 1.0, 1.0)
    assert len(feed(Straggler, ran).findings) == 2


@pytest.mark.parametrize(("slow", "found"), [(1.32, 0), (1.34, 1)])
def test_the_edge_of_the_ratio(slow: float, found: int) -> None:
    ran = steps(steps(Ran(ranks=2), 65, 1.0, 1.0), 192, 1.0, slow)
    assert len(feed(Straggler, ran).findings) == found


def test_a_rank_that_was_slow_from_the_start_is_named() -> None:
    assert [f.rank for f in feed(Straggler, steps(Ran(ranks=2), 193, 1.5, 1.0)).findings] == [0]


def test_a_peer_that_got_faster_makes_no_straggler() -> None:
    ran = steps(steps(Ran(ranks=2), 65, 1.0, 1.0), 400, 0.7, 1.0)
    assert feed(Straggler, ran).findings == []


def test_its_own_best_is_of_windows_in_which_it_kept_up() -> None:
    """Slow from the start, a little faster later: it has been a straggler all along."""
    ran = steps(steps(Ran(ranks=2), 65, 1.0, 1.6), 128, 1.0, 1.5)
    assert len(feed(Straggler, ran).findings) == 1


def test_the_best_of_its_own_windows_counts_and_not_the_last() -> None:
    """It drifts by a fifth a window, which its peer does as well at first."""
    ran = steps(Ran(ranks=2), 65, 1.0, 1.0)
    steps(ran, 64, 1.2, 1.2)
    fed = feed(Straggler, steps(ran, 192, 1.0, 1.38))
    assert len(fed.findings) == 1


@pytest.mark.parametrize("before", [31, 32, 40])
def test_a_rank_that_falls_behind_within_its_first_window_is_named(before: int) -> None:
    """The median of a window that is half of each kind lies between them."""
    dice, ran = random.Random(before), Ran(ranks=2)
    for number in range(1 + 5 * 64):
        slow = 1.5 if number > before else 1.0
        lockstep(ran, [dice.lognormvariate(0, 0.05), slow * dice.lognormvariate(0, 0.05)])
    assert [f.rank for f in feed(Straggler, ran).findings] == [1]


@pytest.mark.parametrize("before", [32, 40])
def test_a_peer_that_got_faster_within_the_first_window_makes_no_straggler(before: int) -> None:
    ran = steps(Ran(ranks=2), 1 + before, 1.0, 1.0)
    assert feed(Straggler, steps(ran, 5 * 64, 0.7, 1.0)).findings == []


def test_a_rank_that_was_late_to_come_up_to_speed_is_no_straggler() -> None:
    """Slow for half of its first window, sound since: nothing to tell, then and later."""
    ran = steps(steps(Ran(ranks=2), 1 + 32, 1.0, 1.5), 5 * 64, 1.0, 1.0)
    assert feed(Straggler, ran).findings == []


@pytest.mark.parametrize(
    ("first", "found"),
    [((1.5, 1.5, 1.0, 1.0), 0), ((1.5625, 1.5625, 1.0, 1.0), 1), ((1.75, 1.0, 1.0, 1.25), 0)],
    ids=["at the ratio it kept up", "above it it did not", "halves are of two steps each"],
)
def test_where_it_kept_up_in_both_halves_a_window_counts_as_a_whole(
    first: tuple[float, ...], found: int
) -> None:
    """Of the first window 1.25, 1.0 and 1.125 count; from then on it takes 1.625."""
    ran = Ran(order=order_of({"straggler": {"ratio": 1.5, "window_steps": 4}}), ranks=2)
    for own_s in (1.0, *first):
        lockstep(ran, (1.0, own_s))
    assert len(feed(Straggler, steps(ran, 12, 1.0, 1.625)).findings) == found


def test_all_ranks_slower_is_no_straggler() -> None:
    ran = steps(steps(Ran(ranks=2), 65, 1.0, 1.0), 400, 3.0, 3.0)
    assert feed(Straggler, ran).findings == []


@pytest.mark.parametrize(
    ("own_s", "named"),
    [((1.0, 1.0, 1.0, 1.5), {3}), ((1.0, 1.5, 1.0, 1.6), {1, 3}), ((1.0, 1.5, 1.5, 1.5), set())],
    ids=["one", "half", "one is fast"],
)
def test_at_most_half_of_the_ranks_straggle(own_s: tuple[float, ...], named: set[int]) -> None:
    ran = steps(steps(Ran(ranks=4), 65, 1.0, 1.0, 1.0, 1.0), 192, *own_s)
    assert {f.rank for f in feed(Straggler, ran).findings} == named


def test_pauses_do_not_make_a_straggler() -> None:
    dice, ran = random.Random(5), Ran(ranks=2)
    for _ in range(1000):
        lockstep(ran, (1.0, 1.0 + (20.0 if dice.random() < 0.3 else 0.0)))
    assert feed(Straggler, ran).findings == []


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


def test_a_negative_wait_is_none() -> None:
    ran = Ran(ranks=2)
    for _ in range(400):
        ran.step(dt_s=1.0, sections=[{"wait": 0.1}, {"wait": -5.0}])
    assert feed(Straggler, ran).findings == []


def test_a_restart_begins_anew() -> None:
    ran = steps(Ran(ranks=2), 129, 1.0, 1.5).back_to(60)
    assert feed(Straggler, steps(ran, 129, 1.0, 1.5)).findings == []
    ran = steps(Ran(ranks=2), 129, 1.0, 1.5).back_to(129)
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


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([2, 8]), st.floats(0.05, 0.25))
def test_noise_and_pauses_name_nobody(seed: int, ranks: int, sigma: float) -> None:
    dice, ran = random.Random(seed), Ran(ranks=ranks)
    for _ in range(450):
        own_s = [dice.lognormvariate(0, sigma) for _ in range(ranks)]
        if dice.random() < 0.05:
            own_s[dice.randrange(ranks)] += 5.0
        lockstep(ran, own_s)
    assert feed(Straggler, ran).findings == []


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([2, 8]), st.floats(1.6, 5.0))
def test_every_straggler_is_named_and_nobody_else(seed: int, ranks: int, factor: float) -> None:
    dice, ran = random.Random(seed), Ran(ranks=ranks)
    culprit = seed % ranks
    for number in range(450):
        own_s = [dice.lognormvariate(0, 0.1) for _ in range(ranks)]
        own_s[culprit] *= factor if number > 100 else 1.0
        lockstep(ran, own_s)
    assert [f.rank for f in feed(Straggler, ran).findings] == [culprit]


def test_a_step_that_is_ended_twice_begins_anew() -> None:
    ran = steps(Ran(ranks=2), 129, 1.0, 1.5)
    ran.back_to(128, boot="boot")
    assert feed(Straggler, steps(ran, 129, 1.0, 1.5)).findings == []


@pytest.mark.parametrize(("slow", "found"), [(1.5, 0), (1.75, 1)])
def test_a_ratio_has_to_be_passed(slow: float, found: int) -> None:
    ran = Ran(order=order_of({"straggler": {"ratio": 1.5, "window_steps": 4}}), ranks=2)
    assert len(feed(Straggler, steps(ran, 13, 1.0, slow)).findings) == found


@pytest.mark.parametrize(("slow", "found"), [(1.5, 0), (1.75, 1)])
def test_a_ratio_to_its_own_best_has_to_be_passed(slow: float, found: int) -> None:
    """Its peer has become faster too, so that it is behind in any case."""
    ran = Ran(order=order_of({"straggler": {"ratio": 1.5, "window_steps": 4}}), ranks=2)
    steps(ran, 5, 1.0, 1.0)
    assert len(feed(Straggler, steps(ran, 12, 0.5, slow)).findings) == found


@pytest.mark.parametrize(("slow", "found"), [(1.0, []), (1.5, [1])])
def test_steps_of_one_rank_alone_begin_no_window_anew(slow: float, found: list[int]) -> None:
    """The lines of a rank that come in bursts: what is known of it goes on with the next ones."""
    ran = steps(steps(Ran(ranks=2), 65, 1.0, 1.0), 6 * 64, 1.0, slow)
    ran.steps = [
        replace(step, ranks={0: step.ranks[0]}, whole=False) if step.step % 50 < 20 else step
        for step in ran.steps
    ]
    assert [row.rank for row in feed(Straggler, ran).findings] == found


def test_ranks_of_one_boot_are_told_apart() -> None:
    """Some name all processes of a start alike; of three ranks now this one, now that one lags."""
    ran = steps(steps(Ran(ranks=3), 3 * 64, 1.0, 1.0, 1.0), 6 * 64, 1.0, 1.0, 1.5)
    ran.steps = [
        replace(step, ranks={n: row for n, row in step.ranks.items() if n != 1})
        if step.step > 3 * 64
        else replace(step, ranks={n: row for n, row in step.ranks.items() if n != 2})
        for step in ran.steps
    ]
    assert [row.rank for row in feed(Straggler, ran).findings] == [2]
