"""D17: steps that wait for data are found; single stalls, however long, are not."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Finding, Severity, Source
from gonogo.planning.source import bundled_plan
from gonogo.watch.detectors.loader import Block, Loader, Waits
from gonogo.watch.view import Run
from tests.watch.steps import Ran, feed
from tests.watch.streams import order_of

WARN, HALT = Severity.WARN, Severity.HALT


def starve(ran: Ran, count: int, share: float, step_s: float = 1.0) -> Ran:
    """Steps of which a share is spent waiting for data, on every rank."""
    return ran.many(count, dt_s=step_s, dt_fetch_s=share * step_s)


def test_a_starving_run_is_warned_of_and_halted_after_300_seconds() -> None:
    ran = starve(starve(Ran(), 101, 0.01, 1.0), 600, 0.7, 3.0)
    fed = feed(Loader, ran)
    assert [f.severity for f in fed.findings] == [WARN, HALT]
    warning, halt = fed.findings
    assert (warning.threshold, halt.threshold) == (0.30, 0.60)
    assert warning.value is not None
    assert warning.value > 0.30
    assert halt.value is not None
    assert 0.60 < halt.value <= 0.70
    assert halt.since is not None
    assert 300.0 <= halt.at - halt.since <= 330.0
    assert (halt.rank, halt.source) == (None, Source.DEFAULT), "both ranks wait alike"
    assert halt.key.startswith("run_1/1/loader/halt/step")


@pytest.mark.parametrize(
    ("share", "found"),
    [(0.29, []), (0.31, [WARN]), (0.59, [WARN]), (0.62, [WARN, HALT])],
)
def test_the_edges_of_both_shares(share: float, found: list[Severity]) -> None:
    assert [f.severity for f in feed(Loader, starve(Ran(), 500, share)).findings] == found


@pytest.mark.parametrize(
    ("share", "found"), [(0.25, []), (0.2500001, [WARN]), (0.5, [WARN]), (0.5000001, [WARN, HALT])]
)
def test_the_limits_themselves_are_allowed(share: float, found: list[Severity]) -> None:
    order = order_of({"loader": {"warn_share": 0.25, "halt_share": 0.5}})
    fed = feed(Loader, starve(Ran(order=order), 500, share))
    assert [f.severity for f in fed.findings] == found
    assert all(f.source is Source.PLAN for f in fed.findings)


def test_before_300_seconds_nothing_halts() -> None:
    """Looks come every eight steps: the first at the 64th timed step, the halt 304 s later."""
    assert feed(Loader, starve(Ran(), 64 + 303, 0.9)).halts == []
    assert [f.step for f in feed(Loader, starve(Ran(), 64 + 304, 0.9)).halts] == [368]


@pytest.mark.parametrize("step_s", [0.05, 1.0, 2.4, 25.0, 108.0])
@pytest.mark.parametrize("stalls", [1, 3])
def test_stalls_of_minutes_are_no_starvation(step_s: float, stalls: int) -> None:
    ran = Ran()
    for number in range(1, 400):
        stalled = number in (100, 101, 103)[:stalls]
        ran.step(dt_s=step_s + 280.0 * stalled, dt_fetch_s=0.001 + 280.0 * stalled)
    fed = feed(Loader, ran)
    assert fed.halts == []
    if stalls == 1:
        assert fed.findings == []


def test_peers_that_wait_in_a_step_for_an_evaluation_of_one_rank_fill_no_half_hour() -> None:
    """Rank 0 evaluates alone for 20 minutes, twice, and then its loader stalls once."""
    ran = Ran(ranks=2)
    for number in range(1, 200):
        stall_s = 100.0 * (number == 106)
        took_s = 0.5 + stall_s
        ran.step(
            dt_s=[took_s, took_s + 1200.0 * (number in (41, 81))],
            each=[{"dt_fetch_s": 0.01 + stall_s}, {"dt_fetch_s": 0.005}],
        )
    assert feed(Loader, ran).findings == []


def test_a_loader_that_stalls_every_tenth_step_starves_the_run() -> None:
    ran = Ran()
    for number in range(1, 400):
        late = number % 10 == 0
        ran.step(dt_s=1.0 + 60.0 * late, dt_fetch_s=60.0 * late)
    assert len(feed(Loader, ran).halts) == 1


def test_recovery_begins_anew_and_a_second_episode_is_another_finding() -> None:
    ran = starve(Ran(), 300, 0.8)
    ran = starve(starve(ran, 200, 0.0), 300, 0.8)
    fed = feed(Loader, ran)
    assert fed.halts == []
    assert [f.severity for f in fed.findings] == [WARN, WARN]
    longer = feed(Loader, starve(starve(starve(Ran(), 420, 0.8), 200, 0.0), 420, 0.8))
    assert [f.severity for f in longer.findings] == [WARN, HALT] * 2


@pytest.mark.parametrize(("low", "warned"), [(0.28, 1), (0.2, 3)])
def test_a_share_that_swings_about_the_limit_warns_once(low: float, warned: int) -> None:
    ran = Ran(dt_s=0.5)
    for number in range(600):
        ran.step(dt_fetch_s=0.5 * (low if number // 100 % 2 else 0.32))
    assert [f.severity for f in feed(Loader, ran).findings] == [WARN] * warned


def test_the_hungriest_rank_is_named_and_its_peers_wait_is_not_fetching() -> None:
    ran = Ran(ranks=2).many(100, dt_s=1.0, each=[{"dt_fetch_s": 0.01}, {"dt_fetch_s": 0.5}])
    assert [f.rank for f in feed(Loader, ran).findings] == [1]
    assert [f.rank for f in feed(Loader, starve(Ran(ranks=1), 100, 0.5)).findings] == [0]


@pytest.mark.parametrize(("other", "rank"), [(0.24, 1), (0.25, None), (0.5, None)])
def test_where_another_rank_waits_half_as_long_none_is_named(
    other: float, rank: int | None
) -> None:
    fetches = [{"dt_fetch_s": other}, {"dt_fetch_s": 0.5}]
    findings = feed(Loader, Ran(ranks=2).many(100, dt_s=1.0, each=fetches)).findings
    assert [f.rank for f in findings] == [rank]
    assert ("rank 1" in findings[0].text) == (rank is not None)


def test_the_time_of_the_data_section_will_do() -> None:
    fed = feed(Loader, Ran().many(100, sections={"data": 0.5}))
    assert [f.severity for f in fed.findings] == [WARN]
    both = feed(Loader, Ran().many(100, dt_fetch_s=0.0, sections={"data": 0.5}))
    assert both.findings == []


def test_long_steps_need_sixteen_and_not_sixty_four() -> None:
    assert feed(Loader, starve(Ran(), 15, 0.7, 60.0)).findings == []
    assert [f.step for f in feed(Loader, starve(Ran(), 25, 0.7, 60.0)).findings] == [16, 21]


def test_a_step_that_nobody_timed_counts_for_nothing() -> None:
    ran = Ran(ranks=2)
    for _ in range(400):
        ran.step(dt_s=[1.0, None], dt_fetch_s=0.9).step(dt_s=0.0, dt_fetch_s=0.9)
    fed = feed(Loader, ran)
    assert fed.findings == []
    assert fed.missing is not None


def test_more_fetching_than_step_is_the_whole_step_and_less_than_none_is_none() -> None:
    fed = feed(Loader, Ran().many(80, dt_fetch_s=50.0))
    assert fed.findings[0].value == pytest.approx(1.0)
    assert feed(Loader, Ran().many(80, dt_fetch_s=-50.0)).findings == []


@pytest.mark.parametrize(("fetch_s", "halts"), [(0.9, 1), (1.2, 1), (1.25, 1), (1.3, 0), (4.0, 0)])
def test_fetches_beside_the_steps_are_no_waits(fetch_s: float, halts: int) -> None:
    """Of eight workers each takes longer than a step, and steps wait for none of them."""
    fed = feed(Loader, Ran().many(500, dt_fetch_s=fetch_s), saved_every=60)
    assert len(fed.halts) == halts
    assert fed.findings[0].severity is Severity.WARN
    assert (fed.missing is None) == bool(halts)


def test_who_never_waits_hides_no_rank_that_starves() -> None:
    ran = Ran().many(3000, dt_s=0.25, each=[{"dt_fetch_s": 0.0}, {"dt_fetch_s": 0.2}])
    assert [row.rank for row in feed(Loader, ran).halts] == [1]


def test_who_tells_waits_again_is_halted_where_it_starves() -> None:
    ran = Ran().many(500, dt_fetch_s=4.0).many(40, dt_fetch_s=0.9)
    assert len(feed(Loader, ran).halts) == 1


def test_a_fetch_now_and_then_that_took_longer_than_its_step_is_one() -> None:
    """A batch was fetched while a checkpoint was written, whose time is no step's."""
    ran = Ran()
    for number in range(500):
        ran.step(dt_fetch_s=4.0 if number % 3 == 0 else 0.9)
    assert len(feed(Loader, ran).halts) == 1


