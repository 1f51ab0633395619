"""What has a node to offer to a run that a scheduler has sent to it?"""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.slots import gpus_of
from worker.host.slots import PLACES
from worker.once import find_own_slots
from worker.settings import load_settings


@pytest.mark.parametrize(("devices", "runs"), [(None, PLACES), ("cpu:2", 2)])
def test_a_node_without_gpus_takes_what_its_scheduler_sends(
    tmp_path: Path, devices: str | None, runs: int
) -> None:
    said = {} if devices is None else {"GONOGO_WORKER_DEVICES": devices}
    slots = find_own_slots(load_settings({"GONOGO_HOME": str(tmp_path), **said}))
    assert gpus_of(slots.names) or len(slots.names) == runs
    assert slots.locks.path(slots.names[0]).is_relative_to(tmp_path) or gpus_of(slots.names)
