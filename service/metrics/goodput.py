"""Metrics of time: of the fleet, of each run that is held, and of its experiment."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from gonogo.contract.goodput import Goodput, seconds_of
from service.db.store import Session
from service.queries.runs import HELD
from service.views.goodput import (
    FLEET_HOURS,
    load_fleet_goodput,
    load_stored,
    load_stored_of_experiments,
)

_HELD = [state.value for state in HELD]
_RATIO = "Steps that count in the time with devices, 0 to 1; unknown time counts as lost."


def collect_goodput(session: Session, now: float) -> Iterator[Metric]:
    """Yield every family about where the time went.

    Args:
        session: reads.
        now: Unix seconds.
    """
    fleet = GaugeMetricFamily(
        "gonogo_fleet_device_seconds",
        "Device time of the runs that go on or ended within a day, by what it was spent on.",
        labels=["part"],
    )
    for part, seconds in seconds_of(load_fleet_goodput(session, now, FLEET_HOURS)).items():
        fleet.add_metric([part.value], seconds)
    yield fleet
    of_run = GaugeMetricFamily(
        "gonogo_run_seconds", "Time of the run, by what it was spent on.", labels=["run", "part"]
    )
    ratio_of_run = GaugeMetricFamily("gonogo_run_effective_ratio", _RATIO, labels=["run"])
    yield from _filled(of_run, ratio_of_run, load_stored(session, _HELD))
    of_experiment = GaugeMetricFamily(
        "gonogo_experiment_device_seconds",
        "Device time of the experiment's runs, by what it was spent on.",
        labels=["experiment", "part"],
    )
    ratio_of_experiment = GaugeMetricFamily(
        "gonogo_experiment_effective_ratio", _RATIO, labels=["experiment"]
    )
    found = load_stored_of_experiments(session, _HELD)
    yield from _filled(of_experiment, ratio_of_experiment, found)


def _filled(
    parts: GaugeMetricFamily, ratio: GaugeMetricFamily, found: Iterator[tuple[str, Goodput]]
) -> Iterator[Metric]:
    """Yield both with the seconds by part, those that there are, and the ratio of each of many."""
    for whose, goodput in found:
        for part, seconds in seconds_of(goodput).items():
            if seconds > 0.0:
                parts.add_metric([whose, part.value], seconds)
        if goodput.ratio is not None:
            ratio.add_metric([whose], goodput.ratio)
    yield parts
    yield ratio
