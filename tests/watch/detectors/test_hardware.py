"""D24: faults of devices halt, faults of programs are reported, silence is unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.finding import Act, Severity
from gonogo.contract.outcome import Detector
from gonogo.watch import armed, dump_state
from gonogo.watch.detectors.hardware import PROGRAM_XIDS, SLOWDOWNS, XIDS
from tests.watch.detectors.devices import Fold, device_order, sample
from tests.watch.streams import T0

HARMLESS = ["gpu_idle", "sw_power_cap", "applications_clocks_setting", "sync_boost"]


@pytest.mark.parametrize("xid", [48, 63, 64, 74, 79, 94, 95])
def test_an_xid_of_the_hardware_halts_and_names_rank_and_device(xid: int) -> None:
    fold = Fold()
    fold.step(12)
    (halt,) = fold.devices([sample(T0, 0, xids=[]), sample(T0, 1, xids=[xid])])
    assert (halt.detector, halt.severity, halt.act) == ("hardware", Severity.HALT, Act.NOW)
    assert (halt.rank, halt.step, halt.section, halt.value) == (1, 12, None, xid)
    assert "GPU-1" in halt.text
    assert f"Xid {xid}" in halt.text


@given(xid=st.integers(0, 300))
def test_only_the_listed_xids_halt(xid: int) -> None:
    fold = Fold()
    (finding,) = fold.devices([sample(T0, 0, xids=[xid])])
    assert (finding.severity is Severity.HALT) is (xid in XIDS)
    assert (finding.severity is Severity.WARN) is (xid in PROGRAM_XIDS)


def test_the_same_xid_is_told_once_for_each_device() -> None:
    fold = Fold()
    for number in range(5):
        fold.devices([sample(T0 + number, 0, xids=[79, 79]), sample(T0 + number, 1, xids=[79])])
    assert fold.said() == [("hardware", "halt", 0), ("hardware", "halt", 1)]


def test_a_device_that_is_no_ranks_says_nothing_about_the_run() -> None:
    fold = Fold()
    fold.devices([sample(T0, None, uuid="GPU-x", xids=[79])])
    assert fold.findings == []


@pytest.mark.parametrize(
    ("counts", "halts"),
    [
        ([0, 0, 0], False),
        ([7, 7, 7], False),
        ([None, None], False),
        ([7, None, 7], False),
        ([7, 3, 3], False),
        ([0, 1], True),
        ([7, None, 8], True),
        ([7, 3, 4], True),
    ],
)
def test_uncorrectable_errors_halt_only_when_they_grow(
    counts: list[int | None], halts: bool
) -> None:
    fold = Fold()
    for number, count in enumerate(counts):
        fold.devices([sample(T0 + 5 * number, 1, ecc_uncorrected=count)])
    assert fold.said() == [("hardware", "halt", 1)] * halts


def throttled(reasons: list[list[str] | None], every_s: float = 5.0) -> Fold:
    fold = Fold()
    for number, row in enumerate(reasons):
        fold.devices([sample(T0 + every_s * number, 1, throttle=row)], after_s=every_s)
    return fold


@pytest.mark.parametrize("reason", sorted(SLOWDOWNS))
def test_a_device_held_down_by_heat_or_power_for_over_a_minute_warns_once(reason: str) -> None:
    assert throttled([[reason]] * 13).findings == []  # 60 s, not more
    fold = throttled([[], *[["sw_power_cap", reason]] * 60])
    (warning,) = fold.findings
    assert (warning.severity, warning.rank, warning.threshold) == (Severity.WARN, 1, 60.0)
    assert warning.value == 65.0
    assert reason in warning.text


@pytest.mark.parametrize(
    "reasons",
    [
        [HARMLESS] * 100,
        [["hw_slowdown"]] * 12 + [[]] * 12 + [["hw_slowdown"]] * 12,
        [*[["hw_slowdown"]] * 6, *[[]] * 6] * 30,
        [["hw_slowdown"], None, None, None, None] * 20,
    ],
    ids=["a power cap", "with a break", "half", "too far apart"],
)
def test_a_device_that_is_not_held_down_for_a_minute_is_silent(
    reasons: list[list[str] | None],
) -> None:
    assert throttled(reasons).findings == []


def test_the_same_samples_twice_change_nothing() -> None:
    fold = Fold()
    rows = [sample(T0 + n, 1, ecc_uncorrected=n % 2, throttle=[]) for n in (0, 2, 4)]
    fold.devices(rows)
    before = dump_state(fold.state)["own"]["hardware"]
    fold.devices(rows)
    fold.devices(rows[:1])
    assert dump_state(fold.state)["own"]["hardware"] == before


UNREADABLE = dict.fromkeys(
    [
        "util", "mem_used_mb", "mem_total_mb", "sm_clock_mhz", "power_w", "temp_c", "throttle",
        "ecc_uncorrected", "remap_pending", "nvlink_errors", "xids",
    ]
)  # fmt: skip


@given(count=st.integers(1, 40), gap_s=st.sampled_from([1.0, 5.0, 30.0]))
def test_unreadable_devices_never_halt_and_never_arm_what_needs_a_reading(
    count: int, gap_s: float
) -> None:
    fold = Fold(device_order({"memory_limit": {"reserved_mb": 1.0}}, profile="h200"))
    fold.step(1)
    for number in range(count):
        row = [sample(T0 + number * gap_s, rank, **UNREADABLE) for rank in (0, 1)]
        fold.devices(row, after_s=gap_s)
    assert fold.findings == []
    on = armed(fold.state)
    assert (on[Detector.IMBALANCE], on[Detector.MEMORY_LIMIT]) == (False, False)
