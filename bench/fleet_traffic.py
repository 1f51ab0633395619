"""What does a simulated run say? Its ranks' lines and its watcher's ticks, a message every 10 s.

Lines and ticks are as long as a trainer's and a watcher's. Messages go over kept connections of
the standard library, so that the client takes a small part of the machine.
"""

from __future__ import annotations

import base64
import heapq
import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from bench.fleet_faults import LEASE_S, Fault, Kind

STEP_S, EVERY_S, ALIVE_S = 25.0, 10.0, 5.0
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
    fault: Fault | None = None
    said_at: float = 0.0
    """Unix seconds of its last message that was taken."""
    told_until: float = 0.0
    seqs: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    ticks: int = 0
    watch_bytes: int = 0
    over: bool = False
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
    told_s: list[float] = field(default_factory=list)
    """How long a halt took from the watchdog's finding to its being recorded."""


class Sender(threading.Thread):
    """Sends the messages of some runs at their times, over one connection.

    Args:
        port: of the service.
        key, secret, token: who speaks.
        runs: whose messages.
        start: monotonic seconds at which the traffic begins.
        until: and ends.
    """

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
        fault = run.fault
        if fault is not None and at_s >= fault.at_s:
            if fault.kind is Kind.GONE:
                return False
            if fault.kind is Kind.HALTED:
                self._halt(run)
                return False
            if at_s < fault.at_s + fault.lasts_s:
                return True
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

    def _halt(self, run: SimulatedRun) -> None:
        """Send the finding and the end, as a watcher and its keeper do."""
        began, now = time.monotonic(), time.time()
        finding = {
            "detector": "process_death", "severity": "halt", "rank": 1, "at": now,
            "key": "process_death:1", "act": "now", "text": "rank 1 has died",
        }  # fmt: skip
        path = f"/api/v1/agent/runs/{run.id}"
        self._post(f"{path}/findings", {"token": self._token, "findings": [finding]})
        self.seen.told_s.append(time.monotonic() - began)
        ended = {
            "code": 1, "signal": None, "ended_at": now, "ended_by": "watchdog",
            "reason": "nonzero_exit", "text": "rank 1 has died", "ranks": {},
        }  # fmt: skip
        body = {
            "token": self._token, "event": "end", "at": now, "exit": ended, "findings": 1,
            "sizes": {str(rank): end for rank, end in run.offsets.items()},
        }  # fmt: skip
        run.over = self._post(f"{path}/state", body) is not None

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
