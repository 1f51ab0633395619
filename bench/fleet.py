"""How many runs does one control plane carry? The real service, and runs that only speak.

    python -m bench.fleet [--runs 100,1000] [--seconds 120] [--no-scrape] [--json]

Each run has 8 ranks and steps of 25 s, says so in a message every 10 s, and may break as Llama 3's
did (`bench/fleet_faults.py`), only much more often. The service is asked over real HTTP on
loopback, keeps SQLite on disk and is scraped every 15 s. It prints the time until a silent run is
`run.lost`, the runs that were lost or stopped without reason, and the growth of the database. It
also prints the CPU of the service, and the number of runs that would fill one core if CPU grew as
runs do.

Not covered: runs are put into the database as copies of one that was claimed, so claims and orders
cost nothing here; halting is local to a run's host and needs none of this; PostgreSQL.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.control_plane import Plane
from bench.fleet_faults import LEASE_S, Fault, Kind, draw_faults
from bench.fleet_traffic import EVERY_S, Seen, Sender, SimulatedRun
from bench.sqlite_rows import insert_row
from gonogo.contract.ids import Kind as Id
from gonogo.contract.ids import new_id
from gonogo.contract.records import PREFLIGHT_CHECKS, SANITY

RANKS = 8
RUNS_PER_SENDER = 60
"""So that a connection waits for answers of 150 ms and is on time all the same."""
NOTICED_S = LEASE_S + 15.0
"""How long before the end the last fault happens, so that it can be noticed."""
LEAST_FAULTS = 20
WARM_S = 2 * EVERY_S
"""From then on CPU and growth are measured, until the first fault: at the true rate there would be
none, and judging twenty runs in a minute is not what a fleet costs."""
SCRAPE_S = 15.0


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


def copy_runs(database: Path, held: Held, count: int) -> list[str]:
    """Put copies of the run, each of an experiment of its own, into the database."""
    ids = [held.run]
    with sqlite3.connect(database, timeout=60) as connection:
        connection.row_factory = sqlite3.Row
        run = dict(connection.execute("SELECT * FROM runs WHERE id = ?", (held.run,)).fetchone())
        of = run["experiment"]
        experiment = connection.execute("SELECT * FROM experiments WHERE id = ?", (of,)).fetchone()
        phases = connection.execute("SELECT * FROM phases WHERE experiment = ?", (of,)).fetchall()
        said = connection.execute("SELECT * FROM progress WHERE run = ?", (held.run,)).fetchone()
        for _ in range(count - 1):
            name, copy = new_id(Id.EXPERIMENT), new_id(Id.RUN)
            order = run["order"].replace(held.run, copy).replace(of, name)
            insert_row(connection, "experiments", dict(experiment) | {"id": name})
            for phase in phases:
                insert_row(connection, "phases", dict(phase) | {"experiment": name})
            insert_row(connection, "runs", run | {"id": copy, "experiment": name, "order": order})
            insert_row(connection, "progress", dict(said) | {"run": copy})
            ids.append(copy)
    connection.close()
    return ids


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


def measure(count: int, seconds: float, folder: Path, *, scrape: bool, seed: int) -> dict[str, Any]:
    """Return every figure of a fleet of so many runs."""
    folder.mkdir()
    plane = Plane(folder, None)
    try:
        held = begin_run(plane)
    finally:
        plane.close()
    ids = copy_runs(folder / "gonogo.db", held, count)
    plane = Plane(folder, None)
    quiet_s = WARM_S + (seconds - NOTICED_S - WARM_S) * 0.6
    parts = max(8, count // RUNS_PER_SENDER)
    faults, acceleration = draw_faults(
        count,
        RANKS,
        (quiet_s, seconds - NOTICED_S),
        max(LEAST_FAULTS, count // 100),
        count // 20,
        seed,
    )
    by_run = {fault.run: fault for fault in faults}
    scraper = Scraper(httpx.Client(base_url=plane.http.base_url))
    try:
        start = time.monotonic() + 1.0
        runs = [
            SimulatedRun(id=run, ranks=RANKS, began=start - EVERY_S, fault=by_run.get(number))
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
        "acceleration": acceleration,
        "cores": cores,
        "cores_per_1000": 1000 * cores / count,
        "runs_per_core": count / cores,
        "db_mb_per_run_h": grown / 2**20 / (count * took / 3600.0),
        "rss_mb": rss_mb,
        "scrape_s": max(scraper.took_s, default=None),
        "scrapes_failed": scraper.failed,
        **_traffic(seen),
        **_found(folder / "gonogo.db", runs, faults, seen),
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


def _found(
    database: Path, runs: list[SimulatedRun], faults: list[Fault], seen: list[Seen]
) -> dict[str, Any]:
    """Say what the service called lost, when, and what it did without reason."""
    connection = sqlite3.connect(database)
    lost: dict[str, float] = {}
    for run, at in connection.execute("SELECT run, at FROM events WHERE type = 'run.lost'"):
        lost.setdefault(run, at)
    ended = {run for (run,) in connection.execute("SELECT id FROM runs WHERE state = 'ended'")}
    connection.close()
    over = {run.id for run in runs if run.over}
    gone = [runs[row.run] for row in faults if row.kind is Kind.GONE]
    last = max(run.said_at for run in runs)
    may = {run.id for run in runs if run.was_silent or run.said_at < last - LEASE_S}
    latencies = [lost[run.id] - run.said_at for run in gone if run.id in lost]
    commands = {run for row in seen for run in row.commands}
    told = [value for row in seen for value in row.told_s]
    return {
        "lost_samples": len(latencies),
        "faults": dict(Counter(row.kind.name.lower() for row in faults)),
        "gone_missed": sum(run.id not in lost for run in gone),
        "lost_p50_s": _percentile(latencies, 50),
        "lost_p99_s": _percentile(latencies, 99),
        "lost_max_s": max(latencies, default=None),
        "lost_without_reason": len(set(lost) - may),
        "halted_without_reason": len(commands | (ended - over)),
        "halt_told_p99_s": _percentile(told, 99),
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
    ("db_mb_per_run_h", "database per run-hour, before packing", "MB"),
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
    ("halt_told_p99_s", "a halt, from finding to record, p99", "s"),
)


def main() -> None:
    """Print one table, a column a size."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", allow_abbrev=False)
    parser.add_argument("--runs", default="100,1000", help="sizes, separated by commas")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="of traffic for each, 90 or more"
    )
    parser.add_argument("--no-scrape", action="store_true", help="nobody asks for metrics")
    parser.add_argument("--seed", type=int, default=1)
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
                seed=given.seed,
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
            f" refused {row['refused'] or 'none'}; faults {row['faults']}, the"
            " mix at"
            f" {row['acceleration']:.3g} times Llama 3's rate"
        )


if __name__ == "__main__":
    main()
