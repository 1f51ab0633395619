"""Scripted devices report what their script says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.observation import DevicesScript
from gonogo.supervise.devices.device import (
    BEFORE_THE_RUN,
    Device,
    DeviceUnreadable,
    Scripted,
    build_fault_script,
    load_script,
)


class Clock:
    """Where the run is."""

    def __init__(self) -> None:
        self.elapsed_s, self.step = BEFORE_THE_RUN, 0


def scripted(*samples: dict[str, Any], clock: Clock) -> tuple[Scripted, Device]:
    script = DevicesScript.model_validate(
        {
            "devices": [{"uuid": "GPU-a", "index": 0}, {"uuid": "GPU-b", "index": 1}],
            "samples": [{"uuid": "GPU-a", **sample} for sample in samples],
        }
    )
    calls = Scripted(script, lambda: clock.elapsed_s, lambda: clock.step)
    return calls, calls.devices()[0]


def test_a_sample_holds_until_the_next_of_its_device() -> None:
    clock = Clock()
    calls, device = scripted(
        {"at_s": 0, "util": 10.0}, {"at_s": 5, "util": 20.0}, {"at_step": 7, "util": 30.0},
        clock=clock,
    )  # fmt: skip
    said = []
    for elapsed_s, step in [(0.0, 0), (4.9, 1), (5.0, 2), (6.0, 6), (6.1, 7), (60.0, 9)]:
        clock.elapsed_s, clock.step = elapsed_s, step
        said.append(calls.read(device).util)
    assert said == [10.0, 10.0, 20.0, 20.0, 30.0, 30.0]


def test_the_xids_of_every_sample_are_told_once_even_of_one_that_was_passed_over() -> None:
    clock = Clock()
    calls, device = scripted(
        {"at_s": 0, "xids": []}, {"at_s": 1, "xids": [79]}, {"at_s": 2, "xids": [43]}, clock=clock
    )
    clock.elapsed_s = 0.0
    assert calls.read(device).xids == []
    clock.elapsed_s = 9.0
    assert [calls.read(device).xids, calls.read(device).xids] == [[79, 43], []]


def test_before_the_run_a_device_is_idle_unless_a_sample_without_a_moment_says_otherwise() -> None:
    calls, device = scripted({"at_s": 0, "util": 90.0, "mem_used_mb": 5e4}, clock=Clock())
    assert calls.read(device).mem_used_mb == 0.0
    calls, device = scripted({"mem_used_mb": 900.0}, clock=Clock())
    assert calls.read(device).mem_used_mb == 900.0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"devices": 1}', '{"devices": [], "more": 1}', "\xff"]
)
def test_a_file_that_is_no_script_is_unreadable(tmp_path: Path, text: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(text)
    with pytest.raises(DeviceUnreadable, match="GONOGO_DEVICES_SCRIPT"):
        load_script(path)
    with pytest.raises(DeviceUnreadable, match="GONOGO_DEVICES_SCRIPT"):
        load_script(tmp_path / "missing.json")


@given(rank=st.integers(0, 7), step=st.integers(1, 60), code=st.integers(1, 255))
def test_the_fault_xid_shows_on_its_rank_from_its_step_and_all_else_is_healthy(
    rank: int, step: int, code: int
) -> None:
    script = build_fault_script(f"xid:code={code},rank={rank},step={step}", 8)
    assert script is not None
    clock = Clock()
    clock.elapsed_s = 0.0
    calls = Scripted(script, lambda: clock.elapsed_s, lambda: clock.step)
    told: dict[int, list[tuple[int, list[int]]]] = {}
    for clock.step in range(step + 3):
        for number, device in enumerate(calls.devices()):
            found = calls.read(device)
            if found.xids:
                told.setdefault(number, []).append((clock.step, found.xids))
            assert found.util == 96.0
    assert told == {rank: [(step, [code])]}


def test_the_fault_imbalance_lowers_one_ranks_utilisation_from_its_step() -> None:
    script = build_fault_script("imbalance:rank=1,util=30,from=10", 2)
    assert script is not None
    clock = Clock()
    clock.elapsed_s = 0.0
    calls = Scripted(script, lambda: clock.elapsed_s, lambda: clock.step)
    clock.step = 9
    assert [calls.read(row).util for row in calls.devices()] == [96.0, 96.0]
    clock.step = 10
    assert [calls.read(row).util for row in calls.devices()] == [96.0, 30.0]
