"""The sampler writes on time, whatever fails, and is kept alive."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.observation import DeviceSample
from gonogo.rundir import RunDir, load_all_lines
from gonogo.supervise.devices.choice import RunDevices
from gonogo.supervise.devices.device import reached_step
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.devices.sampler import EVERY_S, OtherNodes, Sampler, cadence_s
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.processes import LifeSigns
from tests.supervise.devices.fake_nvml import FakeNvml
from tests.supervise.orders import make_order


class Bench:
    """A sampler of two recorded devices, on a clock of its own."""

    def __init__(self, path: Path, *, scripted: bool = False, failing: set[str] | None = None):
        self.nvml = FakeNvml(failing)
        self.run = RunDir(path)
        self.now = 100.0
        devices = RunDevices(
            calls=Nvml(load=lambda: self.nvml), slots=("GPU-0", "GPU-1"), scripted=scripted
        )
        place = Place(node=0, nodes=1, ranks=range(2))
        self.sampler = Sampler(
            self.run,
            devices,
            place,
            OtherNodes(self.run, make_order(), place),
            clock=self.clock,
            wall=lambda: 1e9 + self.now,
        )

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def poll(self, after_s: float = 0.0) -> int:
        self.now += after_s
        return self.sampler.poll()

    def lines(self) -> list[DeviceSample]:
        return [DeviceSample.model_validate_json(x) for x in load_all_lines(self.run.devices)]


def test_each_device_has_a_line_at_once_and_every_five_seconds(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert [bench.poll(1.0) for _ in range(11)] == [2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2]
    lines = bench.lines()
    assert [(line.rank, line.uuid, line.index) for line in lines[:2]] == [
        (0, "GPU-0", 0),
        (1, "GPU-1", 1),
    ]
    assert lines[0].util == 97.0
    assert lines[0].xids == []
    clocks = [line.mono for line in lines]
    assert clocks == sorted(set(clocks))


def test_a_line_has_every_name_of_the_interface_with_null_for_the_unknown(tmp_path: Path) -> None:
    bench = Bench(tmp_path, failing={"nvmlDeviceGetPowerUsage"})
    bench.poll()
    row = json.loads(load_all_lines(bench.run.devices)[0])
    names = "v ts mono uuid index rank util mem_used_mb mem_total_mb sm_clock_mhz power_w temp_c"
    errors = "throttle ecc_uncorrected remap_pending nvlink_errors xids"
    assert sorted(row) == sorted(f"{names} {errors}".split())
    assert row["power_w"] is None


def test_an_xid_is_written_at_once_and_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.poll()
    bench.nvml.xids["GPU-1"].append(79)
    assert bench.poll(1.0) == 1
    assert bench.poll(1.0) == 0
    assert [(line.rank, line.xids) for line in bench.lines() if line.xids] == [(1, [79])]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("nvmlDeviceGetCurrentClocksThrottleReasons", 0x8),
        ("nvmlDeviceGetTotalEccErrors", 3),
        ("nvmlDeviceGetRemappedRows", (0, 0, 0, 0)),
    ],
)
def test_what_says_that_a_device_is_sick_waits_for_no_next_line(
    call: str, said: object, tmp_path: Path
) -> None:
    bench = Bench(tmp_path)
    bench.poll()
    setattr(bench.nvml, call, lambda *_: said)
    assert bench.poll(1.0) == 2


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_is_weather_and_no_xid_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    bench = Bench(tmp_path)
    bench.poll()

    def refuse(descriptor: int, data: bytes) -> int:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr("gonogo.files.os.write", refuse)
        bench.nvml.xids["GPU-1"].append(79)
        assert bench.poll(1.0) == 0
        bench.nvml.xids["GPU-1"].append(43)
        assert bench.poll(1.0) == 0
    assert bench.poll(1.0) == 1
    assert [line.xids for line in bench.lines() if line.xids] == [[79, 43]]


def test_a_driver_that_comes_back_is_sampled(tmp_path: Path) -> None:
    bench = Bench(tmp_path, failing={"nvmlDeviceGetCount"})
    assert [bench.poll(1.0), bench.poll(1.0)] == [0, 0]
    bench.nvml.failing.clear()
    assert bench.poll(1.0) == 2


@pytest.mark.parametrize(
    ("watch", "expected"),
    [
        ({}, EVERY_S), ({"imbalance": {"over_s": 600}}, EVERY_S),
        ({"imbalance": {"over_s": 2}}, 0.5), ({"hardware": {"throttled_s": 8}}, 2.0),
        ({"imbalance": {"over_s": 0.1}}, 0.25),
    ],
)  # fmt: skip
def test_a_rule_that_looks_at_less_time_gets_lines_more_often(
    watch: dict[str, Any], expected: float
) -> None:
    assert cadence_s(make_order(watch=watch)) == expected


def line(step: int, rank: int = 0) -> bytes:
    beat = Heartbeat(
        ts=1.0, mono=1.0, pid=1, rank=rank, boot="b", seq=step, step=step, msg="step_end"
    )
    return beat.model_dump_json().encode() + b"\n"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0), (line(3) + line(4), 4), (line(3) + line(4)[:-1], 3),
        (line(3) + b"nonsense\n" + line(2), 3),
    ],
)  # fmt: skip
def test_the_step_is_read_from_the_last_lines(tmp_path: Path, data: bytes, expected: int) -> None:
    run = RunDir(tmp_path)
    run.heartbeat(0).write_bytes(data)
    assert reached_step(run) == expected


def test_each_round_gives_a_sign_of_life(tmp_path: Path) -> None:
    bench = Bench(tmp_path, failing={"nvmlDeviceGetCount"})
    reading, writing = os.pipe()
    bench.sampler._signs = LifeSigns(writing)
    bench.poll()
    assert os.read(reading, 9) == b"."
