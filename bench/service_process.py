"""A control plane in a folder of its own, and what its processes cost."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from gonogo.contract.wire import Kind, new_id

_READY_LIMIT_S = 180.0


class ServiceProcess:
    """The service on loopback, with SQLite on disk and all of its processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GONOGO_HOME": str(folder)}
        command = [sys.executable, "-m", "service", "serve", "--port", str(self.port)]
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60.0)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + _READY_LIMIT_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                if self.http.get("/readyz").is_success:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.02)
        raise SystemExit(f"the service is not ready:\n{(self._folder / 'log').read_text()}")

    def close(self) -> None:
        """End it with everything that it started."""
        self.http.close()
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def key(self, name: str) -> str:
        """Return the key in a file of its home."""
        return (self._folder / name).read_text().strip()

    def call(self, method: str, path: str, key: str = "key", **more: Any) -> Any:
        """Return the answer to one request."""
        headers = {"Authorization": f"Bearer {self.key(key)}"} | more.pop("headers", {})
        answer = self.http.request(method, f"/api/v1{path}", headers=headers, **more)
        if not answer.is_success:
            raise SystemExit(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def _tree(self) -> list[list[str]]:
        """Return the fields of /proc/PID/stat after the name, of the process and its children."""
        known: dict[int, list[str]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                known[int(stat.parent.name)] = stat.read_text().rpartition(")")[2].split()
        found = {self._process.pid}
        while more := {pid for pid, row in known.items() if int(row[1]) in found} - found:
            found |= more
        return [known[pid] for pid in found if pid in known]

    def cpu_s(self) -> float:
        """Return CPU seconds of the tree so far, those of its ended children included."""
        ticks = sum(sum(map(int, row[11:15])) for row in self._tree())
        return ticks / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        """Return the megabytes (2^20 bytes) that the tree has resident; shared ones twice."""
        return sum(int(row[21]) for row in self._tree()) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def cost_ms(self, call: Callable[[], object], times: int) -> float:
        """Return CPU milliseconds of one call, the mean over `times`."""
        call()
        began = self.cpu_s()
        for _ in range(times):
            call()
        return (self.cpu_s() - began) * 1e3 / times


def copy_newest(database: Path, count: int) -> list[str]:
    """Put copies of the newest experiment and its run into the database; return their runs."""
    copies = []
    with sqlite3.connect(database, timeout=60) as connection:
        connection.row_factory = sqlite3.Row

        def rows(choice: str, *values: str) -> list[dict[str, Any]]:
            return [dict(row) for row in connection.execute(f"SELECT * FROM {choice}", values)]

        [experiment] = rows("experiments ORDER BY id DESC LIMIT 1")
        of = experiment["id"]
        phases = rows("phases WHERE experiment = ?", of)
        run = rows("runs WHERE experiment = ?", of)[0]
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


def _insert(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))
