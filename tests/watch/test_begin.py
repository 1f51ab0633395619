"""How every detector begins: it remembers nothing, and is shown what it looks at."""

import dataclasses
import importlib
import math
import pkgutil

import pytest

from gonogo.watch import detectors
from gonogo.watch.detector import Detector
from gonogo.watch.registry import REGISTRY, Kind

MODULES = [found.name for found in pkgutil.iter_modules(detectors.__path__)]
NOT_NOTHING = {
    "hardware.DeviceHealth.mono": -math.inf,
    "loss.Overflows.searching": True,
}
"""Every sample is later than none, and a loss scale is searched for at first."""


def is_nothing(value: object) -> bool:
    """Whether a value claims no step, time, number or finding."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return value == type(value)()
    if isinstance(value, tuple):
        return all(map(is_nothing, value))
    return not value


@pytest.mark.parametrize("module", MODULES)
def test_whatever_is_remembered_begins_at_nothing(module: str) -> None:
    known = importlib.import_module(f"{detectors.__name__}.{module}")
    begun = {}
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
                    begun[f"{module}.{kind.__name__}.{field.name}"] = value
    assert begun == {
        name: value for name, value in NOT_NOTHING.items() if name.startswith(f"{module}.")
    }


@pytest.mark.parametrize("kind", REGISTRY, ids=lambda kind: str(kind.name))
def test_a_detector_is_shown_what_it_looks_at(kind: Kind) -> None:
    assert kind.ticks == (kind.observe_tick is not Detector.observe_tick)
    assert kind.steps == (kind.observe_step is not Detector.observe_step)
    assert bool(kind.lines) == (kind.observe_line is not Detector.observe_line)


def test_these_rules_are_not_asked_on_a_late_tick() -> None:
    assert {str(kind.name) for kind in REGISTRY if kind.deadline} == {
        "no_first_heartbeat",
        "alive_lost",
        "stall",
        "section_deadline",
    }


def test_these_rules_see_nothing_without_a_watcher() -> None:
    assert {str(kind.name) for kind in REGISTRY if kind.probes} == {
        "process_death",
        "alive_lost",
        "imbalance",
        "checkpoint_overdue",
        "watcher",
        "hardware",
    }
