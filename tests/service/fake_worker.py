"""A worker without processes: it claims, and reports what a healthy (or sick) run would have left.

Everything goes over HTTP as the real worker's messages do; heartbeats are made, not run.
"""

from __future__ import annotations

import base64
import json
import tempfile
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

from gonogo.contract.canonical import digest
from gonogo.contract.order import Order
from gonogo.contract.worker_messages import STREAMS
from gonogo.rundir import RunDir
from tests.service.fake_run import BOOT_TS, PREFLIGHT, save_run


def beats(
    order: Order,
    rank: int,
    *,
    upto: int | None = None,
    step_s: float = 0.2,
    eval_s: float = 0.0,
    done: bool = True,
) -> list[str]:
    """Heartbeat lines of one rank that runs its order from its resume point to step `upto`.

    It evaluates once, for `eval_s`, in the middle.
    """
    lines: list[str] = []
    clock = BOOT_TS
    boot = f"boot{rank}{order.attempt}"
    identity = {
        **order.identity.model_dump(mode="json", exclude_none=True),
        "git_sha": order.identity.git_sha or "a" * 40,
        "torch": "2.13.0",
        "device": "cpu",
        "run": order.run,
        "attempt": order.attempt,
    }
    first = order.resume_from.step + 1 if order.resume_from else 1
    last = order.steps if upto is None else upto

    def say(msg: str, step: int, section: str | None, **more: Any) -> None:
        lines.append(
            json.dumps(
                {
                    "v": 1, "ts": clock, "iso": "-", "mono": clock - BOOT_TS + 100,
                    "pid": 1000 + rank, "rank": rank, "boot": boot, "seq": len(lines),
                    "step": step, "msg": msg, "section": section, "section_seq": len(lines), **more,
                }
            )
        )  # fmt: skip

    say("boot", first - 1, "boot", backend="DDP", **identity)
    say("loader_ready", first - 1, "data", dt=0.1)
    tokens = order.identity.tokens_per_step or 1024
    for step in range(first, last + 1):
        say("step_start", step, "data")
        clock += step_s
        loss = 5.5 - 2.5 * (step - 1) / max(order.steps, 1)
        say(
            "progress", step, "log", loss=loss, grad_norm=1.0, lr=1e-3,
            toks_per_s=tokens / step_s, dt_fetch_s=0.001,
        )  # fmt: skip
        sections = {"data": 0.001, "forward": 0.05, "backward": 0.1, "optimizer": 0.02, "wait": 0.0}
        say("step_end", step, None, dt_step_s=step_s, tokens=tokens, step_sections=sections)
        every = order.train.get("eval", {}).get("every_steps")
        if every and step % every == 0:
            say("eval", step, "eval", val_loss=3.0)
        if eval_s and step == (first + last) // 2:
            say("section", step, "eval")
            clock += eval_s
            say("eval", step, None, val_loss=3.0)
    if last == order.steps and done:
        say("done", last, None)
    return lines


def config_digest_holds(order: Order) -> bool:
    """Whether the order's identity is that of its own configuration."""
    return order.identity.config_digest == digest(order.train)


