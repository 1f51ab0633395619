"""Samples reach the watcher once, and those of other nodes reach node 0's devices.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.observation import DeviceSample
from gonogo.rundir import RunDir, load_all_lines
from gonogo.supervise.devices.choice import RunDevices
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.devices.sampler import DeviceLines, OtherNodes, Sampler
from gonogo.supervise.launch.nodes import Place
from tests.supervise.devices.fake_nvml import FakeNvml
from tests.supervise.orders import make_order


def line(mono: float, **more: Any) -> bytes:
    row = {"v": 1, "ts": 1000.0 + mono, "mono": mono, "uuid": "GPU-a", "index": 0, "util": 90.0}
    return json.dumps({**row, **more}).encode() + b"\n"


def clocks(payload: list[dict[str, Any]] | None) -> list[float]:
    return [row["mono"] for row in payload or []]


def test_each_sample_is_seen_once_and_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    source = DeviceLines(run)
    whole = line(3.0)
    run.devices.write_bytes(line(1.0) + line(2.0) + whole[:20])
    assert clocks(source.look(0.0)) == [1.0, 2.0]
    assert source.look(1.0) is None
    with run.devices.open("ab") as stream:
        stream.write(whole[20:])
    assert clocks(source.look(2.0)) == [3.0]


@pytest.mark.parametrize(
    "odd",
    [
        b"nonsense\n", b"\n", b"{}\n", b"[1]\n", b'{"v":1,"ts":1,"mono":NaN,"uuid":"GPU-a"}\n',
        b'{"v":1,"ts":1,"mono":"soon","uuid":"GPU-a"}\n',
        b'{"v":1,"ts":1,"mono":2,"uuid":"GPU-a","xids":"79"}\n', b"\xff\xfe\n",
        b"x" * 300_000 + b"\n",
    ],
)  # fmt: skip
def test_a_line_that_is_no_sample_hides_no_other(tmp_path: Path, odd: bytes) -> None:
    run = RunDir(tmp_path)
    run.devices.write_bytes(line(1.0) + odd + line(2.0))
    source = DeviceLines(run)
    seen = [mono for _ in range(4) for mono in clocks(source.look(0.0))]
    assert seen == [1.0, 2.0]


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 200), seen=st.integers(0, 200), text=st.integers(0, 60))
def test_a_new_watcher_goes_on_exactly_after_the_last_recorded_sample(
    tmp_path_factory: pytest.TempPathFactory, count: int, seen: int, text: int
) -> None:
    run = RunDir(tmp_path_factory.mktemp("run"))
    rows = [line(float(n), uuid="GPU-" + "x" * (n * text % 97)) for n in range(count)]
    run.devices.write_bytes(b"".join(rows))
    source = DeviceLines(run)
    source.resume([{"mono": float(seen - 1)}] if seen else [])
    found = [mono for now in range(count + 1) for mono in clocks(source.look(float(now)))]
    assert found == [float(n) for n in range(min(seen, count), count)]


ORDER = make_order(world_size=2, nodes=2)
HEAD = Place.of(ORDER.document(), 0)


def say(path: Path, *rows: DeviceSample) -> None:
    with (path / "devices_node1.jsonl").open("a") as stream:
        for row in rows:
            stream.write(row.model_dump_json() + "\n")


def sampler_of_head(path: Path, load: Any = FakeNvml) -> Sampler:
    devices = RunDevices(calls=Nvml(load=load), slots=("GPU-0",), scripted=False)
    run = RunDir(path)
    return Sampler(run, devices, HEAD, OtherNodes(run, ORDER, HEAD))


def samples(path: Path) -> list[DeviceSample]:
    rows = load_all_lines(RunDir(path).devices)
    return [DeviceSample.model_validate_json(row) for row in rows]


def sample(at: float, rank: int = 1, **more: object) -> DeviceSample:
    row = {"ts": at, "mono": 9e6 + at, "uuid": f"GPU-far-{rank}", "rank": rank, **more}
    return DeviceSample.model_validate(row)


def test_samples_of_another_node_get_the_clock_of_node_0(tmp_path: Path) -> None:
    head = sampler_of_head(tmp_path)
    say(tmp_path, sample(1.0, xids=[79]), sample(2.0, util=40.0))
    assert head.poll() == 3
    own, first, second = samples(tmp_path)
    assert [(row.rank, row.xids, row.util) for row in (first, second)] == [
        (1, [79], None),
        (1, None, 40),
    ]
    assert [(row.ts, row.own_mono) for row in (first, second)] == [(1.0, 9e6 + 1), (2.0, 9e6 + 2)]
    assert own.own_mono is None
    assert own.mono < first.mono < second.mono


def test_a_new_sampler_copies_nothing_twice_and_loses_nothing(tmp_path: Path) -> None:
    say(tmp_path, sample(1.0), sample(2.0))
    sampler_of_head(tmp_path).poll()
    say(tmp_path, sample(3.0))
    sampler_of_head(tmp_path).poll()
    assert [row.ts for row in samples(tmp_path) if row.rank == 1] == [1.0, 2.0, 3.0]


def test_only_node_0_copies(tmp_path: Path) -> None:
    second = Place.of(ORDER.document(), 1)
    none = OtherNodes(RunDir(tmp_path), ORDER, second)
    devices = RunDevices(calls=Nvml(load=FakeNvml), slots=("GPU-1",), scripted=False)
    Sampler(RunDir(tmp_path), devices, second, none).poll()
    own = load_all_lines(tmp_path / "devices_node1.jsonl")
    assert [DeviceSample.model_validate_json(row).rank for row in own] == [1]
    assert not RunDir(tmp_path).devices.exists()
