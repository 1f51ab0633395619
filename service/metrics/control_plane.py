"""Metrics of the control plane, read from the database at each scrape.

An answer is kept for a second, since anybody may ask for it. `/sd/prometheus` lists the exporters
of the workers.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gonogo.contract.api import WorkerState
from gonogo.contract.decision import Verdict
from gonogo.contract.lifecycle import ExperimentState
from service.conductor.conductor import Conductor
from service.context import Context
from service.db.schema import WorkerRow
from service.db.store import Session
from service.http.shared_answer import Shared
from service.metrics.goodput import collect_goodput
from service.metrics.runs import collect_runs
from service.queries.callers import count_undelivered, load_workers
from service.queries.experiments import count_states, count_verdicts
from service.views.news import view_worker

FORGOTTEN_S = 86_400.0
"""Seconds after which a silent worker is no target any more."""

_SCHEMES = ("http", "https")
KEPT_S = 1.0
"""How old an answer may be: with ten thousand experiments one takes several ms to make."""
QUICK_S = 5.0
"""Loops of the conductor that turn at least this often report its last tick."""

router = APIRouter(tags=["open"])


Targets = list[dict[str, Any]]


class Open:
    """Answers that need no key, each made once for all requests at a time."""

    def __init__(self, app: FastAPI, context: Context) -> None:
        self.metrics = Shared(lambda: _exposed(context, app.state.conductor), KEPT_S)
        self.targets = Shared(lambda: _targets(context), KEPT_S)


async def _get_open(request: Request) -> Open:
    found: Open = request.app.state.open
    return found


Asked = Annotated[Open, Depends(_get_open)]


@router.get("/metrics", operation_id="show_metrics", response_class=Response)
async def metrics(asked: Asked) -> Response:
    """Return every series of the control plane in Prometheus' text format."""
    return Response(await asked.metrics.get(), headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.get("/sd/prometheus", operation_id="list_prometheus_targets")
async def prometheus_targets(asked: Asked) -> Targets:
    """Return the workers' exporters for Prometheus' http_sd."""
    return await asked.targets.get()


def _exposed(context: Context, conductor: Conductor | None) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(context, conductor))
    return generate_latest(registry)


def _targets(context: Context) -> Targets:
    targets = (_target(row, context.now()) for row in context.store.read(load_workers))
    return [target for target in targets if target is not None]


def _target(row: WorkerRow, now: float) -> dict[str, Any] | None:
    """Return one worker's exporter; a silent one stays a target, so that `up` can say 0.

    None for one that announces none, or what is no address.
    """
    try:
        url = urlsplit(row.claim.metrics_url or "")
    except ValueError:
        return None
    if not url.netloc or url.scheme not in _SCHEMES or now - row.seen_at > FORGOTTEN_S:
        return None
    return {
        "targets": [url.netloc],
        "labels": {
            "worker": row.name,
            "__scheme__": url.scheme,
            "__metrics_path__": url.path or "/metrics",
        },
    }


class ServiceCollector(Collector):
    """Collects what the database says now."""

    def __init__(self, context: Context, conductor: Conductor | None) -> None:
        self._context = context
        self._conductor = conductor

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the series are known at the scrape only."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        now = self._context.now()
        yield from self._context.store.read(lambda session: collect(session, now))
        tick = GaugeMetricFamily(
            "gonogo_conductor_last_tick_timestamp_seconds",
            "Unix time of the conductor's last round; absent where another service conducts.",
        )
        last = last_tick(self._conductor)
        if last is not None:
            tick.add_metric([], last)
        yield tick


def last_tick(conductor: Conductor | None) -> float | None:
    """Return when the slowest of the conductor's quick loops last made a round, Unix seconds."""
    loops = [loop for loop in conductor.loops if loop.every_s <= QUICK_S] if conductor else []
    passes = [loop.last_pass_at for loop in loops]
    return min((at for at in passes if at is not None), default=None)


def collect(session: Session, now: float) -> list[Metric]:
    """Return every family that the database holds; `now` in Unix seconds."""
    return [*collect_runs(session, now), *_totals(session, now)]


def _totals(session: Session, now: float) -> Iterator[Metric]:
    decisions = CounterMetricFamily("gonogo_decisions", "Decisions recorded.", labels=["verdict"])
    by_hand = CounterMetricFamily(
        "gonogo_decisions_by_hand", "Decisions by a person's word.", labels=["verdict"]
    )
    counted = count_verdicts(session)
    for verdict in (*(row.value for row in Verdict), None):
        number, hands = counted.get(verdict, (0, 0))
        decisions.add_metric([verdict or "none"], number)
        if verdict is not None:
            by_hand.add_metric([verdict], hands)
    yield decisions
    yield by_hand
    yield GaugeMetricFamily(
        "gonogo_alerts_pending",
        "Alerts in the outbox, not yet delivered.",
        value=count_undelivered(session),
    )
    experiments = GaugeMetricFamily(
        "gonogo_experiments", "Experiments in each state.", labels=["state"]
    )
    by_state = count_states(session)
    for name in ExperimentState:
        experiments.add_metric([name.value], by_state.get(name.value, 0))
    yield experiments
    workers = GaugeMetricFamily("gonogo_workers", "Workers in each state.", labels=["state"])
    states = [view_worker(row, now).state for row in load_workers(session)]
    for state in WorkerState:
        workers.add_metric([state.value], states.count(state))
    yield workers
    yield from collect_goodput(session, now)
