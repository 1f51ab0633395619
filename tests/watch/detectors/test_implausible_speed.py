"""D21: lies about speed are found; honest reports of every kind are not."""

import pytest

from gonogo.contract.finding import Severity, Source
from gonogo.contract.heartbeat import Identity
from gonogo.contract.watch import Watch
from gonogo.watch.detectors.speed import ImplausibleSpeed, limit_tok_s
from gonogo.watch.view import Run
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


@pytest.mark.parametrize(("factor", "found"), [(1.0, []), (1.2, [HALT])])
def test_what_lies_between_two_steps_may_be_left_out_of_a_report(
    factor: float, found: list[Severity]
) -> None:
    """A trainer that plays its episodes, or fetches its batch, before it says `step_start`."""
    told = {"between_s": 1.5, "toks_per_s": factor * TOKENS / 0.5}
    fed = feed(ImplausibleSpeed, Ran(dt_s=2.0).many(60, **told))
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


@pytest.mark.parametrize(
    ("profile", "of", "found"),
    [
        ("a100-pcie-gen4", "cpu", 0),
        ("a100-pcie-gen4", "cuda", 0),
        ("a100-pcie-gen4", None, 0),
        ("rented", "cuda", 1),
        ("rented", None, 1),
        ("rented", "cpu", 0),
        ("cpu", "cuda", 1),
        ("cpu", "cpu", 0),
        ("cpu", None, 0),
    ],
)
def test_a_peak_counts_for_the_kind_of_device_that_it_was_measured_on(
    profile: str, of: str | None, found: int
) -> None:
    """What a busy host reached at preflight never lowers what the table says a GPU can do."""
    order = gpu(None).order.model_copy(update={"profile": profile})
    ran = Ran(order=order, peak_flops=0.5 * NEEDED, peak_of=of).many(60, toks_per_s=TOKENS)
    fed = feed(ImplausibleSpeed, ran)
    assert (len(fed.halts), fed.missing) == (found, None)


def other(command: bool, **setting: float) -> dict[str, object]:
    """What an order says of a program that is not ours."""
    program = {"command": ["python", "train.py"]} if command else {"entry": "train.py"}
    return {**program, "watch": Watch.model_validate({"implausible_speed": setting})}


@pytest.mark.parametrize(("ranks", "params", "found"), [(1, 1.01, 1), (2, 1.01, 0), (2, 2.02, 1)])
def test_the_peak_of_the_table_is_that_of_every_rank(ranks: int, params: float, found: int) -> None:
    known = {"params": round(params * 312e12 / 6 / TOKENS), "vocab": None}
    changes = {"profile": "a100-pcie-gen4", "world_size": ranks}
    order = gpu(None, **known).order.model_copy(update=changes)
    ran = Ran(order=order, ranks=ranks).many(60, toks_per_s=TOKENS)
    assert len(feed(ImplausibleSpeed, ran).halts) == found


@pytest.mark.parametrize("peak", [None, 0.0, -1.0, float("nan"), float("inf"), "fast"])
def test_without_a_peak_nothing_is_too_fast_and_that_is_said(peak: float | None) -> None:
    fed = feed(ImplausibleSpeed, gpu(peak).many(60, toks_per_s=TOKENS))
    assert fed.findings == []
    assert fed.missing is not None
    assert "peak" in fed.missing


@pytest.mark.parametrize("known", [{"params": None}, {"params": 0}, {"params": 1000}])
def test_without_parameters_nothing_is_too_fast(known: dict[str, int | None]) -> None:
    assert feed(ImplausibleSpeed, gpu(1.0, **known).many(60, toks_per_s=TOKENS)).findings == []


def test_plan_settings_count_and_are_named() -> None:
    order = order_of({"implausible_speed": {"over_steps": 1, "differ_ratio": 0.5}})
    fed = feed(ImplausibleSpeed, Ran(order=order).many(5, toks_per_s=1.6 * TOKENS))
    assert fed.severities == [(HALT, 2)]
    assert fed.halts[0].source is Source.PLAN


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


def test_after_a_restart_a_report_above_all_that_was_is_a_lie() -> None:
    ran = Ran().many(300, toks_per_s=TOKENS).back_to(250)
    ran.step(dt_s=None, toks_per_s=1.2 * TOKENS).many(60, dt_s=2.0, toks_per_s=1.2 * TOKENS)
    assert feed(ImplausibleSpeed, ran).severities == [(HALT, 271)]


def test_it_says_how_near_the_reported_speed_is_to_a_lie() -> None:
    fed = feed(ImplausibleSpeed, Ran().many(60, toks_per_s=TOKENS))
    near = fed.detector.near(fed.own, fed.view, 0.0)
    assert (near.value, near.unit) == (TOKENS, "tokens/s")
    assert near.limit == pytest.approx(1.1 * TOKENS / 0.98)


@pytest.mark.parametrize(
    ("known", "limit"),
    [
        ({"params": 100, "vocab": None, "dim": 4}, 2.0),
        ({"params": 100, "vocab": 4, "dim": None}, 2.0),
        ({"params": 100, "vocab": 5, "dim": 10}, 4.0),
        ({"params": 100, "vocab": 10, "dim": 10}, None),
        ({"params": None, "vocab": None, "dim": None}, None),
    ],
)
def test_the_peak_allows_six_operations_a_parameter_embeddings_aside(
    known: dict[str, int | None], limit: float | None
) -> None:
    run = Run(order=gpu(None, **known).order)
    assert limit_tok_s(run, {"flops": 1200.0, "of": "cuda"}) == limit


def test_what_the_devices_can_multiply_at_most_is_no_more_than_that() -> None:
    fed = feed(ImplausibleSpeed, gpu(NEEDED).many(60, toks_per_s=TOKENS))
    assert fed.halts == []


@pytest.mark.parametrize(("reported", "found"), [(1.25, 0), (1.26, 1)])
def test_as_much_as_a_quarter_more_may_be_reported_where_the_plan_says_so(
    reported: float, found: int
) -> None:
    order = order_of({"implausible_speed": {"differ_ratio": 0.25}})
    ran = Ran(order=order, dt_s=1.02).many(60, toks_per_s=reported * 2048)
    assert len(feed(ImplausibleSpeed, ran).halts) == found
