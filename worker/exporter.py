"""Prometheus exporter of this host and its living runs.

`/metrics` on `GONOGO_WORKER_METRICS_PORT` (0 takes a free port; the claim announces the address),
one exporter a host. Each watcher writes its values to `.metrics.json`
(`gonogo.supervise.watcher.metrics_file`); nothing is kept here. Only the `run` label is unbounded,
and the series of a run end with its keeper.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gonogo.supervise.watcher.metrics_file import Snapshot, load_metrics
from worker.host.open_runs import RunInventory
from worker.host.slots import Slots
from worker.settings import Settings

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """What the exporter reads at each scrape."""

    devices: int
    free: int
    live: dict[str, Path]
    """Run id → directory of each run with a living keeper."""


class HostCollector(Collector):
    """Collects the host's devices and its live runs."""

    def __init__(self, view: Callable[[], HostView]) -> None:
        self._view = view

    def describe(self) -> Iterable[Metric]:
        """Return nothing: series are known at the scrape only."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        view = self._view()
        yield GaugeMetricFamily("gonogo_worker_up", "Whether the worker runs.", value=1)
        devices = GaugeMetricFamily(
            "gonogo_worker_devices", "Devices of the worker by state.", labels=["state"]
        )
        devices.add_metric(["free"], view.free)
        devices.add_metric(["taken"], view.devices - view.free)
        yield devices
        found = {run: load_metrics(path) for run, path in view.live.items()}
        runs = {run: snapshot for run, snapshot in found.items() if snapshot is not None}
        yield from _rank_families(runs)
        yield from _watch_families(runs)
        yield _step_family(runs)


def _rank_families(runs: dict[str, Snapshot]) -> Iterator[Metric]:
    labels = ["run", "rank"]
    step = GaugeMetricFamily("gonogo_rank_step", "Step that the rank is in.", labels=labels)
    last = GaugeMetricFamily(
        "gonogo_rank_last_heartbeat_timestamp_seconds", "Last line of the rank.", labels=labels
    )
    loss = GaugeMetricFamily("gonogo_rank_loss", "Last loss that the rank said.", labels=labels)
    for run, snapshot in runs.items():
        for rank, said in snapshot.ranks.items():
            for family, value in ((step, said.step), (last, said.last), (loss, said.loss)):
                if value is not None:
                    family.add_metric([run, rank], value)
    yield from (step, last, loss)


def _watch_families(runs: dict[str, Snapshot]) -> Iterator[Metric]:
    armed = GaugeMetricFamily(
        "gonogo_detector_armed", "Whether the detector could fire.", labels=["run", "detector"]
    )
    findings = CounterMetricFamily(
        "gonogo_findings", "Findings.", labels=["run", "detector", "severity"]
    )
    tick = GaugeMetricFamily(
        "gonogo_watcher_last_tick_timestamp_seconds", "Last tick of the watcher.", labels=["run"]
    )
    backlog = GaugeMetricFamily(
        "gonogo_telemetry_backlog_lines", "Heartbeat lines not acknowledged.", labels=["run"]
    )
    value = GaugeMetricFamily(
        "gonogo_detector_value", "What the detector measures.", labels=["run", "detector"]
    )
    limit = GaugeMetricFamily(
        "gonogo_detector_limit", "Where the detector acts.", labels=["run", "detector"]
    )
    for run, snapshot in runs.items():
        for detector, on in snapshot.armed.items():
            armed.add_metric([run, detector], float(on))
        for detector, row in snapshot.near.items():
            for family, number in ((value, row.value), (limit, row.limit)):
                if number is not None:
                    family.add_metric([run, detector], number)
        for name, count in snapshot.findings.items():
            detector, _, severity = name.partition("/")
            findings.add_metric([run, detector, severity], count)
        if snapshot.tick is not None:
            tick.add_metric([run], snapshot.tick)
        backlog.add_metric([run], snapshot.backlog)
    yield from (armed, value, limit, findings, tick, backlog)


def _step_family(runs: dict[str, Snapshot]) -> Metric:
    family = HistogramMetricFamily(
        "gonogo_rank_step_duration_seconds", "Duration of training steps.", labels=["run"]
    )
    for run, snapshot in runs.items():
        if snapshot.step_s is not None and snapshot.step_s.fits:
            family.add_metric([run], snapshot.step_s.cumulated(), snapshot.step_s.sum)
    return family


def start_exporter(view: Callable[[], HostView], host: str, port: int) -> tuple[WSGIServer, int]:
    """Serve `/metrics` in threads of their own; return the server and its port.

    Raises:
        OSError: the port is taken.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(HostCollector(view))
    server, _ = start_http_server(port, host, registry)
    return server, server.server_port


def announce_exporter(settings: Settings, machine: str, slots: Slots) -> str | None:
    """Start the exporter; return its address, or None when it cannot be started.

    It listens on loopback when the control plane is there too, else on every interface. A second
    worker of the host takes a free port.
    """
    near = urlsplit(settings.url).hostname in _LOOPBACK
    address = "127.0.0.1" if near else "0.0.0.0"
    inventory = RunInventory(settings.runs, machine)

    def view() -> HostView:
        live = {run.run: run.path for run in inventory.open_runs() if run.keeper is not None}
        return HostView(devices=len(slots.names), free=len(slots.free()), live=live)

    for port in dict.fromkeys((settings.metrics_port, 0)):
        try:
            _, taken = start_exporter(view, address, port)
        except OSError as error:
            _log.warning("port %d: %s", port, error, extra={"action": "exporter_port"})
            continue
        return f"http://{address if near else settings.host}:{taken}/metrics"
    return None