@dataclass
class FakeWorker:
    """One worker's messages, sent through `http` with a worker key."""

    http: httpx.Client
    key: str
    name: str = "w1"
    boot_id: str = "boot-1"
    host: str = "host-1"
    home: Path | None = None
    devices: tuple[str, ...] = ("cpu:0",)
    active: list[str] = field(default_factory=list)
    findings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Run → the findings that its watcher reported."""
    secrets: dict[str, str] = field(default_factory=dict)
    """Run → what its claim was answered with."""

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key}"}
        secret = next((known for run, known in self.secrets.items() if run in path), None)
        if secret is not None:
            headers["X-Gonogo-Claim"] = secret
        return self.http.post(f"/api/v1/agent{path}", json=body, headers=headers)

    def claim(self, **more: Any) -> Order | None:
        body = {
            "worker": self.name, "host": self.host, "boot_id": self.boot_id, "pid": 1,
            "version": "0", "devices": list(self.devices), "free": list(self.devices),
            "active": self.active, **more,
        }  # fmt: skip
        answer = self.post("/claims", body)
        if answer.is_success and answer.json().get("untold"):  # it has no ends to send again
            answer = self.post("/claims", body)
        assert answer.status_code == 200, answer.text
        order = answer.json()["order"]
        if order:
            self.secrets[order["run"]] = answer.json()["secret"]
        return Order.model_validate(order) if order else None

    def state(self, order: Order, event: str, **more: Any) -> httpx.Response:
        body = {"token": order.token, "event": event, "at": BOOT_TS, **more}
        if self.home is not None:
            body.setdefault("dir", str(self.home / order.run))
        return self.post(f"/runs/{order.run}/state", body)

    def telemetry(self, order: Order, **more: Any) -> httpx.Response:
        return self.post(f"/runs/{order.run}/telemetry", {"token": order.token, **more})

    def start(self, order: Order) -> None:
        """Report up to the first step."""
        for event, more in (("check", {}), ("launch", {"preflight": PREFLIGHT}), ("step", {})):
            answer = self.state(order, event, **more)
            assert answer.status_code == 200, answer.text

    def ship(
        self, order: Order, lines: dict[int, list[str]], have: dict[int, int] | None = None
    ) -> None:
        """Send whole files; `have` says how many bytes are there already."""
        ranks = []
        for rank, rows in lines.items():
            start = (have or {}).get(rank, 0)
            end = start + size_of(rows)
            ranks.append({"rank": rank, "start": start, "end": end, "lines": rows})
        answer = self.telemetry(order, ranks=ranks)
        assert answer.status_code == 200, answer.text

    def end(
        self, order: Order, lines: dict[int, list[str]], reason: str = "completed",
        by: str = "trainer", *, findings: int = 0, code: int | None = 0, text: str = "",
    ) -> httpx.Response:  # fmt: skip
        ranks = {str(rank): {"code": code, "signal": None, "at": BOOT_TS} for rank in lines}
        exit_record = {
            "code": code, "signal": None, "ended_at": BOOT_TS, "ended_by": by, "reason": reason,
            "text": text, "ranks": ranks,
        }  # fmt: skip
        sizes = {str(rank): size_of(rows) for rank, rows in lines.items()}
        with tempfile.TemporaryDirectory() as spare:
            folder = (self.home or Path(spare)) / order.run
            run_dir = save_run(folder, order, lines, exit_record, self.findings.get(order.run, []))
            files, records = self.ship_files(order, run_dir)
        return self.state(
            order, "end", exit=exit_record, sizes=sizes, findings=findings,
            files=files, records=records,
        )  # fmt: skip

    def saved_step(self, order: Order) -> int:
        """The last step of which a checkpoint lies in the run's directory; 0 where none does."""
        folders = self.home / order.run / "checkpoints" if self.home is not None else Path(".none")
        return max(
            (int(row.name.removeprefix("step_")) for row in folders.glob("step_*")), default=0
        )

    def report(self, order: Order, *findings: dict[str, Any]) -> httpx.Response:
        """Report findings as a watcher does that has written them down."""
        self.findings.setdefault(order.run, []).extend(findings)
        body = {"token": order.token, "findings": list(findings)}
        return self.post(f"/runs/{order.run}/findings", body)

    def ship_files(self, order: Order, run_dir: RunDir) -> tuple[dict[str, int], dict[str, str]]:
        """Send ticks, findings and small records; return what the end promises of them."""
        files: dict[str, int] = {}
        parts = []
        for name in STREAMS:
            path = run_dir.path / name
            if path.exists():
                content = path.read_bytes()
                files[name] = len(content)
                parts.append({"name": name, "start": 0, "content_b64": coded(content)})
        self.telemetry(order, files=parts)
        records = {}
        exits = [run_dir.rank_exit(rank) for rank in run_dir.ranks()]
        for path in (run_dir.order, run_dir.exit, run_dir.preflight, *exits):
            content, name = path.read_bytes(), str(path.relative_to(run_dir.path))
            records[name] = sha256(content).hexdigest()
            body = {"token": order.token, "path": name, "content_b64": coded(content)}
            self.post(f"/runs/{order.run}/records", body)
        return files, records

    def run_through(self, order: Order, **more: Any) -> None:
        """A healthy run from its claim to its end; `more` is for `beats`."""
        self.start(order)
        lines = {rank: beats(order, rank, **more) for rank in range(order.world_size)}
        self.ship(order, lines)
        answer = self.end(order, lines)
        assert answer.status_code == 200, answer.text


def coded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def size_of(lines: list[str]) -> int:
    """Bytes of these lines in a file."""
    return sum(len(line.encode()) + 1 for line in lines)
