"""Rates, their bounds, and sums."""

import pytest

from lab.run import Answer, Halt, Tally, report_of, upper_bound


@pytest.mark.parametrize(
    ("events", "chi_square_half"),
    [(0, 2.9957), (1, 4.7439), (2, 6.2958), (5, 10.5130), (10, 16.9622), (100, 118.0787)],
)
def test_the_bound_is_the_exact_one_of_a_poisson_count(events: int, chi_square_half: float) -> None:
    assert upper_bound(events, 1.0) == pytest.approx(chi_square_half, rel=1e-4)
    assert upper_bound(events, 250.0) == pytest.approx(chi_square_half / 250.0, rel=1e-4)


def test_fifteen_thousand_hours_without_a_halt_meet_the_budget() -> None:
    assert 1000.0 * upper_bound(0, 15_000.0) <= 0.2
    assert 1000.0 * upper_bound(0, 14_000.0) > 0.2
    assert 1000.0 * upper_bound(1, 15_000.0) > 0.2


def test_no_hours_bound_nothing() -> None:
    assert report_of(Tally())["upper95_per_1000h"] is None
    assert upper_bound(0, 0.0) == float("inf")


def test_tallies_add_up_in_any_order() -> None:
    halt = Halt(detector="slow", seed="b", step_s=1.0, ranks=2, hour=0.5, text="slow")
    parts = [
        Tally(run_hours=1.0, steps=10, lines=30, halts=(halt,)),
        Tally(run_hours=2.0, answers=(Answer(sick="nan", by="non_finite", latency_s=0.5),)),
        Tally(run_hours=0.1, answers=(Answer(sick="leak", by="memory_leak", latency_s=None),)),
    ]
    report = report_of(Tally.of(parts))
    assert report == report_of(Tally.of(reversed(parts)))
    assert (report["run_hours"], report["false_halts"], report["missed"]) == (3.1, 1, 1)
    assert report["by_detector"]["slow"]["false_halts"] == 1
    assert report["by_detector"]["non_finite"]["latency_p50_s"] == 0.5
    assert report["by_detector"]["memory_leak"]["missed"] == 1
