"""D17: steps that wait for data are found; single stalls, however long, are not."""

import pytest

from gonogo.contract.finding import Severity, Source
from gonogo.watch.detectors.speed import Fetch, Loader, share_of
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
    assert halt.key.startswith("run_1/1/loader/halt/halt_share")


@pytest.mark.parametrize(
    ("share", "found"),
    [(0.29, []), (0.31, [WARN]), (0.59, [WARN]), (0.62, [WARN, HALT])],
)
def test_the_edges_of_both_shares(share: float, found: list[Severity]) -> None:
    assert [f.severity for f in feed(Loader, starve(Ran(), 500, share)).findings] == found


def test_after_a_recovery_starving_has_to_last_anew() -> None:
    ran = starve(Ran(), 300, 0.8)
    ran = starve(starve(ran, 200, 0.0), 300, 0.8)
    fed = feed(Loader, ran)
    assert fed.halts == []
    assert [f.severity for f in fed.findings] == [WARN]
    longer = feed(Loader, starve(starve(starve(Ran(), 420, 0.8), 200, 0.0), 420, 0.8))
    assert [f.severity for f in longer.findings] == [WARN, HALT]


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


def test_more_fetching_than_step_is_the_whole_step_and_less_than_none_is_none() -> None:
    fed = feed(Loader, Ran().many(80, dt_fetch_s=50.0))
    assert fed.findings[0].value == pytest.approx(1.0)
    assert feed(Loader, Ran().many(80, dt_fetch_s=-50.0)).findings == []


def test_a_restart_or_another_set_of_ranks_begins_anew() -> None:
    ran = starve(starve(Ran(), 60, 0.9).back_to(30), 60, 0.9)
    assert feed(Loader, ran).findings == []
    ran = starve(Ran(), 60, 0.9)
    ran.ranks = 1
    assert feed(Loader, starve(ran, 60, 0.9)).findings == []


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


@pytest.mark.parametrize(("over_s", "halt"), [(10.0, 14), (10.5, 15)])
def test_starving_has_to_last_for_its_seconds(over_s: float, halt: int) -> None:
    order = order_of({"loader": {"window_steps": 4, "over_s": over_s}})
    fed = feed(Loader, starve(Ran(order=order), 20, 0.9))
    assert fed.severities == [(WARN, 4), (HALT, halt)]


@pytest.mark.parametrize(("stalls", "found"), [(4, []), (5, [(WARN, 64)])])
def test_one_fetch_in_sixteen_is_left_out(stalls: int, found: list[tuple[Severity, int]]) -> None:
    ran = starve(starve(Ran(), 64 - stalls, 0.0), stalls, 1.0, 100.0)
    order = order_of({"loader": {"over_s": 1e6}})
    ran.order = order
    assert feed(Loader, ran).severities == found


def stalls(every: int, stall_s: float, count: int, step_s: float = 1.0) -> Ran:
    """Steps of which every so many-th waits for its batch, on every rank."""
    ran = Ran()
    for number in range(1, count + 1):
        late_s = stall_s * (number % every == 0)
        ran.step(dt_s=step_s + late_s, dt_fetch_s=late_s)
    return ran


def loader(**settings: float) -> Loader:
    return Loader(Run(order=order_of({"loader": settings})))


def test_it_says_how_long_the_run_may_still_starve() -> None:
    fed = feed(Loader, starve(Ran(), 64 + 200, 0.9))
    near = fed.detector.near(fed.own, fed.view, 0.0)
    assert (near.value, near.limit) == (pytest.approx(0.9), 0.60)
    assert near.time_left_s == pytest.approx(100.0)
    fed = feed(Loader, starve(Ran(), 9, 0.9))
    assert fed.detector.near(fed.own, fed.view, 0.0).blind is not None


def test_the_longest_of_few_fetches_is_left_out() -> None:
    assert share_of([Fetch(1.0, 1.0)]) == 0.0
    assert share_of([Fetch(1.0, 1.0), Fetch(0.25, 1.0)]) == 0.25
