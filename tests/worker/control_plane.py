"""A control plane in a few lines, over real HTTP: what the worker's side is tried against.

It follows the agent protocol (offsets, tokens, idempotent findings) with everything in memory, and
can be set to be down, to lose answers, to swallow requests and to call tokens stale.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gonogo.contract.order import Order
from gonogo.contract.worker_messages import (
    ClaimRequest,
    EvidenceReport,
    FindingsReport,
    RecordReport,
    StateReport,
    Telemetry,
)

KEY = "wk-secret"
_LIMITS = {"findings": 2**20, "state": 2**20, "telemetry": 16 * 2**20}
"""What `service/http/answers.py` lets a call bring."""
_RUN = re.compile(r"/api/v1/agent/runs/(run_\w+)/(telemetry|state|findings|evidence|records)")


@dataclass
class RunStore:
    """What has arrived of one run."""

    token: int
    offsets: dict[str, int] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    logs: dict[str, tuple[int, str]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    raw: dict[str, bytes] = field(default_factory=dict)
    """Rank → bytes of its heartbeat file."""
    records: dict[str, bytes] = field(default_factory=dict)
    states: list[StateReport] = field(default_factory=list)
    findings: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, EvidenceReport] = field(default_factory=dict)
    telemetry: int = 0
    suspect: bool = False
    secret: str | None = None
    command: dict[str, Any] | None = None
    queued: bool = False
    """It was claimed after the moment that the database was restored to: telemetry takes it up."""
    taken: bool = False
    """Somebody else claims it again at the next state report."""

    def events(self) -> list[str]:
        return [str(report.event) for report in self.states]


@dataclass
class FakeControlPlane:
    """`orders` wait to be claimed; `runs` hold what arrived. Faults are switched by fields."""

    orders: list[Order] = field(default_factory=list)
    runs: dict[str, RunStore] = field(default_factory=dict)
    given: list[tuple[str, str]] = field(default_factory=list)
    claims: list[ClaimRequest] = field(default_factory=list)
    down: bool = False
    lose_every: int = 0
    """Every n-th call is done and its answer is lost; every n-th + 1 is lost before it is done."""
    refuse: dict[str, int] = field(default_factory=dict)
    """Call (telemetry, state, findings, evidence) → status to answer instead."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What else the problem of a refused call says."""
    passes: int | None = None
    """How many bytes of a body a proxy on the way lets pass."""
    stale: set[str] = field(default_factory=set)
    """Runs that somebody else claims again as soon as they were given out."""
    stale_later: set[str] = field(default_factory=set)
    """Those that somebody else claims again while their host is checked."""
    untold: list[str] = field(default_factory=list)
    """Runs that claims are asked about."""
    over: list[str] = field(default_factory=list)
    """Runs that answers to claims report as dead."""
    key: str = KEY
    calls: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(
        self, path: str, key: str | None, secret: str | None, body: bytes
    ) -> tuple[int, dict[str, Any]] | None:
        """Return (status, document), or None to hang up."""
        with self.lock:
            self.calls += 1
            turn = self.calls % self.lose_every if self.lose_every else None
            if self.down or turn == 1:
                return None
            if key != f"Bearer {self.key}":
                return 401, _problem(401, "no such key")
            found = self._do(path, secret, body)
            return None if turn == 0 else found

    def _do(self, path: str, secret: str | None, body: bytes) -> tuple[int, dict[str, Any]]:
        if path == "/api/v1/agent/claims":
            order = self._claim(ClaimRequest.model_validate_json(body))
            return 200, {
                "order": order,
                "secret": self.runs[order["run"]].secret if order else None,
                **({"untold": self.untold} if self.untold else {}),
                **({"over": self.over} if self.over else {}),
            }
        match = _RUN.fullmatch(path)
        run = self.runs.get(match.group(1)) if match else None
        if match is None or run is None:
            return 404, _problem(404, "no such run")
        call = match.group(2)
        if len(body) > _LIMITS.get(call, 70 * 2**20):
            return 413, {**_problem(413, "too large"), "code": "too_large"}
        if self.passes is not None and len(body) > self.passes:
            return 413, {"message": "Request Entity Too Large"}
        if call in self.refuse:
            return self.refuse[call], {**_problem(self.refuse[call], "refused"), **self.extra}
        if run.queued and call == "telemetry":
            run.token, run.queued = json.loads(body)["token"], False
        if json.loads(body)["token"] != run.token:
            problem = {**_problem(409, "stale token"), "code": "stale_token", "token": run.token}
            return 409, problem
        if run.secret is not None and secret != run.secret:
            return 403, _problem(403, "not the claim's secret")
        return 200, getattr(self, f"_{call}")(run, body)

    def _claim(self, request: ClaimRequest) -> dict[str, Any] | None:
        self.claims.append(request)
        if not request.free or request.draining or not self.orders:
            return None
        order = self.orders.pop(0)
        self.given.append((order.run, request.worker))
        store = self.runs.setdefault(order.run, RunStore(token=order.token))
        store.token, store.secret = order.token, f"secret of {order.run} {order.token}"
        store.token += order.run in self.stale
        store.taken = order.run in self.stale_later
        return order.document()

    def _telemetry(self, run: RunStore, body: bytes) -> dict[str, Any]:
        message = Telemetry.model_validate_json(body)
        run.telemetry += 1
        run.suspect = message.suspect
        for part in message.ranks:
            name = str(part.rank)
            if part.start == run.offsets.get(name, 0):
                run.offsets[name] = part.end
                run.lines.setdefault(name, []).extend(part.lines)
                plain = "".join(f"{line}\n" for line in part.lines).encode()
                raw = plain if part.raw_b64 is None else base64.b64decode(part.raw_b64)
                run.raw[name] = run.raw.get(name, b"") + raw
        for file in message.files or []:
            have = run.files.setdefault(file.name, b"")
            if file.start == len(have):
                run.files[file.name] = have + base64.b64decode(file.content_b64)
        for log in message.logs:
            end, text = run.logs.get(log.name, (0, ""))
            if log.start >= end:
                run.logs[log.name] = (log.end, text + log.text)
        logs = {name: end for name, (end, _) in run.logs.items()}
        files = {name: len(content) for name, content in run.files.items()}
        return {"acked": run.offsets, "logs": logs, "files": files, "command": run.command}

    def _state(self, run: RunStore, body: bytes) -> dict[str, Any]:
        run.states.append(StateReport.model_validate_json(body))
        run.token += run.taken
        return {"ok": True, "detail": {}}

    def _findings(self, run: RunStore, body: bytes) -> dict[str, Any]:
        for finding in FindingsReport.model_validate_json(body).findings:
            run.findings.setdefault(finding.key, finding)
        return {"ok": True, "detail": {}}

    def _records(self, run: RunStore, body: bytes) -> dict[str, Any]:
        report = RecordReport.model_validate_json(body)
        run.records[report.path] = base64.b64decode(report.content_b64)
        return {"ok": True, "detail": {}}

    def _evidence(self, run: RunStore, body: bytes) -> dict[str, Any]:
        report = EvidenceReport.model_validate_json(body)
        run.evidence[report.path] = report
        return {"ok": True, "detail": {}}


def _problem(status: int, detail: str) -> dict[str, Any]:
    kind = "urn:gonogo:problem:test"
    return {"type": kind, "title": "no", "status": status, "detail": detail, "code": "test"}


@contextmanager
def serving(plane: FakeControlPlane) -> Iterator[FakeControlPlane]:
    """Serve the control plane on a free port of loopback (the same one, when it had one)."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found = plane.answer(
                self.path,
                self.headers.get("Authorization"),
                self.headers.get("X-Gonogo-Claim"),
                body,
            )
            if found is None:
                self.close_connection = True
                return
            status, document = found
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", plane.port), Handler)
    server.daemon_threads = True
    plane.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield plane
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
