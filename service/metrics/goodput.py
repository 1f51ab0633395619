"""Metrics of time: device time of the fleet, and the time of each run that is held."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from gonogo.contract.goodput import seconds_of
from service.db.store import Session
from service.queries.runs import HELD
from service.views.goodput import FLEET_HOURS, load_fleet_goodput, load_stored


def collect_goodput(session: Session, now: float) -> Iterator[Metric]:
    """Yield every family about where the time went; `now` in Unix seconds."""
    fleet = GaugeMetricFamily(
        "gonogo_fleet_device_seconds",
        "Device time of the runs that are active or ended within a day, by what it was spent on.",
        labels=["part"],
    )
    for part, seconds in seconds_of(load_fleet_goodput(session, now, FLEET_HOURS)).items():
        fleet.add_metric([part.value], seconds)
    yield fleet
    spent = GaugeMetricFamily(
        "gonogo_run_seconds", "Time of the run, by what it was spent on.", labels=["run", "part"]
    )
    ratio = GaugeMetricFamily(
        "gonogo_run_effective_ratio",
        "Steps that count in the time with devices, 0 to 1; unknown time counts as lost.",
        labels=["run"],
    )
    for run, goodput in load_stored(session, [state.value for state in HELD]):
        for part, seconds in seconds_of(goodput).items():
            if seconds > 0.0:
                spent.add_metric([run, part.value], seconds)
        if goodput.ratio is not None:
            ratio.add_metric([run], goodput.ratio)
    yield from (spent, ratio)
