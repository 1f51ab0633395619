"""A whole gonogo on this machine for end-to-end tests: real processes, read from outside."""

import json
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from gonogo.cli.client import Client
from gonogo.cli.stack import Stack
from gonogo.contract.api import ExperimentView, RunView
from gonogo.contract.canonical import wire_value
from gonogo.contract.lifecycle import ExperimentState, RunState
from gonogo.planning.source import bundled_plan
from gonogo.rundir import RunDir, load_all_lines
from gonogo.watch.offline_fold import refold

LIMIT_S = 600.0


def clean_environ(home: Path) -> dict[str, str]:
    """Return an environment without ours, but for the home."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GONOGO_", "NSA_")) and name not in ("REDIS_URL", "CONFIG")
    }
    return {**kept, "GONOGO_HOME": str(home)}


def one_phase_plan(phase: str = "smoke", **changes: Any) -> dict[str, Any]:
    """Return the demo's plan cut to one phase."""
    plan = bundled_plan("demo")
    plan["phases"] = [{**row, **changes} for row in plan["phases"] if row["name"] == phase]
    return plan


@dataclass(slots=True)
class Lab:
    """A running stack and its client."""

    stack: Stack
    client: Client
    said: list[str] = field(default_factory=list)

    def submit(self, plan: dict[str, Any], **sets: Any) -> str:
        """Submit a plan; return the experiment's id."""
        answer = self.client.post("/experiments", {"plan": plan, "name": "lab", "set": sets})
        return str(answer["id"])

    def wait(self, what: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
        """Return the first true answer of `what`, tending the stack meanwhile."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            self.stack.tend(self.said.append)
            found = what()
            if found:
                return found
            time.sleep(0.2)
        raise AssertionError(f"nothing after {limit_s:g} s; said: {self.said}")

    def run_of(self, experiment: str) -> RunView | None:
        """Return the newest run of an experiment."""
        view = self.client.experiment(experiment)
        runs = [run for phase in view.phases for run in phase.runs]
        return self.client.run(runs[-1]) if runs else None

    def wait_for_step(self, experiment: str, step: int) -> RunView:
        """Return the run once its directory shows that rank 0 completed `step`."""

        def reached() -> RunView | None:
            run = self.run_of(experiment)
            if run is None or run.dir is None:
                return None
            return run if last_step(RunDir(Path(run.dir)), 0) >= step else None

        found: RunView = self.wait(reached)
        return found

    def wait_for_end(self, experiment: str) -> ExperimentView:
        """Return the experiment once nothing more happens by itself."""

        def ended() -> ExperimentView | None:
            view = self.client.experiment(experiment)
            if view.state is ExperimentState.FINISHED:
                return view
            run = self.run_of(experiment)
            waits = view.state is ExperimentState.AWAITING_DECISION
            return view if waits and (run is None or run.state is RunState.ENDED) else None

        found: ExperimentView = self.wait(ended)
        return found


def beats(run: RunDir, rank: int) -> list[dict[str, Any]]:
    """Return a rank's heartbeats, as they stand in its file."""
    return [json.loads(line) for line in load_all_lines(run.heartbeat(rank))]


def last_step(run: RunDir, rank: int) -> int:
    """Return the last step that a rank's file shows as completed."""
    return max((row["step"] for row in beats(run, rank) if row["msg"] == "step_end"), default=0)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def assert_found_again(run: RunDir) -> None:
    """The run's files, folded again, come to the findings that were recorded while it lived."""
    recorded = [json.loads(line) for line in load_all_lines(run.findings)]
    again = [wire_value(finding.wire()) for finding in refold(run.path).findings]
    assert [row | {"evidence": []} for row in again] == [row | {"evidence": []} for row in recorded]


def processes_of(run_id: str) -> list[int]:
    """Return the pids of the living processes that carry a run's token."""
    mark = f"GONOGO_RUN={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            names = (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if mark in names and state not in "ZX":
            found.append(int(entry.name))
    return found


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a command printed."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> dict[str, Any]:
        """Return the one JSON object on stdout."""
        found: dict[str, Any] = json.loads(self.stdout)
        return found


def gonogo(home: Path, *arguments: str, timeout_s: float = 850) -> Spoken:
    """Run the command line as a person would."""
    done = subprocess.run(
        [sys.executable, "-m", "gonogo.cli.main", *arguments],
        env=clean_environ(home),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Spoken(done.returncode, done.stdout, done.stderr)


class Receiver:
    """A webhook receiver on loopback that keeps what it gets."""

    def __init__(self) -> None:
        received: list[tuple[dict[str, str], dict[str, Any]]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append((dict(self.headers.items()), json.loads(body)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        self.received = received
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @cached_property
    def url(self) -> str:
        """Where it listens."""
        return urllib.parse.urlunsplit(
            ("http", f"127.0.0.1:{self._server.server_port}", "/hook", "", "")
        )

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
