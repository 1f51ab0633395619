"""What does a control plane cost, and how many runs does it carry? The real service.

    python -m bench.fleet [--runs 100,1000] [--seconds 120]

The runs only send messages. Each has 8 ranks and steps of 25 s, and sends every 10 s. One in 20
falls silent near the end. The service runs on loopback with SQLite on disk and is scraped every
15 s. Printed are the time until a silent run is `run.lost`, false losses and stops, CPU, memory and
growth; then the CPU of a submission and of a list with so many experiments.

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
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.service_process import ServiceProcess, copy_newest
from gonogo.contract.agent import CLAIM_HEADER
from gonogo.contract.records import PREFLIGHT_CHECKS, SANITY
from service.conductor.leases import LEASE_S

RANKS = 8
RUNS_PER_SENDER = 60
"""A connection waits for answers of 150 ms and is still on time."""
NOTICED_S = LEASE_S + 15.0
"""How long before the end the last run falls silent, so that it can be noticed."""
STEP_S, EVERY_S, ALIVE_S = 25.0, 10.0, 5.0
WARM_S = 2 * EVERY_S
"""From then on CPU and growth are measured, until the first run falls silent."""
SCRAPE_S = 15.0
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


class Scraper(threading.Thread):
    """Asks for the metrics as Prometheus does, until `over` is set."""

    def __init__(self, service: ServiceProcess) -> None:
        super().__init__(daemon=True)
        self.took_s: list[float] = []
        self.over = threading.Event()
        self._http = service.http

    def run(self) -> None:
        """Scrape until the end."""
        while not self.over.wait(SCRAPE_S):
            began = time.monotonic()
            self._http.get("/metrics").raise_for_status()
            self.took_s.append(time.monotonic() - began)


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
    scraper = Scraper(service)
    try:
        start = time.monotonic() + 1.0
        quiet_s = WARM_S + (seconds - NOTICED_S - WARM_S) * 0.6
        runs = _runs(ids, start, quiet_s, seconds - NOTICED_S)
        parts = min(count, max(8, count // RUNS_PER_SENDER))
        senders = [
            Sender(service, held, runs[n::parts], start, start + seconds) for n in range(parts)
        ]
        for thread in (*senders, scraper):
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
        scraper.over.set()
        found = _found(folder / "gonogo.db", runs, senders)
        costs = _costs(service)
    finally:
        scraper.over.set()
        service.close()
    return {
        "runs": count,
        "cores": cores,
        "db_mb_per_run_h": grown / 2**20 / (count * took / 3600.0),
        "rss_mb": rss_mb,
        "scrape_s": max(scraper.took_s, default=None),
        **found,
        **costs,
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


def _costs(service: ServiceProcess) -> Figures:
    def submit() -> None:
        service.call("POST", "/experiments", json={"plan": "demo"})

    def read() -> None:
        service.call("GET", "/experiments", params={"limit": 50})

    return {"submit_ms": service.cost_ms(submit, 100), "list_ms": service.cost_ms(read, 20)}


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
    "scrape_s": "longest scrape, s",
    "gone": "runs that fell silent",
    "lost_p99_s": f"silent until run.lost, p99 (≤ {LEASE_S + 5:g}), s",
    "gone_missed": "silent runs that were not called lost",
    "lost_without_reason": "runs called lost without reason",
    "halted_without_reason": "runs halted without reason",
    "submit_ms": "CPU of a submission, ms",
    "list_ms": "CPU of a list of 50, ms",
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
