"""How every detector, and the timeline, begins: it remembers nothing, and sees what it looks at."""

import dataclasses
import hashlib
import importlib
import math
import pkgutil

import pytest

from gonogo import timeline
from gonogo.contract.records import ProcessState
from gonogo.watch import detectors
from gonogo.watch.detector import Detector
from gonogo.watch.registry import REGISTRY, Kind

MODULES = [
    f"{package.__name__}.{found.name}"
    for package in (detectors, timeline)
    for found in pkgutil.iter_modules(package.__path__)
] + ["gonogo.watch.offline_fold", "gonogo.watch.view"]
NOT_NOTHING = {
    "lines.BootLines.chain": bytes(32),
    "loss.Overflows.searching": True,
    "rank_steps.BootSteps.low": 1,
    "step.StepPace.stride": 1,
    "offline_fold.WatchRecord.agrees": True,
    "offline_fold.WatchRecord.chained": True,
    "offline_fold.WatchRecord.digest": hashlib.sha256(b"").hexdigest(),
    "offline_fold.WatchRecord.reaches": True,
    "view.Process.state": ProcessState.UNKNOWN,
    "view.View.watched": True,
}
"""Until something contradicts it; a loss scale is searched for at first, and a seq begins at 1."""
NOTHING_YET = (-1, math.inf, -math.inf)
"""No seq, and no clock that is earlier or later than any."""


def is_nothing(value: object) -> bool:
    """Whether a value claims no step, time, number or finding."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return repr(value) == repr(type(value)())
    if isinstance(value, tuple):
        return all(map(is_nothing, value))
    return value in NOTHING_YET or not value


@pytest.mark.parametrize("module", MODULES)
def test_whatever_is_remembered_begins_at_nothing(module: str) -> None:
    known, begun, name = importlib.import_module(module), {}, module.rpartition(".")[2]
    for kind in vars(known).values():
        if (
            isinstance(kind, type)
            and dataclasses.is_dataclass(kind)
            and kind.__module__ == known.__name__
        ):
            for field in dataclasses.fields(kind):
                made = field.default_factory
                value = made() if made is not dataclasses.MISSING else field.default
                if value is not dataclasses.MISSING and not is_nothing(value):
                    begun[f"{name}.{kind.__name__}.{field.name}"] = value
    assert begun == {
        path: value for path, value in NOT_NOTHING.items() if path.startswith(f"{name}.")
    }


@pytest.mark.parametrize("kind", REGISTRY, ids=lambda kind: str(kind.name))
def test_a_detector_is_shown_what_it_looks_at(kind: Kind) -> None:
    assert kind.ticks == (kind.observe_tick is not Detector.observe_tick)
    assert kind.steps == (kind.observe_step is not Detector.observe_step)
    assert bool(kind.lines) == (kind.observe_line is not Detector.observe_line)


def test_which_detectors_skip_a_late_tick() -> None:
    assert {str(kind.name) for kind in REGISTRY if kind.deadline} == {
        "no_first_heartbeat",
        "alive_lost",
        "stall",
        "section_deadline",
    }


def test_which_detectors_are_blind_without_a_watcher() -> None:
    assert {str(kind.name) for kind in REGISTRY if kind.probes} == {
        "process_death",
        "alive_lost",
        "imbalance",
        "checkpoint_overdue",
        "watcher",
        "hardware",
    }
