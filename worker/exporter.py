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
from worker.host.home import RunInventory
from worker.host.slots import Slots
from worker.settings import Settings

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_GAUGES = {
    "gonogo_rank_step": ("Step that the rank is in.", "rank"),
    "gonogo_rank_last_heartbeat_timestamp_seconds": ("Last line of the rank.", "rank"),
    "gonogo_rank_loss": ("Last loss that the rank reported.", "rank"),
    "gonogo_detector_armed": ("Whether the detector could fire.", "detector"),
    "gonogo_detector_value": ("What the detector measures.", "detector"),
    "gonogo_detector_limit": ("Where the detector acts.", "detector"),
    "gonogo_watcher_last_tick_timestamp_seconds": ("Last tick of the watcher.", None),
    "gonogo_telemetry_backlog_lines": ("Heartbeat lines not acknowledged.", None),
}
"""Gauge of a run → its help text, and its second label, if any."""

_log = logging.getLogger(__name__)
Sample = tuple[str, str | None, float | None]


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
        yield from _gauges(runs)
        findings = CounterMetricFamily(
            "gonogo_findings", "Findings.", labels=["run", "detector", "severity"]
        )
        steps = HistogramMetricFamily(
            "gonogo_rank_step_duration_seconds", "Duration of training steps.", labels=["run"]
        )
        for run, snapshot in runs.items():
            for name, count in snapshot.findings.items():
                detector, _, severity = name.partition("/")
                findings.add_metric([run, detector, severity], count)
            if snapshot.step_s is not None:
                steps.add_metric([run], snapshot.step_s.cumulated(), snapshot.step_s.sum)
        yield from (findings, steps)


def _gauges(runs: dict[str, Snapshot]) -> Iterator[Metric]:
    families = {
        name: GaugeMetricFamily(name, text, labels=["run", *([] if label is None else [label])])
        for name, (text, label) in _GAUGES.items()
    }
    for run, snapshot in runs.items():
        for name, label, value in _samples(snapshot):
            if value is not None:
                families[name].add_metric([run, *([] if label is None else [label])], value)
    yield from families.values()


def _samples(snapshot: Snapshot) -> Iterator[Sample]:
    for rank, row in snapshot.ranks.items():
        yield "gonogo_rank_step", rank, row.step
        yield "gonogo_rank_last_heartbeat_timestamp_seconds", rank, row.last
        yield "gonogo_rank_loss", rank, row.loss
    for detector, on in snapshot.armed.items():
        yield "gonogo_detector_armed", detector, float(on)
    for detector, near in snapshot.near.items():
        yield "gonogo_detector_value", detector, near.value
        yield "gonogo_detector_limit", detector, near.limit
    yield "gonogo_watcher_last_tick_timestamp_seconds", None, snapshot.tick
    yield "gonogo_telemetry_backlog_lines", None, snapshot.backlog


def start_exporter(view: Callable[[], HostView], host: str, port: int) -> tuple[WSGIServer, int]:
    """Serve `/metrics` in threads of their own; return the server and its port."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(HostCollector(view))
    server, _ = start_http_server(port, host, registry)
    return server, server.server_port


def announce_exporter(settings: Settings, machine: str, slots: Slots) -> str | None:
    """Start the exporter, on loopback where the service is; return its address, or None."""
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
