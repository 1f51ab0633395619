"""What does MLflow's tracking server cost for what comes nearest? See `bench.control_plane`."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from bench.server_process import AT_ONCE, ServerProcess
from bench.sqlite_rows import insert_row


def build_venv(folder: Path) -> Path:
    """A virtual environment with MLflow, by pip; takes minutes."""
    print("installing MLflow", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(folder / "bin/pip"), "install", "-q", "mlflow"], check=True)
    return folder


def measure_mlflow(
    folder: Path, venv: Path, runs: int, *, idle_s: float = 20.0
) -> dict[str, float]:
    """Every figure that has a likeness there."""
    folder.mkdir()
    _start(folder, venv)[0].close()  # its tables are there: what is timed is not the first start
    server, url = _start(folder, venv)
    server.measure_idle(idle_s)  # its start continues for a while
    try:
        with httpx.Client(base_url=f"{url}/api/2.0/mlflow", timeout=120.0) as http:
            found = {
                "ready": server.ready_s, "ready_cpu": server.ready_cpu_s, "rss": server.rss_mb(),
                "idle_empty": 100 * server.measure_idle(idle_s / 2),
            }  # fmt: skip
            found |= _measure(server, http)
            _fill(folder / "mlflow.db", runs)
            found["idle"] = 100 * server.measure_idle(idle_s)
            search: dict[str, Any] = {"experiment_ids": ["0"], "max_results": 50}
            running = {**search, "filter": "attributes.status = 'RUNNING'"}
            found["list"] = server.cost_ms(lambda: _post(http, "/runs/search", search), 20)
            found["filter"] = server.cost_ms(lambda: _post(http, "/runs/search", running), 20)
            found["rss_full"] = server.rss_mb()
            return found
    finally:
        server.close()


def _start(folder: Path, venv: Path) -> tuple[ServerProcess, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(venv / "bin/mlflow"), "server", "--host", "127.0.0.1", "--port", str(port),
        "--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
    path = f"{venv / 'bin'}:{os.environ.get('PATH', '')}"
    environment = {"PATH": path, "HOME": str(folder), "MLFLOW_DISABLE_TELEMETRY": "true"}
    url = f"http://127.0.0.1:{port}"
    return ServerProcess(command, environment, f"{url}/health", folder / "log"), url


def _post(http: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    answer = http.post(path, json=body)
    if not answer.is_success:
        raise SystemExit(f"{path}: {answer.status_code} {answer.text}")
    return answer.json()


def _measure(server: ServerProcess, http: httpx.Client) -> dict[str, float]:
    def create() -> str:
        body = {"experiment_id": "0", "start_time": int(time.time() * 1000), "run_name": "bench"}
        return str(_post(http, "/runs/create", body)["run"]["info"]["run_id"])

    runs = [create() for _ in range(AT_ONCE)]
    step = 0

    def log(count: int, run: str = runs[0]) -> None:
        nonlocal step
        step += 1
        metrics = [
            {"key": f"m{n % 6}", "value": n / 7, "timestamp": 1_700_000_000_000 + n,
             "step": step * 1000 + n // 6}
            for n in range(count)
        ]  # fmt: skip
        _post(http, "/runs/log-batch", {"run_id": run, "metrics": metrics})

    created = server.cost_ms(create, 100)
    with ThreadPoolExecutor(AT_ONCE) as clients:
        at_once = server.cost_ms(lambda: list(clients.map(partial(log, 6), runs)), 30)
    return {
        "line_at_once": 1e3 * at_once / AT_ONCE / 6,
        "submit": created,
        "submit_json": created,
        "line_big": 1e3 * server.cost_ms(lambda: log(1000), 12) / 1000,
        "line_small": 1e3 * server.cost_ms(lambda: log(6), 60) / 6,
    }


def _fill(database: Path, runs: int) -> None:
    """Make so many runs of the newest one, in the database itself."""
    connection = sqlite3.connect(database, timeout=60)
    connection.row_factory = sqlite3.Row
    with connection:
        model = dict(
            connection.execute("SELECT * FROM runs ORDER BY start_time DESC LIMIT 1").fetchone()
        )
        tags = [
            dict(row)
            for row in connection.execute(
                "SELECT * FROM tags WHERE run_uuid = ?", (model["run_uuid"],)
            )
        ]
        have = connection.execute("SELECT count(*) FROM runs").fetchone()[0]
        for n in range(max(0, runs - have)):
            run = uuid.uuid4().hex
            row = model | {"run_uuid": run, "start_time": model["start_time"] + n}
            insert_row(connection, "runs", row)
            for tag in tags:
                insert_row(connection, "tags", tag | {"run_uuid": run})
    connection.close()
