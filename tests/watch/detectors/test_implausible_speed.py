"""D21: lies about speed are found; honest reports of every kind are not."""

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Identity
from gonogo.watch.detectors.speed import ImplausibleSpeed
from tests.watch.steps import Ran, feed
from tests.watch.streams import order_of

WARN, HALT = Severity.WARN, Severity.HALT
TOKENS = 2048


@pytest.mark.parametrize(
    ("factor", "found"),
    [(0.5, []), (1.0, []), (1.0 / 0.98, []), (1.12, []), (1.13, [HALT])],
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


@pytest.mark.parametrize("peak", [None, 0.0, -1.0, float("nan"), float("inf"), "fast"])
def test_without_a_peak_nothing_is_too_fast_and_that_is_said(peak: float | None) -> None:
    fed = feed(ImplausibleSpeed, gpu(peak).many(60, toks_per_s=TOKENS))
    assert fed.findings == []
    assert fed.missing is not None
    assert "peak" in fed.missing


def known(best_step_s: float | None) -> Ran:
    """A run of work of which a best step is known."""
    ran = gpu(None)
    return Ran(order=ran.order.model_copy(update={"best_step_s": best_step_s}))


@pytest.mark.parametrize(("best_s", "found"), [(1.99, 0), (2.01, 1), (None, 0)])
def test_steps_of_less_than_half_the_best_that_is_known_warn_once(
    best_s: float | None, found: int
) -> None:
    fed = feed(ImplausibleSpeed, known(best_s).many(90, toks_per_s=TOKENS))
    assert fed.halts == []
    assert len(fed.findings) == found
    for warning in fed.findings:
        assert (warning.severity, warning.step, warning.value) == (Severity.WARN, 21, 1.0)
        assert warning.threshold == pytest.approx(best_s and best_s / 2)
        assert "is all of it done?" in warning.text


def test_steps_that_are_read_from_what_is_printed_are_not_timed_by_it() -> None:
    order = gpu(None).order.model_copy(update={"patterns": ["x"], "command": ["x"]})
    ran = Ran(order=order, peak_flops=0.5 * NEEDED, labelled=False)
    fed = feed(ImplausibleSpeed, ran.many(60, toks_per_s=100 * TOKENS))
    assert fed.findings == []
    assert fed.missing is not None
    assert "timed by when their lines were read" in fed.missing