def test_of_a_run_of_one_step_it_says_that_no_step_could_be_timed() -> None:
    fed = feed(Loader, Ran().step(dt_fetch_s=0.1))
    assert fed.missing == (
        "No step could be timed: how long steps waited for data was not observed."
    )


def test_it_says_when_no_fetch_time_was_told() -> None:
    fed = feed(Loader, Ran().many(100, loss=1.0))
    assert not fed.armed
    assert fed.missing is not None
    assert "No fetch time was told" in fed.missing
    assert feed(Loader, Ran()).missing is None
    assert not feed(Loader, starve(Ran(), 63, 0.0)).armed
    told = feed(Loader, starve(Ran(), 64, 0.0))
    assert told.armed
    assert told.missing is None


def test_a_restart_or_another_set_of_ranks_begins_anew() -> None:
    ran = starve(starve(Ran(), 60, 0.9).back_to(30), 60, 0.9)
    assert feed(Loader, ran).findings == []
    ran = starve(Ran(), 60, 0.9)
    ran.ranks = 1
    assert feed(Loader, starve(ran, 60, 0.9)).findings == []


def test_the_demo_plan_finds_a_starved_run_within_its_forty_steps() -> None:
    order = order_of({"loader": bundled_plan("demo")["watch"]["loader"]})
    ran = starve(Ran(order=order), 9, 0.005, 0.4)
    fed = feed(Loader, starve(ran, 30, 0.7, 1.3))
    assert len(fed.halts) == 1
    assert (fed.halts[0].step or 99) <= 24
    assert fed.halts[0].threshold == 0.60


