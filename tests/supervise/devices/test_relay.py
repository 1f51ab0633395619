"""Do the devices of all nodes stand in one devices.jsonl, whatever a node's clock says?"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.device import DeviceSample
from gonogo.rundir import RunDir, load_all_lines
from gonogo.supervise.devices import relay
from gonogo.supervise.devices.choice import RunDevices
from gonogo.supervise.devices.lines import DeviceLines
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.devices.relay import build_relay
from gonogo.supervise.devices.sampler import Sampler, start_taking_over
from gonogo.supervise.launch.place import Place
from gonogo.supervise.threads import start_thread
from tests.supervise.devices.fake_nvml import FakeNvml
from tests.supervise.orders import make_order
from tests.supervise.runs import no_threads, wait_until

ORDER = make_order(world_size=2, nodes=2)
HEAD = Place.of(ORDER.document(), 0)


class Clock:
    """A monotonic clock that moves by itself."""

    now = 100.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def say(path: Path, *rows: DeviceSample) -> None:
    with (path / "devices_node1.jsonl").open("a") as stream:
        for row in rows:
            stream.write(row.model_dump_json() + "\n")


def sampler_of_head(path: Path, clock: Clock) -> Sampler:
    devices = RunDevices(calls=Nvml(load=FakeNvml), slots=("GPU-0",), scripted=False)
    run = RunDir(path)
    return Sampler(run, devices, HEAD, build_relay(run, ORDER, HEAD), clock=clock)


def lines(path: Path) -> list[DeviceSample]:
    rows = load_all_lines(RunDir(path).devices)
    return [DeviceSample.model_validate_json(row) for row in rows]


def sample(ts: float, rank: int = 1, **more: object) -> DeviceSample:
    row = {"ts": ts, "mono": 9e6, "uuid": f"GPU-far-{rank}", "rank": rank, **more}
    return DeviceSample.model_validate(row)


def test_what_another_node_says_gets_the_clock_of_node_0(tmp_path: Path) -> None:
    clock = Clock()
    head = sampler_of_head(tmp_path, clock)
    say(tmp_path, sample(1.0, xids=[79]), sample(2.0, util=40.0))
    assert head.poll() == 3
    found = lines(tmp_path)
    assert [(row.rank, row.xids, row.util) for row in found[1:]] == [(1, [79], None), (1, None, 40)]
    assert [(row.ts, row.own_mono) for row in found[1:]] == [(1.0, 9e6), (2.0, 9e6)]
    assert found[0].own_mono is None
    assert 100.0 < found[0].mono < found[1].mono < found[2].mono <= clock.now
    seen = DeviceLines(RunDir(tmp_path)).look(0.0)
    assert seen is not None
    assert {row["rank"] for row in seen} == {0, 1}


class Hanging(FakeNvml):
    """A driver of which one call does not return until it may."""

    def __init__(self, may_return: threading.Event) -> None:
        super().__init__()
        self._may_return = may_return

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        self._may_return.wait(60.0)
        return super().nvmlDeviceGetUtilizationRates(handle)


def test_what_another_node_says_is_taken_over_while_the_driver_of_node_0_hangs(
    tmp_path: Path,
) -> None:
    may_return, run = threading.Event(), RunDir(tmp_path)
    calls = Nvml(load=lambda: Hanging(may_return))
    devices = RunDevices(calls=calls, slots=("GPU-0",), scripted=False)
    head = Sampler(run, devices, HEAD, build_relay(run, ORDER, HEAD))
    asking = start_thread(head.poll, "asking")
    say(tmp_path, sample(1.0, xids=[79]))
    start_taking_over(head, 60.0)
    wait_until(lambda: run.devices.exists() and lines(tmp_path), "the other node's line")
    assert [(row.rank, row.xids) for row in lines(tmp_path)] == [(1, [79])]
    may_return.set()
    asking.join(60.0)
    ranks = [row.rank for row in lines(tmp_path)]
    monos = [row.mono for row in lines(tmp_path)]
    assert (ranks, monos) == ([1, 0], sorted(monos))


def test_a_host_without_a_thread_takes_over_in_its_rounds(tmp_path: Path) -> None:
    head = sampler_of_head(tmp_path, Clock())
    with no_threads():
        start_taking_over(head, 60.0)
    say(tmp_path, sample(1.0))
    head.poll()
    assert [row.rank for row in lines(tmp_path)] == [0, 1]


def test_ranks_of_another_node_and_lines_that_are_none_are_left_out(tmp_path: Path) -> None:
    head = sampler_of_head(tmp_path, Clock())
    say(tmp_path, sample(1.0, rank=0), sample(1.0, rank=7), sample(1.0))
    with (tmp_path / "devices_node1.jsonl").open("a") as stream:
        stream.write('{"torn": \n')
    head.poll()
    assert [row.rank for row in lines(tmp_path)] == [0, 1]


def test_a_sampler_that_comes_after_another_takes_nothing_over_twice(tmp_path: Path) -> None:
    clock = Clock()
    say(tmp_path, sample(1.0), sample(2.0))
    sampler_of_head(tmp_path, clock).poll()
    say(tmp_path, sample(3.0))
    sampler_of_head(tmp_path, clock).poll()
    assert [row.ts for row in lines(tmp_path) if row.rank == 1] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("look_bytes", [1000, 262_144], ids=["in pieces", "in one"])
def test_a_sampler_that_comes_after_another_drops_nothing_of_a_clock_that_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_bytes: int
) -> None:
    monkeypatch.setattr(relay, "LOOK_BYTES", look_bytes)
    clock = Clock()
    say(tmp_path, *(sample(float(ts)) for ts in (100, 101, 60)))
    head = sampler_of_head(tmp_path, clock)
    for _ in range(4):
        head.poll()
    say(tmp_path, sample(61.0, xids=[79]))
    with (tmp_path / "devices_node1.jsonl").open("a") as stream:
        stream.write('{"torn": \n')
    after = sampler_of_head(tmp_path, clock)
    for _ in range(4):
        after.poll()
    told = [(row.ts, row.xids) for row in lines(tmp_path) if row.rank == 1]
    assert told == [(100.0, None), (101.0, None), (60.0, None), (61.0, [79])]


def test_only_node_0_takes_over_and_the_others_write_their_own(tmp_path: Path) -> None:
    second = Place.of(ORDER.document(), 1)
    assert build_relay(RunDir(tmp_path), ORDER, second).nodes == []
    devices = RunDevices(calls=Nvml(load=FakeNvml), slots=("GPU-1",), scripted=False)
    none = build_relay(RunDir(tmp_path), ORDER, second)
    Sampler(RunDir(tmp_path), devices, second, none, clock=Clock()).poll()
    own = load_all_lines(tmp_path / "devices_node1.jsonl")
    assert [DeviceSample.model_validate_json(row).rank for row in own] == [1]
    assert not RunDir(tmp_path).devices.exists()
    assert (tmp_path / ".sampler_node1").exists()
