"""Which devices may the worker give out, which are free, and which does a run get?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.errors import Rejected, Unavailable
from gonogo.supervise.devices.choice import Listing
from gonogo.supervise.devices.device import Device
from gonogo.supervise.locks import DeviceLocks, holding, is_locked, quarantine
from tests.supervise.orders import make_order
from worker.host import slots
from worker.host.slots import SCHEDULER_SLOTS, Slots, choose_devices, find_slots, scheduler_slots

ROWS = [Device(uuid=f"GPU-{mark}", index=n, name="H200") for n, mark in enumerate("abc")]


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of three GPUs."""
    monkeypatch.setattr(slots, "list_host_devices", lambda: Listing(devices=ROWS))


def found(home: Path, wanted: str | None = None, **more: Any) -> tuple[str, ...]:
    environ = more.pop("environ", {})
    made = find_slots(home, wanted=wanted, environ=environ, locks=home / "shared", dev=home, **more)
    return made.names


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("cpu:2", ("cpu:0", "cpu:1")), ("cpu:0", ("cpu:0",)), (None, ("cpu:0",)),
    ],
)  # fmt: skip
def test_slots_of_a_host_without_gpus_are_those_that_are_named(
    tmp_path: Path, wanted: str | None, expected: tuple[str, ...]
) -> None:
    assert found(tmp_path, wanted) == expected


@pytest.mark.parametrize(
    ("wanted", "visible", "expected"),
    [
        (None, None, ("GPU-a", "GPU-b", "GPU-c")), (None, "GPU-c,GPU-a", ("GPU-c", "GPU-a")),
        (None, "2", ("GPU-c",)), (None, "", ("cpu:0",)),
        ("cuda:0,cuda:2", None, ("GPU-a", "GPU-c")), ("GPU-b", None, ("GPU-b",)),
        ("GPU-b", "GPU-a,GPU-b", ("GPU-b",)),
    ],
)  # fmt: skip
def test_gpus_are_uuids_inside_what_the_worker_was_given(
    tmp_path: Path,
    listing: None,
    wanted: str | None,
    visible: str | None,
    expected: tuple[str, ...],
) -> None:
    (tmp_path / "nvidia4").touch()  # a container's node; its number says nothing
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert found(tmp_path, wanted, environ=environ) == expected


@pytest.mark.parametrize("wanted", ["gpu:0", "cuda", "cuda:x", "cuda:0,,cuda:1", "cpu:-1", "GPU-z"])
def test_a_wish_that_names_no_device_is_refused(tmp_path: Path, listing: None, wanted: str) -> None:
    with pytest.raises(Rejected, match="GONOGO_WORKER_DEVICES"):
        found(tmp_path, wanted)


def test_a_host_whose_driver_does_not_answer_is_no_host_without_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "list_host_devices", lambda: Listing(error="Unknown Error"))
    assert found(tmp_path) == ("cpu:0",)
    (tmp_path / "nvidia0").touch()
    with pytest.raises(Unavailable, match="Unknown Error"):
        found(tmp_path)


def test_made_up_devices_keep_their_locks_in_the_home(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"devices": [{"uuid": "GPU-made", "index": 0}]}))
    made = find_slots(tmp_path, wanted=None, environ={}, script=script, locks=tmp_path / "shared")
    assert (made.names, made.locks.shared) == (("GPU-made",), None)


def test_two_homes_of_one_host_see_each_others_gpus_and_not_their_cpus(
    tmp_path: Path, listing: None
) -> None:
    one, two = (
        find_slots(
            tmp_path / home,
            wanted="GPU-a,GPU-b",
            environ={},
            locks=tmp_path / "shared",
            dev=tmp_path,
        )
        for home in ("one", "two")
    )
    assert str(tmp_path / "shared") in one.describe()
    with holding(one.locks.path("GPU-a")), holding(one.locks.path("cpu:0")):
        assert two.free() == ("GPU-b",)
        assert not is_locked(two.locks.path("cpu:0"))


def test_a_device_in_quarantine_is_not_free(tmp_path: Path) -> None:
    names = ("GPU-a", "GPU-b")
    made = Slots(home=tmp_path, names=names, locks=DeviceLocks(home=tmp_path))
    quarantine(tmp_path, "GPU-a", "Xid 79", now=0.0)
    assert made.free(now=1.0) == ("GPU-b",)


@pytest.mark.parametrize(
    ("profile", "ranks", "free", "expected"),
    [
        ("cpu", 2, ("cpu:0", "cpu:1"), ("cpu:0",)), ("cpu", 2, (), None),
        ("h200", 2, ("GPU-a", "GPU-b", "GPU-c"), ("GPU-a", "GPU-b")), ("h200", 2, ("GPU-a",), None),
        ("h200", 1, ("cpu:0",), None),
    ],
)  # fmt: skip
def test_a_gpu_run_takes_a_device_a_rank_and_a_cpu_run_one_slot(
    profile: str, ranks: int, free: tuple[str, ...], expected: tuple[str, ...] | None
) -> None:
    assert choose_devices(make_order(profile=profile, world_size=ranks), free) == expected


def test_a_scheduler_s_runs_take_numbered_places_and_no_devices_of_this_host(
    tmp_path: Path,
) -> None:
    assert len(scheduler_slots(tmp_path, None).names) == SCHEDULER_SLOTS
    assert scheduler_slots(tmp_path, "cpu:2").names == ("cpu:0", "cpu:1")
    with pytest.raises(Rejected, match="how many runs"):
        scheduler_slots(tmp_path, "GPU-1")