def test_a_healthy_demo_with_a_slow_loader_now_and_then_is_left_alone() -> None:
    order = order_of({"loader": bundled_plan("demo")["watch"]["loader"]})
    ran = Ran(order=order)
    for number in range(1, 61):
        late = number % 8 == 0
        ran.step(dt_s=0.6 + 8.0 * late, dt_fetch_s=0.01 + 8.0 * late)
    assert feed(Loader, ran).findings == []


def test_a_saved_state_goes_on_as_the_whole() -> None:
    ran = starve(starve(Ran(), 90, 0.1), 400, 0.8)
    whole = feed(Loader, ran).findings
    assert len(whole) == 2
    assert feed(Loader, ran, saved_every=17).findings == whole


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([0.05, 1.0, 2.4, 25.0]), st.integers(1, 4))
def test_heavy_tails_never_halt(seed: int, step_s: float, ranks: int) -> None:
    dice, ran = random.Random(seed), Ran(ranks=ranks)
    for _ in range(500):
        fetches = [dice.expovariate(200.0) for _ in range(ranks)]
        if dice.random() < 1 / 50:
            fetches[dice.randrange(ranks)] += min(250.0, 2.0 * dice.paretovariate(1.5))
        took_s = step_s * dice.lognormvariate(0, 0.25) + max(fetches)
        ran.step(dt_s=took_s, each=[{"dt_fetch_s": fetch_s} for fetch_s in fetches])
    assert feed(Loader, ran).halts == []


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.floats(0.68, 0.99), st.sampled_from([0.5, 2.4, 25.0]))
def test_every_starved_run_is_halted(seed: int, share: float, step_s: float) -> None:
    dice, ran = random.Random(seed), Ran(ranks=1)
    for _ in range(900):
        own_s = step_s * dice.lognormvariate(0, 0.1)
        ran.step(dt_s=own_s / (1.0 - share), dt_fetch_s=own_s * share / (1.0 - share))
    assert len(feed(Loader, ran).halts) == 1


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize(("share", "halts"), [(0.8, 1), (0.5, 0)])
def test_ranks_in_lockstep_that_starve_in_turn_starve_the_run(
    ranks: int, share: float, halts: int
) -> None:
    """Each waits for its own loader in its turn, and for that of another in between."""
    ran = starve(Ran(ranks=ranks), 100, 0.02)
    for number in range(400):
        fetches = [
            {"dt_fetch_s": share * (1.0 if r == number % ranks else 0.5)} for r in range(ranks)
        ]
        ran.step(dt_s=1.0, each=fetches)
    halted = feed(Loader, ran).halts
    assert [halt.rank for halt in halted] == [None] * halts
    assert all(halt.value == pytest.approx(share) for halt in halted)


