"""What does the control plane cost? CPU of the server for one unit of work.

    python -m bench.control_plane [--experiments 10000]

One process serves SQLite on loopback, mostly to one client. Measured:

- a submission (a bundled plan; the same as JSON) with a created run;
- a heartbeat line in a message of 5000, of 6, and of 6 from eight runs at once;
- a list of 50, a filtered list and a scrape with many queued experiments;
- CPU while idle with that queue, the time until it answers, and memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from bench.server_process import AT_ONCE, ServerProcess
from gonogo.contract.agent import CLAIM_HEADER
from gonogo.contract.ids import Kind, new_id
from gonogo.planning.source import bundled_plan

Figures = dict[str, float]
ROWS = (
    ("submit", "submission, bundled plan", "ms"),
    ("submit_json", "submission, plan as JSON", "ms"),
    ("line_big", "ingest, a line of 5000", "µs"),
    ("line_small", "ingest, a line of 6", "µs"),
    ("line_at_once", "the same, 8 at once", "µs"),
    ("list", "list of 50", "ms"),
    ("filter", "list with a filter", "ms"),
    ("metrics", "/metrics", "ms"),
    ("idle", "asked nothing, queue full", "% of a core"),
    ("idle_empty", "asked nothing, empty", "% of a core"),
    ("ready", "ready after", "s"),
    ("ready_cpu", "ready after, CPU", "s"),
    ("rss", "resident when ready", "MB"),
    ("rss_full", "resident at the end", "MB"),
)


def heartbeat_lines(rank: int, first_step: int, count: int) -> list[str]:
    """So many lines as a trainer writes them, three a step, from a step on."""
    lines = []
    for n in range(count):
        step, seq = first_step + n // 3, 3 * (first_step - 1) + n + 1
        said: dict[str, Any] = {
            "v": 1, "ts": 1.7e9 + seq * 0.0667, "mono": 100 + seq * 0.0667, "pid": 4242,
            "rank": rank, "boot": f"boot-{rank}", "seq": seq, "step": step,
        }  # fmt: skip
        if n % 3 == 0:
            said |= {"msg": "step_start", "section": "data", "section_seq": 5 * step}
        elif n % 3 == 1:
            said |= {
                "msg": "progress", "section": "log", "section_seq": 5 * step + 4,
                "loss": 5.558414709848079 / step, "grad_norm": 1.0540302305868139, "lr": 1e-3,
                "toks_per_s": 10240.125, "dt_fetch_s": 0.004217, "gpu_mem_alloc": 1024.5,
                "gpu_mem_reserved": 2048.0, "host_rss_mb": 300.5,
            }  # fmt: skip
        else:
            sections = {"data": 0.005, "forward": 0.06, "backward": 0.12, "optimizer": 0.02}
            said |= {
                "msg": "step_end", "section": None, "section_seq": 5 * step + 5,
                "dt_step_s": 0.2001, "tokens": 2048, "step_sections": {**sections, "wait": 0.001},
            }  # fmt: skip
        lines.append(json.dumps(said, separators=(",", ":")))
    return lines


class Plane:
    """One control plane in a folder of its own."""

    def __init__(self, folder: Path, redis_url: str | None) -> None:
        self.home = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GONOGO_HOME": str(folder)}
        if redis_url is not None:
            environment["REDIS_URL"] = redis_url
        command = [sys.executable, "-m", "service", "serve", "--port", str(port)]
        self.server = ServerProcess(command, environment, f"{url}/readyz", folder / "log")
        self.http = httpx.Client(base_url=url, timeout=60.0)

    def close(self) -> None:
        """End it."""
        self.http.close()
        self.server.close()

    def call(self, method: str, path: str, key: str = "key", **more: Any) -> Any:
        """Ask, and return the answer."""
        bearer = {"Authorization": f"Bearer {(self.home / key).read_text().strip()}"}
        headers = bearer | more.pop("headers", {})
        answer = self.http.request(method, f"/api/v1{path}", headers=headers, **more)
        if not answer.is_success:
            raise SystemExit(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()


def measure(
    folder: Path, experiments: int, redis_url: str | None, *, idle_s: float = 20.0
) -> Figures:
    """Every figure of the control plane."""
    folder.mkdir()
    Plane(folder, redis_url).close()  # migrated: what is timed is a start, not the first one
    plane = Plane(folder, redis_url)
    server = plane.server
    try:
        found: Figures = {
            "ready": server.ready_s, "ready_cpu": server.ready_cpu_s, "rss": server.rss_mb(),
            "idle_empty": 100 * server.measure_idle(idle_s / 2),
        }  # fmt: skip
        demo = bundled_plan("demo")
        post = plane.call
        found["submit"] = server.cost_ms(
            lambda: post("POST", "/experiments", json={"plan": "demo"}), 200
        )
        found["submit_json"] = server.cost_ms(
            lambda: post("POST", "/experiments", json={"plan": demo}), 200
        )
        found |= _ingest(plane)
        copy_newest(folder / "gonogo.db", experiments)
        server.measure_idle(idle_s / 2)  # the waker's first look at the queue
        found["idle"] = 100 * server.measure_idle(idle_s)
        found |= _looking(plane)
        found |= _at_once(plane)  # last: lists compute a forecast for each active run
        found["rss_full"] = server.rss_mb()
        return found
    finally:
        plane.close()


class Watcher:
    """The messages of a run of two ranks, as its watcher sends them."""

    def __init__(self, plane: Plane, number: int) -> None:
        claim = {
            "worker": f"bench-0a1b2c-{number}", "host": "bench", "boot_id": "b", "pid": 1,
            "version": "0", "devices": ["cpu:0"], "free": ["cpu:0"],
        }  # fmt: skip
        answer = plane.call("POST", "/agent/claims", key="worker_key", json=claim)
        self._plane, self._order = plane, answer["order"]
        self._headers = {CLAIM_HEADER: answer["secret"]}
        self._offset = {0: 0, 1: 0}
        self._step = 1

    def send(self, count: int) -> None:
        """Send so many heartbeat lines in one message."""
        ranks = []
        for rank in (0, 1):
            lines = heartbeat_lines(rank, self._step, count // 2)
            start = self._offset[rank]
            self._offset[rank] = start + sum(len(line) + 1 for line in lines)
            ranks.append({"rank": rank, "start": start, "end": self._offset[rank], "lines": lines})
        self._step += -(-count // 6)
        ack = self._plane.call(
            "POST",
            f"/agent/runs/{self._order['run']}/telemetry",
            key="worker_key",
            headers=self._headers,
            json={"token": self._order["token"], "ranks": ranks},
        )
        if ack["acked"] != {str(rank): end for rank, end in self._offset.items()}:
            raise SystemExit(f"not taken: {ack}")


def _ingest(plane: Plane) -> Figures:
    cost, one = plane.server.cost_ms, Watcher(plane, 0)
    return {
        "line_big": 1e3 * cost(lambda: one.send(5000), 12) / 5000,
        "line_small": 1e3 * cost(lambda: one.send(6), 300) / 6,
    }


def _at_once(plane: Plane) -> Figures:
    watchers = [Watcher(plane, number + 1) for number in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as clients:

        def send_all() -> None:
            list(clients.map(lambda watcher: watcher.send(6), watchers))

        each = plane.server.cost_ms(send_all, 60) / AT_ONCE
    return {"line_at_once": 1e3 * each / 6}


def copy_newest(database: Path, count: int) -> list[str]:
    """Put copies of the newest experiment and its run into the database; return their runs."""
    copies = []
    with sqlite3.connect(database, timeout=60) as connection:
        connection.row_factory = sqlite3.Row

        def rows(choice: str, *values: str) -> list[dict[str, Any]]:
            return [dict(row) for row in connection.execute(f"SELECT * FROM {choice}", values)]

        [experiment] = rows("experiments ORDER BY id DESC LIMIT 1")
        of = experiment["id"]
        phases, run = (
            rows("phases WHERE experiment = ?", of),
            rows("runs WHERE experiment = ?", of)[0],
        )
        [progress] = rows("progress WHERE run = ?", run["id"])
        for _ in range(count):
            name, copy = new_id(Kind.EXPERIMENT), new_id(Kind.RUN)
            order = run["order"] and run["order"].replace(run["id"], copy).replace(of, name)
            _insert(connection, "experiments", experiment | {"id": name})
            for phase in phases:
                _insert(connection, "phases", phase | {"experiment": name})
            _insert(connection, "runs", run | {"id": copy, "experiment": name, "order": order})
            _insert(connection, "progress", progress | {"run": copy})
            copies.append(copy)
    connection.close()
    return copies


def _looking(plane: Plane) -> Figures:
    def get(path: str, **params: Any) -> Callable[[], Any]:
        return lambda: plane.call("GET", path, params=params)

    def scrape() -> None:
        plane.http.get("/metrics").raise_for_status()

    cost = plane.server.cost_ms
    found = {
        "list": cost(get("/experiments", limit=50), 40),
        "filter": cost(get("/experiments", limit=50, state="running"), 40),
    }
    return {**found, "metrics": cost(scrape, 10)}


def _insert(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))


def main() -> None:
    """Print one line a figure."""
    parser = argparse.ArgumentParser(prog="python -m bench.control_plane", allow_abbrev=False)
    parser.add_argument("--experiments", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gonogo-bench-") as name:
        folder = Path(name)
        redis = _start_redis(folder)
        try:
            found = measure(
                folder / "home", given.experiments, redis and f"unix://{folder}/redis.sock"
            )
        finally:
            if redis is not None:
                redis.terminate()
                redis.wait()
    for key, text, unit in ROWS:
        print(f"{text:<28}" + (f"{found[key]:>10.2f}  {unit}" if key in found else "      open"))


def _start_redis(folder: Path) -> subprocess.Popen[bytes] | None:
    """A Redis for the wake messages, where the machine has one."""
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        return None
    options = ["--port", "0", "--unixsocket", f"{folder}/redis.sock", "--save", ""]
    return subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, cwd=folder)


if __name__ == "__main__":
    main()
