"""Does Prometheus see each live run, and nothing of one that has ended?"""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gonogo.supervise.watcher.journal import BOUNDS_S, StepTimes
from gonogo.supervise.watcher.metrics_file import save_metrics
from tests.supervise.orders import make_order
from worker.exporter import HostCollector, HostView, start_exporter


def step_times(*durations_s: float) -> dict[str, Any]:
    found = StepTimes()
    for seconds in durations_s:
        found.add(seconds)
    return found.model_dump()


METRICS = {
    "tick": 1000.5,
    "backlog": 4,
    "ranks": {
        "0": {"step": 7, "last": 1000.0, "loss": 2.5},
        "1": {"step": 6, "last": 999.0, "loss": None},
    },
    "armed": {"stall": True, "slow": False},
    "near": {
        "stall": {"value": 2.5, "limit": 60.0, "unit": "s"},
        "slow": {"blind": "nothing to measure yet"},
    },
    "findings": {"stall/suspect": 2, "stall/halt": 1},
    "step_s": step_times(0.2, 0.3, 700.0),
}


def scrape(view: HostView) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(HostCollector(lambda: view))
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def live(tmp_path: Path) -> HostView:
    run = make_order().run
    (tmp_path / run).mkdir()
    save_metrics(tmp_path / run / ".metrics.json", METRICS)
    return HostView(devices=2, free=1, live={run: tmp_path / run})


def test_a_live_run_shows_what_its_watcher_said(live: HostView) -> None:
    found = scrape(live)
    (run,) = live.live
    assert found["gonogo_worker_up", ()] == 1
    assert found["gonogo_worker_devices", (("state", "free"),)] == 1
    assert found["gonogo_worker_devices", (("state", "taken"),)] == 1
    assert found["gonogo_rank_step", (("rank", "1"), ("run", run))] == 6
    assert found["gonogo_rank_loss", (("rank", "0"), ("run", run))] == 2.5
    assert ("gonogo_rank_loss", (("rank", "1"), ("run", run))) not in found
    assert found["gonogo_detector_armed", (("detector", "slow"), ("run", run))] == 0
    stall, slow = ((("detector", name), ("run", run)) for name in ("stall", "slow"))
    assert found["gonogo_detector_value", stall] == 2.5
    assert found["gonogo_detector_limit", stall] == 60.0
    assert ("gonogo_detector_value", slow) not in found
    halts = (("detector", "stall"), ("run", run), ("severity", "halt"))
    assert found["gonogo_findings_total", halts] == 1
    assert found["gonogo_watcher_last_tick_timestamp_seconds", (("run", run),)] == 1000.5
    assert found["gonogo_telemetry_backlog_lines", (("run", run),)] == 4


def test_step_durations_are_a_histogram_that_reaches_ten_minutes(live: HostView) -> None:
    found = scrape(live)
    (run,) = live.live

    def bucket(bound: str) -> float:
        return found["gonogo_rank_step_duration_seconds_bucket", (("le", bound), ("run", run))]

    assert [bucket("0.1"), bucket("0.25"), bucket("0.5"), bucket("600.0")] == [0, 1, 2, 2]
    assert bucket("+Inf") == 3
    assert found["gonogo_rank_step_duration_seconds_count", (("run", run),)] == 3
    assert math.isclose(found["gonogo_rank_step_duration_seconds_sum", (("run", run),)], 700.5)
    assert BOUNDS_S[-2] == 600


@pytest.mark.needs("promtool")
def test_promtool_has_nothing_to_say_against_the_names(live: HostView) -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(HostCollector(lambda: live))
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=generate_latest(registry),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_the_exporter_answers_over_http_on_a_free_port(live: HostView) -> None:
    server, port = start_exporter(lambda: live, "127.0.0.1", 0)
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert "gonogo_worker_up 1.0" in text
        with pytest.raises(OSError, match="in use"):
            start_exporter(lambda: live, "127.0.0.1", port)
    finally:
        server.shutdown()
        server.server_close()
