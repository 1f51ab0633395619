"""A real supervised run for tests: keeper, torchrun, watcher and the test trainer in a directory.

Everything is read from the stamps that processes leave; waiting is polling with a deadline.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord
from gonogo.contract.wire import Kind, new_id
from gonogo.rundir import RunDir, load_all_lines, load_record
from gonogo.supervise.keeper.kill import find_processes
from gonogo.supervise.processes import send_signal
from gonogo.watch.offline_fold import refold

ROOT = Path(__file__).resolve().parents[2]
KEEPER = "gonogo.supervise.keeper"
TRAINER = "tests.supervise.heartbeat_trainer"
ALLOWED = ("--allow", TRAINER)
LIMIT_S = 60.0
WATCH = {
    "stall": {"suspect_s": 1, "halt_s": 2.5, "halt_x": 8, "min_steps": 3},
    "slow": {"warmup_steps": 5, "baseline_steps": 14, "halt_ratio": 3.5, "over_steps": 5},
    "alive_lost": {"suspect_s": 1, "halt_s": 2.5},
    "section_deadline": {"data": {"suspect_s": 2, "halt_s": 4}},
}


def wait_until(holds: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Return what `holds` returns once that is true."""
    give_up = time.monotonic() + limit_s
    while not (found := holds()):
        assert time.monotonic() < give_up, f"waited {limit_s} s for {what}"
        time.sleep(0.02)
    return found


def build_test_order(run: str, **changes: Any) -> Order:
    """Return an order of the test trainer; `changes` replace its parts."""
    parts: dict[str, Any] = {
        "experiment": "exp_01J00000000000000000000000",
        "run": run,
        "token": 1,
        "plan": "demo",
        "plan_digest": "0" * 64,
        "phase": "smoke",
        "steps": 30,
        "world_size": 2,
        "profile": "cpu",
        "entry": TRAINER,
        "train": {"step_s": 0.05},
        "env": {"NSA_TB_DISABLE": "1"},
        "identity": {
            "dim": 64, "params": 1000, "world_size": 2, "tokens_per_step": 2048,
            "nsa_env": {"NSA_TB_DISABLE": "1"},
        },
        "watch": WATCH,
        "heartbeat": {"alive_every_s": 0.3},
        "halt": {"grace_s": 1},
    }  # fmt: skip
    return Order.model_validate({**parts, **changes})


