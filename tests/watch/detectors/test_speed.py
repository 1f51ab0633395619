"""Stragglers, starved loaders and reported speeds that cannot be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gonogo.contract.finding import Severity, Source
from gonogo.contract.heartbeat import Identity
from gonogo.watch.detectors.speed import (
    Fetch,
    ImplausibleSpeed,
    Loader,
    Straggler,
    limit_tok_s,
    share_of,
)
from gonogo.watch.view import Run
from tests.watch.steps import Ran, feed
from tests.watch.streams import order_of

# D7: a rank that computes longer than its peers is named; waiting, pauses and noise are not.


def lockstep(ran: Ran, own_s: Sequence[float], log_s: float = 0.0) -> Ran:
    """One step in which every rank waits for the slowest."""
    step_s = max(own_s) + log_s
    return ran.step(
        dt_s=[step_s if ran.number else None] * len(own_s),
        sections=[{"forward": own, "wait": step_s - own} for own in own_s],
    )


def lockstep_steps(ran: Ran, count: int, *own_s: float) -> Ran:
    for _ in range(count):
        lockstep(ran, own_s)
    return ran


def test_a_window_in_which_it_keeps_up_begins_anew() -> None:
    ran = lockstep_steps(Ran(ranks=2), 65, 1.0, 1.0)
    for _ in range(4):
        lockstep_steps(lockstep_steps(ran, 2 * 64, 1.0, 1.5), 64, 1.0, 1.0)
    assert feed(Straggler, ran).findings == []


@pytest.mark.parametrize(("slow", "found"), [(1.32, 0), (1.34, 1)])
def test_the_edge_of_the_ratio(slow: float, found: int) -> None:
    ran = lockstep_steps(lockstep_steps(Ran(ranks=2), 65, 1.0, 1.0), 192, 1.0, slow)
    assert len(feed(Straggler, ran).findings) == found


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


# D17: steps that wait for data are found; single stalls, however long, are not.


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
    ("share", "found"), [(0.29, []), (0.31, [WARN]), (0.59, [WARN]), (0.62, [WARN, HALT])]
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


@pytest.mark.parametrize(("stalls", "found"), [(4, []), (5, [(WARN, 64)])])
def test_one_fetch_in_sixteen_is_left_out(stalls: int, found: list[tuple[Severity, int]]) -> None:
    ran = starve(starve(Ran(), 64 - stalls, 0.0), stalls, 1.0, 100.0)
    order = order_of({"loader": {"over_s": 1e6}})
    ran.order = order
    assert feed(Loader, ran).severities == found


# D21: lies about speed are found; honest reports of every kind are not.


TOKENS = 2048


@pytest.mark.parametrize(
    ("factor", "found"), [(0.5, []), (1.0, []), (1.0 / 0.98, []), (1.12, []), (1.13, [HALT])]
)
def test_the_edges_of_a_tenth(factor: float, found: list[Severity]) -> None:
    fed = feed(ImplausibleSpeed, Ran().many(60, toks_per_s=factor * TOKENS))
    assert [f.severity for f in fed.findings] == found


def test_the_ordered_tokens_count_and_not_what_a_line_says() -> None:
    ran = Ran().many(60, toks_per_s=25 * TOKENS, tokens=25 * TOKENS)
    assert len(feed(ImplausibleSpeed, ran).halts) == 1
    unknown = order_of({}, identity=Identity())
    ran = Ran(order=unknown).many(60, toks_per_s=25 * TOKENS, tokens=25 * TOKENS)
    assert feed(ImplausibleSpeed, ran).findings == []
    fed = feed(ImplausibleSpeed, Ran(order=unknown).many(60, toks_per_s=1.0))
    assert fed.findings == []
    assert not fed.armed
    assert fed.missing is not None
    assert "no step of all ranks could be timed" in fed.missing


def test_a_trainer_that_reports_no_speed_is_not_checked_and_that_is_said() -> None:
    fed = feed(ImplausibleSpeed, Ran().many(60, loss=1.0))
    assert fed.findings == []
    assert fed.armed
    assert fed.missing is not None
    assert "reports tokens/s of no step" in fed.missing
    assert feed(ImplausibleSpeed, Ran()).missing is None


def gpu(peak_flops: float | None, params: int | None = 100_000_000, **fields: object) -> Ran:
    known = {"params": params, "vocab": 256, "dim": 1024, "tokens_per_step": TOKENS, **fields}
    order = order_of({}, identity=Identity(**known)).model_copy(update={"profile": "rented"})
    return Ran(order=order, peak_flops=peak_flops)


NEEDED = 6 * (100_000_000 - 256 * 1024) * TOKENS
"""Operations a second of a step of one second."""


@pytest.mark.parametrize(("peak", "found"), [(1.001, 0), (0.999, 1)])
def test_more_than_the_devices_can_multiply_halts(peak: float, found: int) -> None:
    fed = feed(ImplausibleSpeed, gpu(peak * NEEDED).many(60, toks_per_s=TOKENS))
    assert len(fed.halts) == found
    assert fed.missing is None
    for halt in fed.halts:
        assert (halt.step, halt.value) == (21, TOKENS)
        assert halt.threshold == pytest.approx(peak * TOKENS)
        assert halt.key == "run_1/1/implausible_speed/halt/mfu"


@pytest.mark.parametrize(("peak", "found"), [(0.26, 0), (0.24, 1)])
def test_a_cpu_is_allowed_four_times_its_measured_peak(peak: float, found: int) -> None:
    order = gpu(None).order.model_copy(update={"profile": "cpu"})
    ran = Ran(order=order, peak_flops=peak * NEEDED).many(60, toks_per_s=TOKENS)
    assert len(feed(ImplausibleSpeed, ran).halts) == found


def test_exactly_what_the_devices_can_multiply_is_possible() -> None:
    fed = feed(ImplausibleSpeed, gpu(NEEDED).many(60, toks_per_s=TOKENS))
    assert fed.halts == []


@pytest.mark.parametrize(("reported", "found"), [(1.25, 0), (1.26, 1)])
def test_exactly_the_ratio_of_the_plan_may_be_reported(reported: float, found: int) -> None:
    order = order_of({"implausible_speed": {"differ_ratio": 0.25}})
    ran = Ran(order=order, dt_s=1.02).many(60, toks_per_s=reported * 2048)
    assert len(feed(ImplausibleSpeed, ran).halts) == found


def test_steps_that_are_read_from_printed_lines_are_not_judged() -> None:
    order = gpu(None).order.model_copy(update={"patterns": ["x"], "command": ["x"]})
    ran = Ran(order=order, peak_flops=0.5 * NEEDED, labelled=False)
    fed = feed(ImplausibleSpeed, ran.many(60, toks_per_s=100 * TOKENS))
    assert fed.findings == []
    assert "timed by when their lines were read" in str(fed.missing)
    ran = Ran(order=order, peak_flops=0.5 * NEEDED).many(60, toks_per_s=TOKENS)
    assert len(feed(ImplausibleSpeed, ran).halts) == 1, "with sections they are"


@pytest.mark.parametrize(
    ("params", "vocab", "dim", "multiplied"),
    [
        (1000, 10, 7, 930), (1000, None, 7, 1000), (1000, 10, None, 1000), (None, None, None, None),
        (70, 10, 7, None),
    ],
)  # fmt: skip
def test_embeddings_are_not_multiplied(
    params: int | None, vocab: int | None, dim: int | None, multiplied: int | None
) -> None:
    run = Run(order=gpu(None, params, vocab=vocab, dim=dim).order)
    mfu = run.watch.implausible_speed.mfu
    limit = limit_tok_s(run, {"flops": 6e9, "of": "rented"})
    assert limit == (None if multiplied is None else pytest.approx(mfu * 1e9 / multiplied))


@pytest.mark.parametrize(("other", "rank"), [(0.25, None), (0.24, 1)])
def test_no_rank_is_named_if_another_waits_half_as_long(other: float, rank: int | None) -> None:
    fetches = [{"dt_fetch_s": other}, {"dt_fetch_s": 0.5}]
    (finding, *_) = feed(Loader, Ran(ranks=2).many(100, dt_s=1.0, each=fetches)).findings
    assert finding.rank == rank
    assert finding.text.startswith("the ranks wait" if rank is None else "rank 1 waits")


@pytest.mark.parametrize("wait_s", [1.0, 1.5])
def test_a_step_that_is_all_waiting_has_no_time_of_its_own(wait_s: float) -> None:
    ran = Ran(ranks=2)
    for _ in range(400):
        ran.step(dt_s=1.0, sections=[{"wait": wait_s}, {"wait": 0.1}])
    assert feed(Straggler, ran).findings == []


def test_the_text_of_a_straggler_counts_its_windows() -> None:
    ran = lockstep_steps(lockstep_steps(Ran(ranks=2), 65, 1.0, 1.0), 192, 1.0, 1.5)
    (warning,) = feed(Straggler, ran).findings
    assert "1.50 times as long as the fastest rank, for 3 windows" in warning.text


def test_without_steps_no_share_is_spent_on_data() -> None:
    assert share_of([Fetch(0.0, 0.0)] * 3) == 0.0
