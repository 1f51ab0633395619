"""Orders and run directories that the worker's tests start from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.contract.records import ExitRecord, Preflight
from gonogo.contract.wire import Kind, new_id
from gonogo.rundir import RunDir, save_json


def make_order(**changes: Any) -> Order:
    """A small order on profile `cpu`."""
    base: dict[str, Any] = {
        "experiment": new_id(Kind.EXPERIMENT),
        "run": new_id(Kind.RUN),
        "token": 1,
        "plan": "demo",
        "plan_digest": "0" * 64,
        "phase": "smoke",
        "steps": 10,
        "world_size": 1,
        "profile": "cpu",
        "train": {},
    }
    return Order.model_validate({**base, **changes})


def make_run_dir(runs: Path, order: Order) -> RunDir:
    """The directory of a run whose preflight has passed."""
    run_dir = RunDir(runs / order.run)
    save_json(run_dir.order, order.document())
    save_json(run_dir.preflight, Preflight(passed=True).wire())
    return run_dir


def beat(rank: int, seq: int, **more: Any) -> bytes:
    """One heartbeat line."""
    line = {"v": 1, "ts": 100.0 + seq, "mono": float(seq), "pid": 1, "rank": rank, "boot": "b"}
    line |= {"seq": seq, "step": seq, "msg": "step_end", **more}
    return json.dumps(line).encode() + b"\n"


def write_beats(run_dir: RunDir, rank: int, seqs: range) -> list[str]:
    """Append heartbeats to a rank's file; returns the lines."""
    lines = [beat(rank, seq) for seq in seqs]
    with run_dir.heartbeat(rank).open("ab") as stream:
        stream.writelines(lines)
    return [line.decode().rstrip("\n") for line in lines]


def write_finding(run_dir: RunDir, key: str, severity: Severity = Severity.WARN) -> None:
    """Append a finding to findings.jsonl."""
    finding = Finding(detector=Detector.SLOW, severity=severity, at=1.0, key=key, text="slow")
    with run_dir.findings.open("ab") as stream:
        stream.write(finding.model_dump_json().encode() + b"\n")


def completed(at: float = 200.0) -> ExitRecord:
    """The end of a healthy run."""
    return ExitRecord(code=0, ended_at=at, ended_by=Actor.TRAINER, reason=OutcomeCode.COMPLETED)
