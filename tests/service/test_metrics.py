"""`/metrics` of the control plane: what the database holds, and the workers' exporters."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.metrics import HALTED_S, last_tick
from tests.conftest import demand
from tests.service.conftest import Plane
from tests.service.fake_worker import BOOT_TS, beats

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
ABBREVIATED = {"gonogo_run_toks_per_s", "gonogo_run_floor_toks_per_s"}
"""Names in our own unit, tokens per second, which promtool takes for an abbreviation."""


def scrape(plane: Plane) -> Series:
    answer = plane.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float | None:
    return series.get((name, frozenset(labels.items())))


def running(plane: Plane, upto: int = 20) -> tuple[Any, Any]:
    """Bring an experiment to its smoke phase, and that to a step."""
    plane.submit()
    worker = plane.worker()
    for _ in range(2):
        worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    worker.start(order)
    worker.ship(order, {rank: beats(order, rank, upto=upto) for rank in range(2)})
    return worker, order


def test_an_active_run_is_shown_with_its_limits_and_counted(plane: Plane) -> None:
    _, order = running(plane)
    series = scrape(plane)
    run = {"run": order.run}
    assert (
        value(series, "gonogo_run_active", experiment=order.experiment, phase="smoke", **run) == 1
    )
    assert value(series, "gonogo_run_step", **run) == 20
    assert value(series, "gonogo_run_steps", **run) == 40
    assert value(series, "gonogo_run_loss", **run) == pytest.approx(5.5 - 2.5 * 19 / 40)
    assert value(series, "gonogo_run_toks_per_s", **run) == pytest.approx(1024 / 0.2)
    assert value(series, "gonogo_run_heartbeat_age_limit_seconds", **run) == 5.0
    assert value(series, "gonogo_run_floor_toks_per_s", **run) == 0.0
    assert value(series, "gonogo_run_deadline_timestamp_seconds", **run) is None
    assert value(series, "gonogo_run_lost", **run) == 0.0
    heard = value(series, "gonogo_run_last_heartbeat_timestamp_seconds", **run)
    assert heard == pytest.approx(BOOT_TS + 20 * 0.2)
    plane.wait(lambda: value(scrape(plane), "gonogo_alerts_pending") == 0, "empty outbox")
    assert_totals(plane, scrape(plane))


def test_a_halt_is_counted_and_shown_for_an_hour_after_the_end(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, order = running(plane)
    finding = {
        "v": 1, "detector": "stall", "severity": "halt", "rank": 1, "section": "backward",
        "step": 12, "at": 1.0, "key": "k1", "text": "rank 1 stands", "evidence": [],
    }  # fmt: skip
    body = {"token": order.token, "findings": [finding]}
    assert worker.post(f"/runs/{order.run}/findings", body).is_success
    lines = {rank: beats(order, rank, upto=20) for rank in range(2)}
    worker.end(order, lines, reason="stalled", by="watchdog", findings=1, code=None)
    labels = {"run": order.run, "detector": "stall"}
    assert value(scrape(plane), "gonogo_run_active", run=order.run) is None
    assert value(scrape(plane), "gonogo_run_halted", **labels) == 1
    now = plane.context.now()
    monkeypatch.setattr(plane.context, "now", lambda: now + HALTED_S + 1)
    assert value(scrape(plane), "gonogo_run_halted", **labels) is None
    assert value(scrape(plane), "gonogo_halts_total") == 1


def test_a_runs_series_end_with_it(plane: Plane) -> None:
    worker, order = running(plane, upto=40)
    worker.end(order, {rank: beats(order, rank) for rank in range(2)})
    assert not [name for name, labels in scrape(plane) if ("run", order.run) in labels]


def assert_totals(plane: Plane, series: Series) -> None:
    assert value(series, "gonogo_decisions_total", verdict="GO") == 2
    assert value(series, "gonogo_decisions_total", verdict="NO_GO") == 0
    assert value(series, "gonogo_experiments", state="running") == 1
    assert value(series, "gonogo_experiments", state="finished") == 0
    assert value(series, "gonogo_workers", state="up") == 1
    tick = value(series, "gonogo_conductor_last_tick_timestamp_seconds")
    assert tick is not None
    assert abs(tick - plane.context.now()) < 30


def test_a_service_that_does_not_conduct_has_no_tick() -> None:
    assert last_tick(None) is None


@pytest.mark.needs("prometheus")
def test_promtool_finds_nothing_but_our_own_unit(plane: Plane) -> None:
    running(plane)
    checked = subprocess.run(
        [demand("promtool"), "check", "metrics"],
        input=plane.http.get("/metrics").text,
        capture_output=True,
        text=True,
        check=False,
    )
    said = (checked.stdout + checked.stderr).strip().splitlines()
    assert {line.split()[0] for line in said} == ABBREVIATED
    assert all("abbreviated units" in line for line in said)


def test_workers_are_found_by_their_exporter(plane: Plane) -> None:
    assert plane.http.get("/sd/prometheus").json() == []
    plane.worker("w1").claim(metrics_url="http://host-1:8751/metrics")
    plane.worker("w2", host="host-2").claim(metrics_url="http://[")
    plane.worker("w3", host="host-3").claim(metrics_url="file://host-3/etc/passwd")
    (only,) = plane.http.get("/sd/prometheus").json()
    assert only["targets"] == ["host-1:8751"]
    assert only["labels"]["__metrics_path__"] == "/metrics"
