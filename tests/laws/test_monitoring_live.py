"""Do the committed Prometheus and Alertmanager files work together in the real programs?

A stand-in serves every metric of docs/reference/metrics.md. The real Prometheus finds it with the
committed configuration (only addresses and intervals are replaced) and answers every query of the
dashboard. An alert travels through the real Alertmanager to a Slack-compatible receiver.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml

from tests.conftest import demand
from tests.laws.test_metrics_law import dashboard_queries, documented
from tests.servers import free_port, wait_until

ROOT = Path(__file__).parents[2]
RULE_TESTS = sorted(map(str, (ROOT / "docker/prometheus").glob("rules_*test.yml")))
SAMPLE = {
    "run": "run_1",
    "experiment": "exp_1",
    "phase": "smoke",
    "rank": "0",
    "criterion": "throughput",
    "bound": "pass",
    "verdict": "GO",
    "detector": "stall",
    "severity": "halt",
    "part": "productive",
}
STATES = ("queued", "awaiting_decision", "free", "taken")


@dataclass(slots=True)
class StandIn:
    """Control plane, worker exporter and Slack in one: serves metrics, keeps what is posted."""

    worker_address: str = ""
    scrapes: int = 0
    posted: list[dict[str, object]] = field(default_factory=list)

    def answer(self, path: str) -> str:
        if path == "/sd/prometheus":
            return json.dumps([{"targets": [self.worker_address], "labels": {}}])
        self.scrapes += 1
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        for name, labels in documented().items():
            value = time.time() if name.endswith("_timestamp_seconds") else 1
            if name in ("gonogo_run_step", "gonogo_rank_step"):
                value = self.scrapes
            elif name == "gonogo_run_steps":
                value = 1_000_000
            shown = [f'{label}="{SAMPLE[label]}"' for label in sorted(labels - {"state"})]
            if "state" in labels:
                for state in STATES:
                    yield f'{name}{{state="{state}"}} {value}'
            elif name == "gonogo_rank_step_duration_seconds":
                for limit in ("60", "600", "+Inf"):
                    yield f'{name}_bucket{{run="run_1",le="{limit}"}} {self.scrapes}'
            else:
                yield f"{name}{{{','.join(shown)}}} {value}"


@contextmanager
def served(stand_in: StandIn) -> Iterator[int]:
    """Serve `stand_in` on loopback; gives the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind = (
                "application/json" if self.path.startswith("/sd") else "text/plain; version=0.0.4"
            )
            self._send(stand_in.answer(self.path), kind)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            stand_in.posted.append(json.loads(body))
            self._send("ok", "text/plain")

        def _send(self, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def started(*command: str, log: Path) -> Iterator[None]:
    """A program that is ended when the block is left."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=120)


get = partial(httpx.get, verify=False)  # certificates take long to load, and none is asked for


def answers(url: str) -> bool:
    try:
        return get(url, timeout=1).status_code == 200
    except httpx.TransportError:
        return False


@dataclass(slots=True, kw_only=True)
class Monitoring:
    """The running pair, and what reached Slack."""

    prometheus: str
    stand_in: StandIn

    def query(self, expr: str) -> list[dict[str, object]]:
        answer = get(f"{self.prometheus}/api/v1/query", params={"query": expr}).json()
        assert answer["status"] == "success", answer
        result: list[dict[str, object]] = answer["data"]["result"]
        return result

    def targets_up(self) -> int:
        targets = get(f"{self.prometheus}/api/v1/targets").json()["data"]["activeTargets"]
        return sum(target["health"] == "up" for target in targets)


def write_configuration(folder: Path, addresses: dict[str, str]) -> None:
    """Copy the committed files, with other addresses and faster intervals only."""
    text = (ROOT / "docker/prometheus/prometheus.yml").read_text()
    for committed, here in addresses.items():
        assert committed in text, f"{committed} is no longer in prometheus.yml"
        text = text.replace(committed, here)
    config = yaml.safe_load(text)
    config["global"] = dict.fromkeys(config["global"], "1s")
    config["scrape_configs"][-1]["http_sd_configs"][0]["refresh_interval"] = "1s"
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "rules.yml").write_text((ROOT / "docker/prometheus/rules.yml").read_text())


@pytest.fixture(scope="module")
def monitoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitoring]:
    programs = demand("prometheus"), demand("alertmanager")
    folder = tmp_path_factory.mktemp("monitoring")
    stand_in = StandIn()
    prometheus, alertmanager = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        port = stack.enter_context(served(stand_in))
        stand_in.worker_address = f"127.0.0.1:{port}"
        (folder / "alerts_url").write_text(f"http://127.0.0.1:{port}/slack")
        text = (ROOT / "docker/alertmanager/alertmanager.yml").read_text()
        text = text.replace("/etc/alertmanager/alerts_url", str(folder / "alerts_url"))
        (folder / "alertmanager.yml").write_text(text)
        write_configuration(
            folder,
            {
                "api:8750": f"127.0.0.1:{port}",
                "alertmanager:9093": alertmanager,
                "localhost:9090": prometheus,
            },
        )
        stack.enter_context(
            started(
                programs[1],
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'alertmanager'}",
                f"--web.listen-address={alertmanager}",
                "--cluster.listen-address=",
                log=folder / "alertmanager.log",
            )
        )
        stack.enter_context(
            started(
                programs[0],
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'prometheus'}",
                f"--web.listen-address={prometheus}",
                "--rules.alert.resend-delay=5s",
                log=folder / "prometheus.log",
            )
        )
        wait_until(lambda: answers(f"http://{alertmanager}/-/ready"), what="Alertmanager")
        wait_until(lambda: answers(f"http://{prometheus}/-/ready"), what="Prometheus")
        yield Monitoring(prometheus=f"http://{prometheus}", stand_in=stand_in)


def test_prometheus_finds_itself_the_service_and_the_workers(monitoring: Monitoring) -> None:
    wait_until(lambda: monitoring.targets_up() == 3, what="three targets")


@pytest.mark.parametrize("expr", dashboard_queries())
def test_every_panel_shows_something(monitoring: Monitoring, expr: str) -> None:
    wait_until(lambda: bool(monitoring.query(expr)), what=f"an answer to {expr}")


def test_a_lost_run_reaches_slack(monitoring: Monitoring) -> None:
    def said() -> str:
        return json.dumps(monitoring.stand_in.posted)

    wait_until(lambda: "GonogoRunLost" in said(), what="the page of the lost run")
    assert "run_1: no telemetry, and no proof that it is dead" in said()


@pytest.mark.parametrize(
    "command",
    [
        ("promtool", "check", "config", "docker/prometheus/prometheus.yml"),
        ("promtool", "check", "rules", "--lint=all", "docker/prometheus/rules.yml"),
        ("promtool", "test", "rules", *RULE_TESTS),
        ("amtool", "check-config", "docker/alertmanager/alertmanager.yml"),
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_the_programs_own_checks_pass(command: tuple[str, ...]) -> None:
    program = demand(command[0])
    checked = subprocess.run(
        [program, *command[1:]], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