@dataclass(slots=True)
class SupervisedRun:
    """One run directory and its keeper."""

    path: Path
    order: Order
    keeper: subprocess.Popen[bytes] | None = None
    environ: dict[str, str] = field(default_factory=dict)
    module: str = KEEPER
    root: Path = ROOT
    """Folder of the release that supervises it."""

    @property
    def dir(self) -> RunDir:
        return RunDir(self.path)

    def start(self, *options: str) -> SupervisedRun:
        self.path.mkdir(parents=True, exist_ok=True)
        self.dir.order.write_text(json.dumps(self.order.document()))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GONOGO_", "NSA_"))}
        with (self.path / "keeper.log").open("ab") as log:
            self.keeper = subprocess.Popen(
                (sys.executable, "-m", self.module, str(self.path), *options, *ALLOWED),
                cwd=self.root,
                env={**kept, **self.environ},
                stdout=log,
                stderr=log,
            )
        return self

    def document(self) -> dict[str, Any]:
        """Return keeper.json."""
        found = json.loads((self.path / "keeper.json").read_text())
        assert isinstance(found, dict)
        return found

    def pid_of(self, who: str) -> int:
        """Return the pid of `agent` or `watcher`, once it was started."""
        child = wait_until(lambda: self._child(who), f"the {who}")
        return int(child["pid"])

    def _child(self, who: str) -> Any:
        try:
            return self.document().get(who)
        except FileNotFoundError:
            return None

    def beats(self, rank: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in load_all_lines(self.dir.heartbeat(rank))]

    def step(self) -> int:
        """Return the highest step that any rank has completed."""
        ranks = range(self.order.world_size)
        ended = [b["step"] for r in ranks for b in self.beats(r) if b["msg"] == "step_end"]
        return max(ended, default=0)

    def wait_for_step(self, step: int, limit_s: float = LIMIT_S) -> None:
        wait_until(lambda: self.step() >= step, f"step {step}", limit_s)

    def wait_for_exit(self) -> ExitRecord:
        """Return exit.json, after the keeper and the watcher have ended."""
        assert self.keeper is not None
        keeper = self.keeper
        wait_until(lambda: keeper.poll() is not None, "the keeper's end")
        record = load_record(self.dir.exit, ExitRecord)
        assert record is not None
        return record

    def findings(self) -> list[Finding]:
        """Return the recorded findings, which the fold of the files must give again."""
        return [Finding.model_validate_json(line) for line in load_all_lines(self.dir.findings)]

    def halts(self) -> list[Finding]:
        return [finding for finding in self.findings() if finding.severity is Severity.HALT]

    def assert_replays(self) -> None:
        """The findings recorded live are those of the fold of the directory, offline."""
        live = [finding.model_copy(update={"evidence": []}) for finding in self.findings()]
        again = refold(self.path)
        folded = {finding.key: finding for finding in again.findings}
        assert live == list(folded.values())
        assert again.watch is not None
        assert again.watch.problems == []
        assert again.watch.chained
        assert again.watch.reaches
        assert "exit.json" in json.loads(load_all_lines(self.dir.watch)[-1])["files"], "cut unseen"
        for start in again.watch.starts:
            assert (start.run, start.attempt) == (self.order.run, self.order.attempt)
        seen = {name: seal.sha256 for name, seal in again.watch.files.items()}
        assert {"order.json", "exit.json"} <= seen.keys()
        assert seen == {name: sha256((self.path / name).read_bytes()).hexdigest() for name in seen}

    def living(self) -> list[int]:
        """Return every process that carries the run's token.

        Several sweeps: one that forks for ever is not in every listing.
        """
        return sorted(find_processes(self.order.run, passes=5))

    def clean_up(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.keeper is not None and self.keeper.poll() is None:
            self.keeper.kill()
            self.keeper.wait()
        give_up = time.monotonic() + 120
        while (left := self.living()) and time.monotonic() < give_up:
            for pid in left:
                send_signal(pid, signal.SIGKILL)


def _state_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "keeper.json").read_text())
    return found


def kill_before_the_last_look(path: Path) -> None:
    """Have a run come to its end with nobody who sees it: watcher and keeper are killed then."""
    steps = path / "heartbeat_rank0.jsonl"
    wait_until(lambda: steps.exists() and b"step_end" in steps.read_bytes(), "a step")
    watched = path / "watch.jsonl"
    wait_until(lambda: watched.exists() and b'"upto"' in watched.read_bytes(), "a watched line")
    wait_until(lambda: _state_of(path)["watcher"], "keeper.json to name the watcher")
    state = _state_of(path)
    assert send_signal(state["watcher"]["pid"], signal.SIGSTOP)
    wait_until((path / "exit.json").exists, "the end")
    assert send_signal(state["pid"], signal.SIGKILL)


NewRun = Callable[..., SupervisedRun]


@contextmanager
def starting(folder: Path, module: str = KEEPER, root: Path = ROOT) -> Iterator[NewRun]:
    """Yield `new_run(*keeper options, environ=…, **order parts)` → a run that was started.

    Runs are cleaned up whatever happens. `module` is the keeper, `root` the folder of its release.
    """
    started: list[SupervisedRun] = []

    def start(
        *options: str, environ: dict[str, str] | None = None, **changes: Any
    ) -> SupervisedRun:
        path = folder / new_id(Kind.RUN)  # the token: two sessions of tests must not share it
        order = build_test_order(path.name, **changes)
        run = SupervisedRun(path=path, order=order, environ=environ or {}, module=module, root=root)
        started.append(run)
        return run.start(*options)

    yield start
    for run in started:
        run.clean_up()


@contextmanager
def no_threads() -> Iterator[None]:
    """Have this process get no thread, as where a container has used up its processes."""
    before = threading.stack_size(2**46)  # so much memory no host gives
    try:
        yield
    finally:
        threading.stack_size(before)
