"""How many runs does one control plane carry? The real service, and runs that only speak.

    python -m bench.fleet [--runs 100,1000] [--seconds 120] [--no-scrape] [--json]

Each run has 8 ranks and steps of 25 s, and sends a message every 10 s. One in 20 falls silent near
the end. The service runs on loopback with SQLite on disk and is scraped every 15 s. Printed are the
time until a silent run is `run.lost`, false losses and stops, CPU, memory and growth.

Not covered: claims and orders (runs are copies of one in the database), PostgreSQL.
"""

from __future__ import annotations

import argparse
import base64
import heapq
import http.client
import json
import sqlite3
import statistics
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench.control_plane import Plane, copy_newest
from gonogo.contract.records import PREFLIGHT_CHECKS, SANITY

LEASE_S = 30.0
RANKS = 8
RUNS_PER_SENDER = 60
"""A connection waits for answers of 150 ms and is still on time."""
NOTICED_S = LEASE_S + 15.0
"""How long before the end the last run falls silent, so that it can be noticed."""
LEAST_SILENT = 20
STEP_S, EVERY_S, ALIVE_S = 25.0, 10.0, 5.0
WARM_S = 2 * EVERY_S
"""From then on CPU and growth are measured, until the first run falls silent."""
SCRAPE_S = 15.0
_TICK = {
    "v": 1, "upto": {}, "ranks": [], "go": True, "prev": "0" * 64,
}  # fmt: skip


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
            tick = _TICK | {
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


@dataclass(slots=True)
class Seen:
    """What the clients saw."""

    waits_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    """How long after its time a message was sent."""
    refused: dict[int, int] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    """Runs that received a command to stop."""


class Sender(threading.Thread):
    """Sends the messages of some runs over one connection, from `start` until `until`."""

    def __init__(
        self,
        port: int,
        key: str,
        secret: str,
        token: int,
        runs: list[SimulatedRun],
        start: float,
        until: float,
    ) -> None:
        super().__init__(daemon=True)
        self.seen = Seen()
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {
            "Authorization": f"Bearer {key}",
            "X-Gonogo-Claim": secret,
            "Content-Type": "application/json",
        }
        self._token, self._start, self._until = token, start, until
        self._due = [
            (start + EVERY_S * number / max(1, len(runs)), number, run)
            for number, run in enumerate(runs)
        ]
        heapq.heapify(self._due)

    def run(self) -> None:
        """Send until the time is over."""
        while self._due:
            due, number, run = heapq.heappop(self._due)
            if due > self._until or time.monotonic() > self._until + EVERY_S:
                return
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            if due - self._start > EVERY_S:
                self.seen.late_s.append(max(0.0, -wait))
            if self._speak(run, due - self._start):
                heapq.heappush(self._due, (due + EVERY_S, number, run))

    def _speak(self, run: SimulatedRun, at_s: float) -> bool:
        """Send what a run has to say now; say whether it will say more."""
        if run.silent_s is not None and at_s >= run.silent_s:
            return False
        body = {
            "token": self._token,
            "ranks": run.lines(time.monotonic()),
            "files": [run.watched()],
        }
        answer = self._post(f"/api/v1/agent/runs/{run.id}/telemetry", body)
        if answer is not None:
            now = time.time()
            run.was_silent |= 0.0 < run.said_at < now - LEASE_S
            run.said_at = now
            if answer.get("command"):
                self.seen.commands.append(run.id)
        return True

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        began = time.monotonic()
        try:
            self._http.request("POST", path, json.dumps(body).encode(), self._headers)
            answer = self._http.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self._http.close()
            self.seen.refused[0] = self.seen.refused.get(0, 0) + 1
            return None
        self.seen.waits_s.append(time.monotonic() - began)
        if answer.status != 200:
            self.seen.refused[answer.status] = self.seen.refused.get(answer.status, 0) + 1
            return None
        return json.loads(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The credentials of the runs: all are copies of one claimed run."""

    secret: str
    token: int
    run: str


def begin_run(plane: Plane) -> Held:
    """Submit an experiment of 8 ranks, claim its run and let it begin to train."""
    change = {"workload.world_size": RANKS, "train.batch.global_seqs": RANKS}
    plane.call("POST", "/experiments", json={"plan": "demo", "set": change})
    claim = {
        "worker": "fleet", "host": "fleet", "boot_id": "b", "pid": 1, "version": "0",
        "devices": ["cpu:0"], "free": ["cpu:0"],
    }  # fmt: skip
    answer = plane.call("POST", "/agent/claims", key="worker_key", json=claim)
    order = answer["order"]
    checks = [{"id": name, "outcome": "pass", "text": "ok"} for name in (*PREFLIGHT_CHECKS, SANITY)]
    for event, more in (
        ("check", {}),
        ("launch", {"preflight": {"passed": True, "checks": checks}}),
        ("step", {}),
    ):
        plane.call(
            "POST",
            f"/agent/runs/{order['run']}/state",
            key="worker_key",
            headers={"X-Gonogo-Claim": answer["secret"]},
            json={"token": order["token"], "event": event, "at": time.time(), **more},
        )
    return Held(secret=answer["secret"], token=order["token"], run=order["run"])


class Scraper(threading.Thread):
    """Asks for the metrics as Prometheus does."""

    def __init__(self, http: httpx.Client) -> None:
        super().__init__(daemon=True)
        self.took_s: list[float] = []
        self.failed = 0
        self._http = http
        self._over = threading.Event()

    def run(self) -> None:
        """Scrape until `end` is called."""
        while not self._over.wait(SCRAPE_S):
            began = time.monotonic()
            try:
                self._http.get("/metrics", timeout=60.0).raise_for_status()
            except httpx.HTTPError:
                self.failed += 1
            self.took_s.append(time.monotonic() - began)

    def end(self) -> None:
        """Let no further scrape begin."""
        self._over.set()


def measure(count: int, seconds: float, folder: Path, *, scrape: bool) -> dict[str, Any]:
    """Return every figure of a fleet of so many runs."""
    folder.mkdir()
    plane = Plane(folder, None)
    try:
        held = begin_run(plane)
    finally:
        plane.close()
    ids = [held.run, *copy_newest(folder / "gonogo.db", count - 1)]
    plane = Plane(folder, None)
    quiet_s = WARM_S + (seconds - NOTICED_S - WARM_S) * 0.6
    parts = max(8, count // RUNS_PER_SENDER)
    silent = range(0, count, max(5, count // max(LEAST_SILENT, count // 20)))
    last_s = seconds - NOTICED_S - quiet_s
    scraper = Scraper(httpx.Client(base_url=plane.http.base_url))
    try:
        start = time.monotonic() + 1.0
        runs = [
            SimulatedRun(
                id=run,
                ranks=RANKS,
                began=start - EVERY_S,
                silent_s=quiet_s + last_s * number / count if number in silent else None,
            )
            for number, run in enumerate(ids)
        ]
        port = plane.http.base_url.port
        assert port is not None
        key = (folder / "worker_key").read_text().strip()
        senders = [
            Sender(port, key, held.secret, held.token, runs[n::parts], start, start + seconds)
            for n in range(min(parts, count))
        ]
        for sender in senders:
            sender.start()
        if scrape:
            scraper.start()
        time.sleep(max(0.0, start + WARM_S - time.monotonic()))
        cpu, size, began = plane.server.cpu_s(), _bytes(folder), time.monotonic()
        time.sleep(max(0.0, start + quiet_s - time.monotonic()))
        took = time.monotonic() - began
        cores = (plane.server.cpu_s() - cpu) / took
        grown = _bytes(folder) - size
        for sender in senders:
            sender.join()
        rss_mb = plane.server.rss_mb()
        time.sleep(2.0)  # the leases' last look
    finally:
        scraper.end()
        plane.close()
    seen = [sender.seen for sender in senders]
    return {
        "runs": count,
        "seconds": round(seconds),
        "cores": cores,
        "cores_per_1000": 1000 * cores / count,
        "runs_per_core": count / cores,
        "db_mb_per_run_h": grown / 2**20 / (count * took / 3600.0),
        "rss_mb": rss_mb,
        "scrape_s": max(scraper.took_s, default=None),
        "scrapes_failed": scraper.failed,
        **_traffic(seen),
        **_found(folder / "gonogo.db", runs, seen),
    }


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("gonogo.db*"))


def _traffic(seen: list[Seen]) -> dict[str, Any]:
    waits = [value for row in seen for value in row.waits_s]
    late = [value for row in seen for value in row.late_s]
    refused: Counter[int] = Counter()
    for row in seen:
        refused.update(row.refused)
    return {
        "messages": len(waits),
        "answer_p50_s": _percentile(waits, 50),
        "answer_p99_s": _percentile(waits, 99),
        "late_p99_s": _percentile(late, 99),
        "refused": dict(refused),
    }


def _found(database: Path, runs: list[SimulatedRun], seen: list[Seen]) -> dict[str, Any]:
    """Say what the service called lost, when, and what it did without reason."""
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
    commands = {run for row in seen for run in row.commands}
    return {
        "gone": len(gone),
        "gone_missed": sum(run.id not in lost for run in gone),
        "lost_p50_s": _percentile(latencies, 50),
        "lost_p99_s": _percentile(latencies, 99),
        "lost_without_reason": len(set(lost) - may),
        "halted_without_reason": len(commands | ended),
    }


def _percentile(values: list[float], percent: int) -> float | None:
    if not values:
        return None
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


ROWS = (
    ("cores", "CPU of the service", "cores"),
    ("cores_per_1000", "CPU per 1000 runs", "cores"),
    ("runs_per_core", "runs at which one core is full", ""),
    ("db_mb_per_run_h", "database per run-hour", "MB"),
    ("rss_mb", "resident", "MB"),
    ("answer_p50_s", "a message's answer, median", "s"),
    ("answer_p99_s", "a message's answer, p99", "s"),
    ("late_p99_s", "messages sent late, p99", "s"),
    ("scrape_s", "longest scrape", "s"),
    ("lost_p50_s", "silent until run.lost, median", "s"),
    ("lost_p99_s", f"silent until run.lost, p99 (≤ {LEASE_S + 5:g})", "s"),
    ("gone_missed", "silent runs that were not called lost", ""),
    ("lost_without_reason", "runs called lost without reason", ""),
    ("halted_without_reason", "runs halted without reason", ""),
)


def main() -> None:
    """Print one table, a column a size."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", allow_abbrev=False)
    parser.add_argument("--runs", default="100,1000", help="sizes, separated by commas")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="of traffic for each, 90 or more"
    )
    parser.add_argument("--no-scrape", action="store_true", help="nobody asks for metrics")
    parser.add_argument("--json", action="store_true", help="one object a size")
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="gonogo-fleet-") as name:
        for count in map(int, given.runs.split(",")):
            row = measure(
                count,
                given.seconds,
                Path(name) / str(count),
                scrape=not given.no_scrape,
            )
            found.append(row)
            if given.json:
                print(json.dumps(row), flush=True)
    if not given.json:
        _print(found)


def _print(found: list[dict[str, Any]]) -> None:
    print(f"{'runs':<44}" + "".join(f"{row['runs']:>12}" for row in found))
    for key, text, unit in ROWS:
        cells = "".join(f"{'–':>12}" if row[key] is None else f"{row[key]:>12.3g}" for row in found)
        print(f"{text:<44}{cells}  {unit}")
    for row in found:
        print(
            f"\n{row['runs']} runs × {RANKS} ranks, {row['seconds']} s, {row['messages']} messages,"
            f" refused {row['refused'] or 'none'}, {row['gone']} fell silent"
        )


if __name__ == "__main__":
    main()