def test_where_no_rank_is_hungry_by_itself_nothing_is_said() -> None:
    """A stall of one rank in eight at each step: none waits for its own loader for long."""
    ran = Ran(ranks=8)
    for number in range(500):
        ran.step(dt_s=1.0, each=[{"dt_fetch_s": 0.9 * (r == number % 8)} for r in range(8)])
    assert feed(Loader, ran).findings == []


def test_of_long_steps_each_is_looked_at() -> None:
    ran = starve(starve(Ran(), 64, 0.01, 60.0), 60, 0.8, 300.0)
    (halt,) = feed(Loader, ran).halts
    assert halt.step == 89, "at no multiple of eight"


@pytest.mark.parametrize(("over_s", "halt"), [(10.0, 14), (10.5, 15)])
def test_starving_has_to_last_for_its_seconds(over_s: float, halt: int) -> None:
    order = order_of({"loader": {"window_steps": 4, "over_s": over_s}})
    fed = feed(Loader, starve(Ran(order=order), 20, 0.9))
    assert fed.severities == [(WARN, 4), (HALT, halt)]


@pytest.mark.parametrize(("over_s", "warned"), [(320.0, 16), (320.5, 17)])
def test_sixteen_long_steps_have_to_fill_the_seconds(over_s: float, warned: int) -> None:
    order = order_of({"loader": {"over_s": over_s}})
    fed = feed(Loader, starve(Ran(order=order), 18, 0.9, 20.0))
    assert fed.severities == [(WARN, warned)]


@pytest.mark.parametrize(("stalls", "found"), [(4, []), (5, [(WARN, 64)])])
def test_one_fetch_in_sixteen_is_left_out(stalls: int, found: list[tuple[Severity, int]]) -> None:
    ran = starve(starve(Ran(), 64 - stalls, 0.0), stalls, 1.0, 100.0)
    order = order_of({"loader": {"over_s": 1e6}})
    ran.order = order
    assert feed(Loader, ran).severities == found


def test_a_step_that_is_ended_twice_begins_anew() -> None:
    order = order_of({"loader": {"window_steps": 4}})
    ran = starve(Ran(order=order), 3, 0.9).back_to(2, boot="boot")
    assert feed(Loader, starve(ran, 3, 0.9)).findings == []
    assert len(feed(Loader, starve(ran, 1, 0.9)).findings) == 1


def test_a_step_that_took_no_time_or_less_tells_nothing() -> None:
    order = order_of({"loader": {"window_steps": 4}})
    ran = starve(Ran(order=order), 2, 0.9, 0.25).step(dt_s=0.0, dt_fetch_s=0.0)
    assert feed(Loader, starve(ran, 1, 0.9, 0.25)).findings == []
    assert len(feed(Loader, starve(ran, 1, 0.9, 0.25)).findings) == 1


def test_of_few_steps_one_fetch_is_left_out() -> None:
    order = order_of({"loader": {"window_steps": 4}})
    ran = starve(starve(Ran(order=order), 2, 0.0), 2, 1.0)
    assert feed(Loader, ran).severities == [(WARN, 4)]


def test_a_look_comes_once_an_eighth_of_the_seconds_has_passed() -> None:
    """The first look comes at step 16, where the one fetch that took long is left out."""
    order = order_of({"loader": {"over_s": 80.0, "warn_share": 0.05}})
    ran = starve(starve(Ran(order=order), 15, 0.0, 10.0), 3, 0.9, 10.0)
    assert feed(Loader, ran).severities == [(WARN, 17)]


@pytest.mark.parametrize(("low", "found"), [(0.25, [4, 16]), (0.2578125, [4])])
def test_four_fifths_of_the_limit_have_to_be_passed_for_no_second_warning(
    low: float, found: list[int]
) -> None:
    order = order_of({"loader": {"window_steps": 4, "warn_share": 0.3125}})
    ran = starve(starve(starve(Ran(order=order), 6, 0.5), 8, low), 8, 0.5)
    assert feed(Loader, ran).severities == [(WARN, step) for step in found]


