"""Devices: faults, throttling, and unequal utilisation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Act, Severity, Source
from gonogo.contract.observation import DeviceSample
from gonogo.contract.outcome import Detector
from gonogo.watch.detectors.hardware import PROGRAM_XIDS, SLOWDOWNS, XIDS, DeviceRows
from gonogo.watch.fold import armed, dump_state, near
from gonogo.watch.offline_fold import not_observed
from tests.watch.detectors.devices import Fold, device_order, sample
from tests.watch.streams import T0


def short(world_size: int = 1) -> Fold:
    """A run whose devices are averaged over ten seconds."""
    return Fold(device_order({"imbalance": {"over_s": 10.0}}, world_size=world_size))


# D24: faults of devices halt, faults of programs are reported, silence is unknown.


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
        ([0, 0, 0], False), ([7, 7, 7], False), ([None, None], False), ([7, None, 7], False),
        ([7, 3, 3], False), ([0, 1], True), ([7, None, 8], True), ([7, 3, 4], True),
    ],
)  # fmt: skip
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
        [HARMLESS] * 100, [["hw_slowdown"]] * 12 + [[]] * 12 + [["hw_slowdown"]] * 12,
        [*[["hw_slowdown"]] * 6, *[[]] * 6] * 30, [["hw_slowdown"], None, None, None, None] * 20,
    ],
    ids=["a power cap", "with a break", "half", "too far apart"],
)  # fmt: skip
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


# D14: devices used unequally, or too little, over two minutes of training; a warning only.


def used(
    utils: list[list[float | None]], *, every_s: float = 5.0, fold: Fold | None = None
) -> Fold:
    """Feed one sample a rank and round to a run that trains."""
    fold = fold or Fold()
    fold.step(1)
    for row in utils:
        samples = [sample(fold.now, rank, util=util) for rank, util in enumerate(row)]
        fold.devices(samples)
        fold.now += every_s
    return fold


@pytest.mark.parametrize(
    ("row", "warns"),
    [
        ([95.0, 94.0], False), ([100.0, 81.0], False), ([100.0, 80.0], False),
        ([80.0, 80.0], False), ([100.0, 79.0], True), ([79.0, 79.0], True), ([96.0, 30.0], True),
        ([0.0, 0.0], True),
    ],
)  # fmt: skip
def test_low_or_unequal_utilisation_warns_once_and_never_halts(
    row: list[float | None], warns: bool
) -> None:
    fold = used([row] * 60)
    assert [found.severity for found in fold.findings] == [Severity.WARN] * warns


def test_the_rank_that_is_used_least_is_named_with_its_device() -> None:
    (warning,) = used([[96.0, 30.0]] * 30).findings
    assert (warning.detector, warning.rank, warning.step) == ("imbalance", 1, 1)
    assert warning.value == pytest.approx(30 / 96)
    assert (warning.threshold, warning.source) == (0.8, Source.DEFAULT)
    assert "GPU-1" in warning.text


@pytest.mark.parametrize("section", ["checkpoint", "eval"])
def test_time_that_is_no_training_does_not_count(section: str) -> None:
    fold = Fold()
    fold.step(1, section=section)
    for _ in range(60):
        fold.devices([sample(fold.now, 0, util=0.0), sample(fold.now, 1, util=0.0)], after_s=5.0)
    assert fold.findings == []


@settings(max_examples=8)
@given(rows=st.lists(st.tuples(st.none(), st.one_of(st.none(), st.floats(80, 100))), max_size=60))
def test_a_device_that_does_not_say_is_neither_idle_nor_well(
    rows: list[tuple[None, float | None]],
) -> None:
    assert used([list(row) for row in rows]).findings == []


def test_it_is_armed_once_a_device_says_how_busy_it_is() -> None:
    fold = Fold()
    assert armed(fold.state)["imbalance"] is False
    fold.devices([sample(T0, 0, util=0.0)])
    assert armed(fold.state)["imbalance"] is True


def test_a_row_that_waits_to_be_remapped_warns_once() -> None:
    fold = Fold()
    for number, pending in enumerate([None, False, True, True]):
        fold.devices([sample(T0 + 5 * number, 0, remap_pending=pending)])
    assert fold.said() == [("hardware", "warn", 0)]


def test_a_device_that_is_not_throttled_has_no_throttled_time() -> None:
    fold = Fold(device_order({"hardware": {"throttled_s": 0.25}}))
    assert fold.devices([sample(T0, 0, throttle=[])]) == []


def test_the_time_between_samples_that_are_far_apart_is_not_averaged() -> None:
    fold = Fold(device_order({"imbalance": {"over_s": 10.25}}))
    used([[60.0, 60.0]], every_s=16.0, fold=fold)
    assert used([[60.0, 60.0]] * 3, fold=fold).findings == []
    assert len(used([[60.0, 60.0]], fold=fold).findings) == 1


def test_the_only_device_that_reports_its_use_is_judged_alone() -> None:
    (warning,) = used([[None, 40.0]] * 40).findings
    assert (warning.rank, warning.value) == (1, 40.0)


def test_a_device_below_the_least_beside_busy_ones_is_named() -> None:
    for busiest in (96.0, 80.0):  # the other is between the ratio's limit and the least
        (warning,) = used([[busiest, 78.0]] * 30).findings
        assert (warning.rank, warning.threshold) == (1, 80.0)


@pytest.mark.parametrize(
    ("util", "memory_mb", "kept"),
    [
        (0.0, 0.0, [(0.0, 0.0)]), (100.0, None, [(100.0, None)]), (None, 0.5, [(None, 0.5)]),
        (100.5, -1.0, []), (150.0, 1.0, [(None, 1.0)]), (-0.5, None, []),
    ],
)  # fmt: skip
def test_a_reading_that_cannot_be_is_unknown(
    util: float | None, memory_mb: float | None, kept: list[tuple[float | None, float | None]]
) -> None:
    rows = DeviceRows()
    told = {"uuid": "a", "ts": 1.0, "mono": 2.0, "rank": 0}
    rows.take([DeviceSample(**told, util=util, mem_used_mb=memory_mb)])
    assert [(row.util, row.mem_used_mb) for row in rows] == kept


def test_a_sample_of_the_same_moment_is_the_same_sample() -> None:
    fold = Fold()
    for errors in (0, 1):
        fold.devices([sample(T0, 1, ecc_uncorrected=errors)])
    assert fold.findings == []


@pytest.mark.parametrize(("every_s", "found"), [(15.0, 1), (15.25, 0)])
def test_a_sample_holds_for_fifteen_seconds(every_s: float, found: int) -> None:
    assert len(used([[40.0]] * 3, every_s=every_s, fold=short()).findings) == found


def test_no_rank_is_named_when_all_devices_are_equally_idle() -> None:
    (warning,) = used([[60.0, 61.0]] * 30).findings
    assert (warning.rank, warning.threshold) == (None, 80.0)


def test_a_reading_that_repeats_its_hosts_clock_says_nothing_of_the_time_between() -> None:
    fold = Fold(device_order({"hardware": {"throttled_s": 8}}))
    for mono, own_mono in ((0.0, 100.0), (5.0, 105.0), (6.0, 105.0), (9.0, 109.0)):
        row = sample(T0 + mono, 0, throttle=["hw_slowdown"], own_mono=own_mono)
        assert fold.devices([row], after_s=1.0) == []


@pytest.mark.parametrize(("every_s", "found"), [(15.0, 1), (15.25, 0)])
def test_samples_too_far_apart_restart_the_throttled_time(every_s: float, found: int) -> None:
    fold = throttled([["hw_slowdown"]] * 6, every_s)
    assert len(fold.findings) == found


def test_each_average_is_of_its_own_samples() -> None:
    fold = used([[90.0, 90.0]] * 4, fold=Fold(device_order({"imbalance": {"over_s": 10.25}})))
    used([[80.0, 60.0]], fold=fold)
    found = near(fold.state, fold.now)["imbalance"]
    assert (found.value, found.limit, found.below) == (60.0, 80.0, True)
    assert used([[60.0, 60.0]], fold=fold).findings == []
    (warning,) = used([[60.0, 30.0]], fold=fold).findings
    assert warning.value == pytest.approx(0.75)


def test_samples_a_quarter_of_a_second_apart_are_one_time_of_throttling() -> None:
    fold = throttled([["hw_slowdown"]] * 2, every_s=0.25)
    for number in range(1, 13):
        row = sample(T0 + 5.0 * number, 1, throttle=["hw_slowdown"])
        fold.devices([row], after_s=5.0)
    assert fold.findings == []
    (warning,) = fold.devices([sample(T0 + 60.25, 1, throttle=["hw_slowdown"])], after_s=0.25)
    assert warning.value == 60.25


@pytest.mark.parametrize(
    ("profile", "util", "missing"),
    [("h200", None, True), ("h200", 50.0, False), ("cpu", None, False), ("unknown", None, False)],
)
def test_a_profile_with_devices_misses_reports_of_their_use(
    profile: str, util: float | None, missing: bool
) -> None:
    fold = used([[util, util]], fold=Fold(device_order(profile=profile)))
    found = [str(row.found) for row in not_observed(fold.state) if row.name == "imbalance"]
    assert ("no device reports how busy it is" in found) is missing


@pytest.mark.parametrize("xid", [13, 31, 43])
def test_an_xid_of_the_program_warns(xid: int) -> None:
    (warning,) = Fold().devices([sample(T0, 0, xids=[xid])])
    assert warning.severity is Severity.WARN
    assert "program" in warning.text
