"""Which devices are there, which are free, and which does a run get?"""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.contract.errors import Rejected
from gonogo.supervise.locks import device_lock, holding, is_locked
from tests.supervise.orders import make_order
from worker.slots import choose_devices, free_devices, list_devices


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("cpu:2", ("cpu:0", "cpu:1")),
        ("cpu:1", ("cpu:0",)),
        ("cpu:0", ("cpu:0",)),
        ("cuda:0,cuda:3", ("cuda:0", "cuda:3")),
        ("cuda:1", ("cuda:1",)),
        ("cpu:0, cpu:1", ("cpu:0", "cpu:1")),
        (None, ("cpu:0",)),
    ],
)
def test_devices_are_those_that_are_named(
    tmp_path: Path, wanted: str | None, expected: tuple[str, ...]
) -> None:
    assert list_devices(wanted, tmp_path) == expected


def test_without_a_wish_every_gpu_is_a_device(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert list_devices(None, tmp_path) == ("cuda:0", "cuda:1", "cuda:10")


@pytest.mark.parametrize("wanted", ["gpu:0", "cuda", "cuda:x", "cuda:0,,cuda:1", "cpu:-1"])
def test_a_wish_that_names_no_device_is_refused(wanted: str) -> None:
    with pytest.raises(Rejected, match="GONOGO_WORKER_DEVICES"):
        list_devices(wanted)


def test_a_device_is_free_until_somebody_locks_it(tmp_path: Path) -> None:
    devices = ("cpu:0", "cpu:1")
    assert free_devices(tmp_path, devices) == devices
    with holding(device_lock(tmp_path, "cpu:1")):
        assert free_devices(tmp_path, devices) == ("cpu:0",)
    assert free_devices(tmp_path, devices) == devices


def test_asking_for_a_lock_does_not_hide_it_from_others_who_ask(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.touch()
    assert not any(is_locked(path) for _ in range(50))


@pytest.mark.parametrize(
    ("profile", "ranks", "free", "expected"),
    [
        ("cpu", 2, ("cpu:0", "cpu:1"), ("cpu:0",)),
        ("cpu", 2, (), None),
        ("h200", 2, ("cuda:0", "cuda:1", "cuda:2"), ("cuda:0", "cuda:1")),
        ("h200", 2, ("cuda:0",), None),
        ("h200", 1, ("cpu:0",), None),
    ],
)
def test_a_gpu_run_takes_a_device_a_rank_and_a_cpu_run_one_slot(
    profile: str, ranks: int, free: tuple[str, ...], expected: tuple[str, ...] | None
) -> None:
    assert choose_devices(make_order(profile=profile, world_size=ranks), free) == expected