def stalls(every: int, stall_s: float, count: int, step_s: float = 1.0) -> Ran:
    """Steps of which every so many-th waits for its batch, on every rank."""
    ran = Ran()
    for number in range(1, count + 1):
        late_s = stall_s * (number % every == 0)
        ran.step(dt_s=step_s + late_s, dt_fetch_s=late_s)
    return ran


@pytest.mark.parametrize(("every", "stall_s"), [(16, 60.0), (32, 64.0), (20, 60.0)], ids=str)
def test_a_loader_of_many_workers_that_stalls_again_and_again_starves_the_run(
    every: int, stall_s: float
) -> None:
    """One fetch in sixteen waits for all the workers: none is left out of half an hour."""
    warning, halt = feed(Loader, stalls(every, stall_s, 1000)).findings
    assert (warning.severity, halt.severity) == (WARN, HALT)
    assert (warning.rank, halt.rank) == (None, None)
    assert halt.value is not None
    assert 0.60 < halt.value <= 1.05 * stall_s / (stall_s + every)
    assert halt.since is not None
    assert 1800.0 <= halt.at - halt.since <= 1950.0


@pytest.mark.parametrize(
    ("every", "stall_s", "found"),
    [(16, 24.0, [WARN]), (16, 6.5, []), (300, 250.0, [WARN])],
    ids=["more than half of the time", "less than a third", "a few long ones"],
)
def test_stalls_that_leave_the_run_its_time_halt_nothing(
    every: int, stall_s: float, found: list[Severity]
) -> None:
    assert [row.severity for row in feed(Loader, stalls(every, stall_s, 1500)).findings] == found


def test_a_loader_that_no_longer_stalls_starves_nobody() -> None:
    """A cache that was cold for twenty minutes: by the time that they would count it is warm."""
    ran = stalls(16, 60.0, 300)
    assert feed(Loader, starve(ran, 900, 0.01)).findings == []


def test_the_rank_whose_loader_stalls_again_and_again_is_named() -> None:
    ran = Ran()
    for number in range(1, 1000):
        late_s = 60.0 * (number % 16 == 0)
        each = [{"dt_fetch_s": 0.001}, {"dt_fetch_s": late_s}]
        ran.step(dt_s=1.0 + late_s, each=each)
    warning, halt = feed(Loader, ran).findings
    assert (warning.rank, halt.rank) == (1, 1)


def block(steps: int, trained_s: float, *shares: float) -> Block:
    """So many steps of one rank; of several shares the last is that of the slowest fetches."""
    told = shares or (0.7, 0.7)
    sums = tuple((share * trained_s, trained_s) for share in told)
    return Block(began_ts=5.0, sums=sums, steps=steps, trained_s=trained_s)


def loader(**settings: float) -> Loader:
    return Loader(Run(order=order_of({"loader": settings})))


@pytest.mark.parametrize(
    ("steps", "trained_s", "long"),
    [(64, 1800.0, True), (63, 1800.0, False), (64, 1799.0, False)],
    ids=["just long", "too few steps", "too short"],
)
def test_half_an_hour_and_a_window_of_steps_are_a_long_time(
    steps: int, trained_s: float, long: bool
) -> None:
    half = block(32, 900.0)
    assert loader()._is_long((half, block(steps - 32, trained_s - 900.0))) is long


@pytest.mark.parametrize(
    ("blocks", "kept"),
    [
        ([(90, 900.0), (16, 300.0)], 1),
        ([(90, 900.0), (1, 10.0), (15, 300.0)], 2),
        ([(90, 900.0), (1, 10.0), (16, 299.6)], 2),
        ([(90, 900.0), (8, 150.0), (8, 150.0)], 2),
        ([(90, 900.0), (15, 290.0)], 2),
    ],
    ids=["just enough", "a step short", "seconds short", "two of them", "all there are"],
)
def test_the_end_of_a_long_time_is_the_last_steps_that_fill_the_seconds(
    blocks: list[tuple[int, float]], kept: int
) -> None:
    rows = tuple(block(*row) for row in blocks)
    assert loader()._latest(rows) == rows[-kept:]


@pytest.mark.parametrize(("grown_s", "blocks"), [(37.0, 1), (37.5, 2)])
def test_a_block_grows_for_an_eighth_of_the_seconds(grown_s: float, blocks: int) -> None:
    (step,) = Ran(ranks=1).step(dt_s=2.0).steps
    found = loader()._summed((block(3, grown_s, 0.0, 0.0),), ((1.0, 2.0),), step)
    assert len(found) == blocks
    new = found[-1]
    assert new.sums[0] == new.sums[-1] == (1.0, 2.0 + grown_s * (blocks == 1))
    assert len(new.sums) == 2
    assert new.steps == 1 + 3 * (blocks == 1)


