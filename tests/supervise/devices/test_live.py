"""Devices beside a real run: faults are found, and a sampler that dies or hangs harms nothing."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.observation import DeviceSample
from gonogo.contract.outcome import OutcomeCode
from gonogo.rundir import load_all_lines
from gonogo.supervise.processes import find_process, send_signal
from tests.supervise.runs import WATCH, NewRun, SupervisedRun, wait_until

SHORT = {**WATCH, "imbalance": {"over_s": 1}}
QUIET = ["process_death", "identity", "stall", "imbalance", "hardware"]


def samples(run: SupervisedRun) -> list[DeviceSample]:
    return [DeviceSample.model_validate_json(line) for line in load_all_lines(run.dir.devices)]


def recorded(run: SupervisedRun) -> list[tuple[str, float]]:
    """UUID and clock of every sample that a tick carries."""
    ticks = [json.loads(line) for line in load_all_lines(run.dir.watch)]
    rows = [row for tick in ticks for row in tick.get("observations", {}).get("devices", [])]
    return [(row["uuid"], row["mono"]) for row in rows]


def script(path: Path, *rows: dict[str, Any]) -> dict[str, str]:
    """Write a script of two devices; returns the environment that names it."""
    file = path / "script.json"
    devices = [{"uuid": f"GPU-{n}", "index": n} for n in range(2)]
    file.write_text(json.dumps({"devices": devices, "samples": list(rows)}))
    return {"GONOGO_DEVICES_SCRIPT": str(file)}


@pytest.mark.long
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGKILL, marks=pytest.mark.long), signal.SIGSTOP]
)
def test_a_sampler_that_dies_or_hangs_is_no_harm_to_the_run(
    new_run: NewRun, tmp_path: Path, number: signal.Signals
) -> None:
    environ = script(tmp_path, {"uuid": "GPU-0", "at_s": 0, "util": 90.0})
    run = new_run(environ=environ, allow_faults=True, detectors=QUIET, steps=80)
    wait_until(lambda: samples(run), "a sample")
    pid = run.pid_of("sampler")
    send_signal(pid, number)
    if number is signal.SIGKILL:
        wait_until(lambda: run.pid_of("sampler") != pid, "another sampler")
        pid = run.pid_of("sampler")
    assert run.wait_for_exit().reason is OutcomeCode.COMPLETED
    assert find_process(pid) is None
    assert run.findings() == []


@pytest.mark.long
def test_a_killed_watcher_goes_on_and_no_sample_is_recorded_twice_or_lost(
    new_run: NewRun, tmp_path: Path
) -> None:
    rows = [{"uuid": "GPU-0", "at_step": n, "util": 90.0 + n % 9} for n in range(1, 60)]
    run = new_run(environ=script(tmp_path, *rows), allow_faults=True, detectors=QUIET, steps=60)
    run.wait_for_step(20)
    send_signal(run.pid_of("watcher"), signal.SIGKILL)
    run.wait_for_exit()
    written = [(row.uuid, row.mono) for row in samples(run)]
    seen = recorded(run)
    assert len(seen) == len(set(seen)) > 10
    assert set(seen) <= set(written)
    assert len(written) - len(seen) <= 4  # the last ones come after the last look
    run.assert_replays()
