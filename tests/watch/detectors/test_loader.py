"""D17: steps that wait for data are found; single stalls, however long, are not."""

import pytest

from gonogo.contract.finding import Severity, Source
from gonogo.watch.detectors.speed import Loader
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


def test_the_time_of_the_data_section_will_do() -> None:
    fed = feed(Loader, Ran().many(100, sections={"data": 0.5}))
    assert [f.severity for f in fed.findings] == [WARN]
    both = feed(Loader, Ran().many(100, dt_fetch_s=0.0, sections={"data": 0.5}))
    assert both.findings == []


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


@pytest.mark.parametrize(("stalls", "found"), [(4, []), (5, [(WARN, 64)])])
def test_one_fetch_in_sixteen_is_left_out(stalls: int, found: list[tuple[Severity, int]]) -> None:
    ran = starve(starve(Ran(), 64 - stalls, 0.0), stalls, 1.0, 100.0)
    order = order_of({"loader": {"over_s": 1e6}})
    ran.order = order
    assert feed(Loader, ran).severities == found
