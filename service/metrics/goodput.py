"""What does Prometheus see of the time? The fleet's by part, and how much of each run's counts."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from gonogo.contract.goodput import seconds_of
from service.db.store import Session
from service.queries.runs import HELD
from service.views.goodput import FLEET_HOURS, load_fleet_goodput, load_run_ratios


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
    ratio = GaugeMetricFamily(
        "gonogo_run_effective_ratio",
        "Steps that count in the time with devices, 0 to 1; unknown time counts as lost.",
        labels=["run"],
    )
    for run, value in load_run_ratios(session, [state.value for state in HELD]):
        ratio.add_metric([run], value)
    yield ratio
