"""What does a control plane cost, and how many runs does it carry? The real service.

    python -m bench.fleet [--runs 100,1000] [--seconds 120]

The runs only send messages. Each has 8 ranks and steps of 25 s, and sends every 10 s. One in 20
falls silent near the end. The service runs on loopback with SQLite on disk. Printed are the time
until a silent run is `run.lost`, false losses and stops, CPU, memory and growth.

Not covered: claims and orders (runs are copies of one in the database), PostgreSQL.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import heapq
import http.client
import json
import os
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gonogo.contract.records import PREFLIGHT_CHECKS, SANITY
from gonogo.contract.wire import Kind, new_id
from gonogo.contract.worker_messages import CLAIM_HEADER
from service.conductor.leases import LEASE_S

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


RANKS = 8
RUNS_PER_SENDER = 60
"""A connection waits for answers of 150 ms and is still on time."""
NOTICED_S = LEASE_S + 15.0
"""How long before the end the last run falls silent, so that it can be noticed."""
STEP_S, EVERY_S, ALIVE_S = 25.0, 10.0, 5.0
WARM_S = 2 * EVERY_S
"""From then on CPU and growth are measured, until the first run falls silent."""
Figures = dict[str, float | None]


@dataclass(slots=True)
class SimulatedRun:
    """A run of the fleet."""

    id: str
    ranks: int
    began: float
    """Seconds of the monotonic clock."""
    silent_s: float | None = None
    """Seconds after the start of the traffic at which its host falls silent."""
    said_at: float = 0.0
    """Unix seconds of its last message that was taken."""
    told_until: float = 0.0
    seqs: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    ticks: int = 0
    watch_bytes: int = 0
    was_silent: bool = False
    """Whether it was ever silent for longer than the lease, for whatever reason."""

    def lines(self, now: float) -> list[dict[str, Any]]:
        """Return what the ranks wrote since the last message, and count it as sent."""
        texts: dict[int, list[str]] = {rank: [] for rank in range(self.ranks)}
        at = self.told_until
        while (moment := at + ALIVE_S) <= now - self.began:
            at = moment
            step = int(at // STEP_S) + 1
            if at % STEP_S < ALIVE_S:
                kinds: tuple[str, ...] = ("progress", "step_end", "step_start")
            else:
                kinds = ("alive",)
            for kind in kinds:
                self.seqs += 1
                for rank in range(self.ranks):
                    texts[rank].append(self._line(kind, rank, step, at))
        self.told_until = at
        return [self._part(rank, rows) for rank, rows in texts.items() if rows]

    def _line(self, kind: str, rank: int, step: int, at: float) -> str:
        said = {
            "v": 1, "ts": 1.7e9 + at, "iso": "2026-01-01T00:00:00.000Z", "mono": 100.0 + at,
            "pid": 4242 + rank, "rank": rank, "boot": f"boot-{rank}", "seq": self.seqs,
            "step": step - (kind in ("progress", "step_end")), "msg": kind, "section": "forward",
            "section_seq": self.seqs,
        }  # fmt: skip
        if kind == "progress":
            said |= {
                "loss": 5.558414709848079 / step, "grad_norm": 1.0540302305868139, "lr": 1e-3,
                "toks_per_s": 10240.125, "dt_fetch_s": 0.004217, "gpu_mem_alloc": 1024.5,
                "gpu_mem_reserved": 2048.0, "host_rss_mb": 300.5,
            }  # fmt: skip
        elif kind == "step_end":
            sections = {"data": 0.1, "forward": 8.0, "backward": 15.0, "optimizer": 1.0}
            said |= {
                "dt_step_s": 25.001, "tokens": 2048, "step_sections": {**sections, "wait": 0.5},
            }  # fmt: skip
        elif kind == "alive":
            said |= {"section_age_s": at % STEP_S, "collective_seq": 12 * step}
        return json.dumps(said, separators=(",", ":"))

    def _part(self, rank: int, rows: list[str]) -> dict[str, Any]:
        start = self.offsets.get(rank, 0)
        end = start + sum(map(len, rows)) + len(rows)
        self.offsets[rank] = end
        return {"rank": rank, "start": start, "end": end, "lines": rows}

    def watched(self) -> dict[str, Any]:
        """Return the watcher's ticks since the last message: one for each moment with lines."""
        rows = []
        for _ in range(round(EVERY_S / ALIVE_S)):
            self.ticks += 1
            upto = {str(rank): end for rank, end in self.offsets.items()}
            ranks = [{"rank": rank, "pid": 4242 + rank, "state": "alive"} for rank in self.offsets]
            tick = {
                "v": 1,
                "go": True,
                "prev": "0" * 64,
                "n": self.ticks,
                "mono": 5.0 * self.ticks,
                "ts": 1.7e9 + 5.0 * self.ticks,
                "upto": upto,
                "ranks": ranks,
            }
            rows.append(json.dumps(tick, separators=(",", ":")) + "\n")
        content = "".join(rows).encode()
        start = self.watch_bytes
        self.watch_bytes += len(content)
        return {
            "name": "watch.jsonl",
            "start": start,
            "content_b64": base64.b64encode(content).decode(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The credentials of the runs: all are copies of one claimed run."""

    secret: str
    token: int
    run: str


class Sender(threading.Thread):
    """Sends the messages of some runs over one connection, from `start` until `until`.

    Attributes:
        waits_s: seconds until each answer.
        refused: status → how many messages got it; 0: no answer.
        commands: runs that received a command to stop.
    """

    def __init__(
        self,
        service: ServiceProcess,
        held: Held,
        runs: list[SimulatedRun],
        start: float,
        until: float,
    ) -> None:
        super().__init__(daemon=True)
        self.waits_s: list[float] = []
        self.refused: Counter[int] = Counter()
        self.commands: set[str] = set()
        self._http = http.client.HTTPConnection("127.0.0.1", service.port, timeout=120)
        self._headers = {
            "Authorization": f"Bearer {service.key('worker_key')}",
            CLAIM_HEADER: held.secret,
            "Content-Type": "application/json",
        }
        self._token, self._start, self._until = held.token, start, until
        self._due = [
            (start + EVERY_S * n / max(1, len(runs)), n, run) for n, run in enumerate(runs)
        ]

    def run(self) -> None:
        """Send until the time is over."""
        while self._due:
            due, number, run = heapq.heappop(self._due)
            if due > self._until:
                return
            time.sleep(max(0.0, due - time.monotonic()))
            if run.silent_s is None or due - self._start < run.silent_s:
                self._send(run)
                heapq.heappush(self._due, (due + EVERY_S, number, run))

    def _send(self, run: SimulatedRun) -> None:
        lines = run.lines(time.monotonic())
        body = {"token": self._token, "ranks": lines, "files": [run.watched()]}
        path, began = f"/api/v1/agent/runs/{run.id}/telemetry", time.monotonic()
        try:
            self._http.request("POST", path, json.dumps(body).encode(), self._headers)
            answer = self._http.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self._http.close()
            self.refused[0] += 1
            return
        self.waits_s.append(time.monotonic() - began)
        if answer.status != 200:
            self.refused[answer.status] += 1
            return
        now = time.time()
        run.was_silent |= 0.0 < run.said_at < now - LEASE_S
        run.said_at = now
        if json.loads(content).get("command"):
            self.commands.add(run.id)


def begin_run(service: ServiceProcess) -> Held:
    """Submit an experiment of 8 ranks, claim its run and let it begin to train."""
    change = {"workload.world_size": RANKS, "train.batch.global_seqs": RANKS}
    service.call("POST", "/experiments", json={"plan": "demo", "set": change})
    claim = {
        "worker": "fleet", "host": "fleet", "boot_id": "b", "pid": 1, "version": "0",
        "devices": ["cpu:0"], "free": ["cpu:0"],
    }  # fmt: skip
    answer = service.call("POST", "/agent/claims", key="worker_key", json=claim)
    order = answer["order"]
    checks = [{"id": name, "outcome": "pass", "text": "ok"} for name in (*PREFLIGHT_CHECKS, SANITY)]
    for event, more in (
        ("check", {}),
        ("launch", {"preflight": {"passed": True, "checks": checks}}),
        ("step", {}),
    ):
        service.call(
            "POST",
            f"/agent/runs/{order['run']}/state",
            key="worker_key",
            headers={CLAIM_HEADER: answer["secret"]},
            json={"token": order["token"], "event": event, "at": time.time(), **more},
        )
    return Held(secret=answer["secret"], token=order["token"], run=order["run"])


def measure(count: int, seconds: float, folder: Path) -> Figures:
    """Return every figure of a fleet of so many runs."""
    folder.mkdir()
    service = ServiceProcess(folder)
    try:
        held = begin_run(service)
    finally:
        service.close()
    ids = [held.run, *copy_newest(folder / "gonogo.db", count - 1)]
    service = ServiceProcess(folder)
    try:
        start = time.monotonic() + 1.0
        quiet_s = WARM_S + (seconds - NOTICED_S - WARM_S) * 0.6
        runs = _runs(ids, start, quiet_s, seconds - NOTICED_S)
        parts = min(count, max(8, count // RUNS_PER_SENDER))
        senders = [
            Sender(service, held, runs[n::parts], start, start + seconds) for n in range(parts)
        ]
        for thread in senders:
            thread.start()
        time.sleep(WARM_S)
        cpu, size, began = service.cpu_s(), _bytes(folder), time.monotonic()
        time.sleep(max(0.0, start + quiet_s - time.monotonic()))
        took = time.monotonic() - began
        cores, grown = (service.cpu_s() - cpu) / took, _bytes(folder) - size
        for sender in senders:
            sender.join()
        rss_mb = service.rss_mb()
        time.sleep(2.0)  # the leases' last look
        found = _found(folder / "gonogo.db", runs, senders)
    finally:
        service.close()
    return {
        "runs": count,
        "cores": cores,
        "db_mb_per_run_h": grown / 2**20 / (count * took / 3600.0),
        "rss_mb": rss_mb,
        **found,
    }


def _runs(ids: list[str], start: float, from_s: float, until_s: float) -> list[SimulatedRun]:
    """Return the runs; one in 20 of them, 20 at least, falls silent at a time of its own."""
    count = len(ids)
    silent = range(0, count, max(5, count // max(20, count // 20)))
    return [
        SimulatedRun(
            id=run,
            ranks=RANKS,
            began=start - EVERY_S,
            silent_s=from_s + (until_s - from_s) * n / count if n in silent else None,
        )
        for n, run in enumerate(ids)
    ]


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("gonogo.db*"))


def _found(database: Path, runs: list[SimulatedRun], senders: list[Sender]) -> Figures:
    """Return how messages were answered, what was called lost, and what was halted for nothing."""
    connection = sqlite3.connect(database)
    lost: dict[str, float] = {}
    for run, at in connection.execute("SELECT run, at FROM events WHERE type = 'run.lost'"):
        lost.setdefault(run, at)
    ended = {run for (run,) in connection.execute("SELECT id FROM runs WHERE state = 'ended'")}
    connection.close()
    gone = [run for run in runs if run.silent_s is not None]
    last = max(run.said_at for run in runs)
    may = {run.id for run in runs if run.was_silent or run.said_at < last - LEASE_S}
    latencies = [lost[run.id] - run.said_at for run in gone if run.id in lost]
    waits = [wait for sender in senders for wait in sender.waits_s]
    return {
        "messages": len(waits),
        "refused": sum(sender.refused.total() for sender in senders),
        "answer_p99_s": _p99(waits),
        "lost_p99_s": _p99(latencies),
        "gone": len(gone),
        "gone_missed": sum(run.id not in lost for run in gone),
        "lost_without_reason": len(set(lost) - may),
        "halted_without_reason": len(ended.union(*(sender.commands for sender in senders))),
    }


def _p99(values: Iterable[float]) -> float | None:
    known = list(values)
    if len(known) < 2:
        return None
    return statistics.quantiles(known, n=100, method="inclusive")[98]


ROWS = {
    "cores": "CPU of the service, cores",
    "db_mb_per_run_h": "database per run-hour, MB",
    "rss_mb": "resident, MB",
    "messages": "messages",
    "refused": "messages refused",
    "answer_p99_s": "a message's answer, p99, s",
    "gone": "runs that fell silent",
    "lost_p99_s": f"silent until run.lost, p99 (≤ {LEASE_S + 5:g}), s",
    "gone_missed": "silent runs that were not called lost",
    "lost_without_reason": "runs called lost without reason",
    "halted_without_reason": "runs halted without reason",
}


def main() -> None:
    """Print one table, a column a size."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", allow_abbrev=False)
    parser.add_argument("--runs", default="100,1000", help="sizes, separated by commas")
    parser.add_argument("--seconds", type=float, default=120.0, help="of traffic, 90 or more")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gonogo-fleet-") as name:
        sizes = map(int, given.runs.split(","))
        found = [measure(count, given.seconds, Path(name) / str(count)) for count in sizes]
    print(f"{'runs':<44}" + "".join(f"{row['runs']:>12}" for row in found))
    for key, text in ROWS.items():
        cells = (f"{'–':>12}" if row[key] is None else f"{row[key]:>12.3g}" for row in found)
        print(f"{text:<44}{''.join(cells)}")


if __name__ == "__main__":
    main()
