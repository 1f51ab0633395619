"""Metrics of the active runs: progress, limits, gates and halts."""

import math
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gonogo.contract.order import Order
from service.db.schema import ProgressRow, RunRow
from service.db.store import Session
from service.evidence.gate_now import load_gates_lately
from service.queries.runs import count_halts, load_held, load_recent_halts

LOOK_S = 0.5
"""How long one scrape looks at gates; of many runs some are as old as a few scrapes."""
HALTED_S = 3600.0
"""How long a halt is shown after the run has ended, so that no scrape misses it."""


def collect_runs(session: Session, now: float) -> list[Metric]:
    """Return every family about active runs; `now` in Unix seconds."""
    runs = load_held(session)
    orders = {run.id: Order.model_validate(run.order) for run, _ in runs if run.order}
    families = [*_run_families(runs, orders), *_criterion_families(session, orders)]
    return [*families, *_halt_families(session, now)]


_Read = Callable[[RunRow, ProgressRow, Order | None], float | None]

_PER_RUN: tuple[tuple[str, str, _Read], ...] = (
    ("gonogo_run_step", "Last step of the run.", lambda run, said, order: said.step),
    ("gonogo_run_steps", "Steps ordered.", lambda run, said, order: order.steps if order else None),
    ("gonogo_run_loss", "Loss of the last step.", lambda run, said, order: _float(said.loss)),
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
"""Metric, its help, and where it comes from; what is not known is left out."""


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


def _float(text: str | None) -> float | None:
    return None if text is None else float(text)


def _criterion_families(session: Session, orders: Mapping[str, Order]) -> Iterator[Metric]:
    values = GaugeMetricFamily(
        "gonogo_criterion_value",
        "What a criterion of the gate observes, over the newest steps.",
        labels=["run", "criterion"],
    )
    bounds = GaugeMetricFamily(
        "gonogo_criterion_threshold",
        "Threshold of a criterion.",
        labels=["run", "criterion", "bound"],
    )
    gates = load_gates_lately(session, orders, LOOK_S)
    for run, order in orders.items():
        for result in gates.get(run, ()):
            if isinstance(result.observed, int | float) and math.isfinite(result.observed):
                values.add_metric([run, result.id], float(result.observed))
        for criterion in order.gate:
            for name, value in (
                ("pass", criterion.pass_above),
                ("pass", criterion.pass_below),
                ("fail", criterion.fail_above),
                ("fail", criterion.fail_below),
            ):
                if isinstance(value, int | float):
                    bounds.add_metric([run, criterion.id, name], float(value))
    yield from (values, bounds)


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
