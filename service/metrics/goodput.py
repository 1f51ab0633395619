"""What does Prometheus see of the time? By part: the fleet's, and of each run that is held and its
experiment, with how much of it counts."""

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
    yield from _families(
        "gonogo_run_seconds", "Time of the run", "run", load_stored(session, _HELD)
    )
    yield from _families(
        "gonogo_experiment_device_seconds",
        "Device time of the experiment's runs",
        "experiment",
        load_stored_of_experiments(session, _HELD),
    )


def _families(
    name: str, what: str, label: str, found: Iterator[tuple[str, Goodput]]
) -> Iterator[Metric]:
    """Yield seconds by part, those that there are, and the ratio, of each of many."""
    parts = GaugeMetricFamily(name, f"{what}, by what it was spent on.", labels=[label, "part"])
    ratio = GaugeMetricFamily(
        f"gonogo_{label}_effective_ratio",
        "Steps that count in the time with devices, 0 to 1; unknown time counts as lost.",
        labels=[label],
    )
    for whose, goodput in found:
        for part, seconds in seconds_of(goodput).items():
            if seconds > 0.0:
                parts.add_metric([whose, part.value], seconds)
        if goodput.ratio is not None:
            ratio.add_metric([whose], goodput.ratio)
    yield parts
    yield ratio
