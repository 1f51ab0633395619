"""Metrics of the control plane and of the active runs, read from the database at each scrape.

`/sd/prometheus` lists the exporters of the workers.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gonogo.contract.api import WorkerState
from gonogo.contract.decision import Verdict
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.order import Order
from service.conductor.conductor import Conductor
from service.context import Context
from service.db.schema import ProgressRow, RunRow, WorkerRow
from service.db.store import Session
from service.http.auth import Service
from service.queries.callers import count_undelivered, load_workers
from service.queries.experiments import count_states, count_verdicts
from service.queries.runs import count_halts, load_held, load_recent_halts
from service.views.rows import view_worker

FORGOTTEN_S = 86_400.0
_SCHEMES = ("http", "https")
QUICK_S = 5.0
"""Loops of the conductor that turn at least this often report its last tick."""
HALTED_S = 3600.0
"""How long a halt is shown after the run has ended, so that no scrape misses it."""
router = APIRouter(tags=["open"])


@router.get("/metrics", operation_id="show_metrics", response_class=Response)
def metrics(request: Request) -> Response:
    """Return every series of the control plane in Prometheus' text format."""
    state, registry = request.app.state, CollectorRegistry(auto_describe=False)
    registry.register(_Families(state.context, state.conductor))
    return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.get("/sd/prometheus", operation_id="list_prometheus_targets")
def prometheus_targets(context: Service) -> list[dict[str, Any]]:
    """Return the workers' exporters for Prometheus' http_sd."""
    targets = (_target(row, context.now()) for row in context.store.read(load_workers))
    return [target for target in targets if target is not None]


def _target(row: WorkerRow, now: float) -> dict[str, Any] | None:
    """Return the exporter of a worker; a silent one stays a target, so that `up` can be 0."""
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


class _Families(Collector):
    def __init__(self, context: Context, conductor: Conductor | None) -> None:
        self._context, self._conductor = context, conductor

    def collect(self) -> Iterator[Metric]:
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
    runs = load_held(session)
    orders = {run.id: Order.model_validate(run.order) for run, _ in runs if run.order}
    return [
        *_run_families(runs, orders),
        *_halt_families(session, now),
        *_totals(session, now),
    ]


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


_Read = Callable[[RunRow, ProgressRow, Order | None], float | None]

_PER_RUN: tuple[tuple[str, str, _Read], ...] = (
    ("gonogo_run_step", "Last step of the run.", lambda run, said, order: said.step),
    ("gonogo_run_steps", "Steps ordered.", lambda run, said, order: order.steps if order else None),
    (
        "gonogo_run_loss",
        "Loss of the last step.",
        lambda run, said, order: None if said.loss is None else float(said.loss),
    ),
    (
        "gonogo_run_toks_per_s",
        "Tokens per second over all ranks.",
        lambda run, said, order: said.toks_per_s,
    ),
    (
        "gonogo_run_last_heartbeat_timestamp_seconds",
        "Unix time of the last heartbeat, by its host's clock.",
        lambda run, said, order: said.heartbeat_at,
    ),
    (
        "gonogo_run_heartbeat_age_limit_seconds",
        "Age from which a heartbeat is late.",
        lambda run, said, order: order.watch.alive_lost.halt_s if order else None,
    ),
    (
        "gonogo_run_floor_toks_per_s",
        "Throughput floor of the profile or plan; 0: none.",
        lambda run, said, order: (order.watch.slow.floor_tok_s or 0.0) if order else 0.0,
    ),
    (
        "gonogo_run_deadline_timestamp_seconds",
        "Unix time by which the run must end; absent: none.",
        lambda run, said, order: _deadline(run, order),
    ),
    ("gonogo_run_lost", "1: no telemetry, no proof of death.", lambda run, said, order: run.lost),
)


def _run_families(
    runs: list[tuple[RunRow, ProgressRow]], orders: Mapping[str, Order]
) -> Iterator[Metric]:
    active = GaugeMetricFamily(
        "gonogo_run_active", "1 from claim to end.", labels=["run", "experiment", "phase"]
    )
    for run, _ in runs:
        active.add_metric([run.id, run.experiment, run.phase], 1)
    yield active
    for name, text, read in _PER_RUN:
        family = GaugeMetricFamily(name, text, labels=["run"])
        for run, said in runs:
            value = read(run, said, orders.get(run.id))
            if value is not None:
                family.add_metric([run.id], float(value))
        yield family


def _deadline(run: RunRow, order: Order | None) -> float | None:
    start = run.started_at or run.claimed_at
    if order is None or order.limits.deadline_s is None or start is None:
        return None
    return start + order.limits.deadline_s


def _halt_families(session: Session, now: float) -> Iterator[Metric]:
    halted = GaugeMetricFamily(
        "gonogo_run_halted",
        "1: a finding halted the run; shown until an hour after its end.",
        labels=["run", "detector"],
    )
    halts = load_recent_halts(session, now - HALTED_S)
    for run, detector in sorted({(run, finding.detector) for run, finding in halts}):
        halted.add_metric([run, detector], 1)
    yield halted
    yield CounterMetricFamily("gonogo_halts", "Findings that halt.", value=count_halts(session))