def looked(share: float, *blocks: Block, ranks: int = 1) -> list[Finding]:
    """What one look finds of a window of such a share, and of these blocks."""
    ran = Ran(ranks=ranks, number=900).step(dt_s=1.0)
    own = Waits(
        ranks=tuple(range(ranks)),
        rows=(((share, 1.0), *((0.01, 1.0),) * (ranks - 1)),) * 64,
        blocks=blocks,
        trained_s=5000.0,
    )
    detector = loader(warn_share=0.25, halt_share=0.5)
    return detector._looked(own, ran.steps[0], ran.view())[1]


@pytest.mark.parametrize(
    ("share", "long", "found"),
    [
        (0.5, (0.7, 0.7), [WARN, HALT]),
        (0.1, (0.25, 0.7), []),
        (0.1, (0.26, 0.7), [WARN, HALT]),
        (0.1, (0.7, 0.5), [WARN]),
    ],
    ids=["the window at its limit", "no rank hungry", "one just hungry", "at the limit"],
)
def test_the_edges_of_a_long_time(
    share: float, long: tuple[float, float], found: list[Severity]
) -> None:
    assert [row.severity for row in looked(share, block(900, 2000.0, *long))] == found


def test_a_window_that_starves_behind_a_long_time_that_did_not_is_halted() -> None:
    ran = starve(starve(Ran(), 1000, 0.4, 2.0), 400, 0.8)
    assert [row.severity for row in feed(Loader, ran).findings] == [WARN, HALT]


def test_of_equal_shares_that_of_the_window_names_the_rank() -> None:
    long = Block(began_ts=5.0, sums=((200.0, 2000.0), (750.0, 2000.0), (750.0, 2000.0)), steps=900)
    (warning,) = looked(0.375, replace(long, trained_s=2000.0), ranks=2)
    assert (warning.severity, warning.rank) == (WARN, 0)


THEIRS: dict[str, Any] = {"entry": None, "command": ["python", "train.py"]}


def test_a_program_that_has_waited_for_data_since_its_first_steps_is_warned_of() -> None:
    """Large pictures and a small model, rollouts, a cold disk: it is well, and was halted."""
    assert feed(Loader, starve(Ran(order_of({}, **THEIRS)), 3000, 0.8)).severities == [(WARN, 64)]
    ordered = order_of({"loader": {"halt_share": 0.6}}, **THEIRS)
    for bound in (Ran(), Ran(ordered)):
        fed = feed(Loader, starve(bound, 3000, 0.8))
        assert [f.severity for f in fed.findings] == [WARN, HALT]


def test_a_loader_that_starts_anew_every_fifth_step_is_how_a_program_may_be() -> None:
    ran = Ran(order_of({}, **THEIRS))
    for number in range(1000):
        fetch_s = 0.01 if number % 5 else 10.0
        ran.step(dt_s=1.0 + fetch_s, dt_fetch_s=fetch_s)
    assert feed(Loader, ran).halts == []


@pytest.mark.parametrize("fed_steps", [10, 100])
def test_a_program_that_starves_later_is_halted(fed_steps: int) -> None:
    ran = starve(Ran(order_of({}, **THEIRS)), fed_steps, 0.01)
    fed = feed(Loader, starve(ran, 600, 0.7, 3.3))
    assert [f.severity for f in fed.findings] == [WARN, HALT]


@pytest.mark.parametrize(("fed_steps", "halts"), [(600, 0), (1800, 1)])
def test_a_program_that_was_fed_well_for_long_has_starved_since_its_start_no_more(
    fed_steps: int, halts: int
) -> None:
    ran = starve(starve(Ran(order_of({}, **THEIRS)), 600, 0.7), fed_steps, 0.01)
    assert len(feed(Loader, starve(ran, 900, 0.7)).halts) == halts


def test_a_program_begins_anew_where_its_ranks_do() -> None:
    """A restart in place reads from a cold disk as the first start did."""
    ran = starve(Ran(order_of({}, **THEIRS)), 500, 0.01)
    ran.number = 100
    assert feed(Loader, starve(ran, 900, 0.7)).halts == []
