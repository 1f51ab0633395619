"""The directory that a run would have left, written to disk without any process of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from gonogo import __version__
from gonogo.contract.canonical import wire_line
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.records import (
    PREFLIGHT_CHECKS,
    SANITY,
    FileSeal,
    ProcessState,
    RankProbe,
    Tick,
    WatchStart,
)
from gonogo.rundir import RunDir, save_json
from gonogo.watch.fold import WatchState, fold, start
from gonogo.watch.offline_fold import tick_digest, tick_line

BOOT_TS = 1_700_000_000.0
BOOT_MONO = 100.0
TICK_S = 0.5
PREFLIGHT = {
    "passed": True,
    "checks": [
        {"id": name, "outcome": "pass", "text": "ok"} for name in (*PREFLIGHT_CHECKS, SANITY)
    ],
}


def save_run(
    folder: Path,
    order: Order,
    lines: dict[int, list[str]],
    exit_record: dict[str, Any],
    findings: list[dict[str, Any]],
) -> RunDir:
    """Write a run that a watcher saw from its first line to its exit.

    Args:
        folder: its directory.
        order: what was ordered.
        lines: rank → its heartbeat lines.
        exit_record: how it ended.
        findings: what the watcher reported beyond what the fold finds.
    """
    run_dir = RunDir(folder)
    save_json(run_dir.order, order.document())
    save_json(run_dir.preflight, {"v": 1, **PREFLIGHT})
    for rank, rows in lines.items():
        run_dir.heartbeat(rank).write_text("".join(f"{line}\n" for line in rows))
    state, raised = start(order), list[Finding]()
    ticks = list(ticks_of(run_dir, order, lines, state, raised))
    run_dir.watch.write_bytes(b"".join(map(tick_line, ticks)))
    for rank, row in exit_record["ranks"].items():
        save_json(run_dir.rank_exit(int(rank)), {"v": 1, **row})
    whose = {
        "run": order.run,
        "attempt": order.attempt,
        "order_sha256": seal(run_dir.order).sha256,
        "watch": seal(run_dir.watch).wire(),
    }
    save_json(run_dir.exit, {"v": 1, **exit_record, **whose})
    last = last_tick(run_dir, ticks[-1], exit_record)
    with run_dir.watch.open("ab") as stream:
        stream.write(tick_line(last))
    raised += fold(state, last, {})[1]
    found = {row["key"]: Finding.model_validate(row) for row in findings}
    for finding in raised:
        found.setdefault(finding.key, finding)
    run_dir.findings.write_bytes(b"".join(wire_line(row.wire()) for row in found.values()))
    return run_dir


def ticks_of(
    run_dir: RunDir,
    order: Order,
    lines: dict[int, list[str]],
    state: WatchState,
    raised: list[Finding],
) -> Iterator[Tick]:
    """What a watcher records that reads every line within TICK_S; it extends `raised`."""
    waiting = {
        rank: [(json.loads(row)["mono"], row.encode()) for row in lines[rank]] for rank in lines
    }
    upto = dict.fromkeys(lines, 0)
    previous, number = None, 0
    began = WatchStart(
        run=order.run,
        attempt=order.attempt,
        order_sha256=seal(run_dir.order).sha256,
        version=__version__,
    )
    while number == 0 or any(waiting.values()):
        mono = BOOT_MONO + number * TICK_S
        beats: dict[int, list[bytes]] = {}
        for rank, rows in waiting.items():
            taken = [row for stamp, row in rows if stamp <= mono]
            if taken:
                beats[rank] = taken
                upto[rank] += sum(len(row) + 1 for row in taken)
                waiting[rank] = rows[len(taken) :]
        tick = Tick(
            n=number,
            mono=mono,
            ts=BOOT_TS + mono - BOOT_MONO,
            upto={str(rank): upto[rank] for rank in beats},
            go=number > 0,
            ranks=[
                RankProbe(rank=rank, pid=1000 + rank, state=ProcessState.ALIVE) for rank in lines
            ],
            prev=previous,
            start=began if number == 0 else None,
            files={} if number else seals(run_dir, run_dir.order, run_dir.preflight),
        )
        raised += fold(state, tick, beats)[1]
        tick = tick.model_copy(update={"lines": state.view.lines_seen(beats)})
        previous, number = tick_digest(tick_line(tick)), number + 1
        yield tick


def last_tick(run_dir: RunDir, before: Tick, exit_record: dict[str, Any]) -> Tick:
    """The tick that saw the end."""
    ranks = [
        RankProbe(
            rank=int(rank), pid=1000 + int(rank), state=ProcessState.DEAD,
            code=row["code"], signal=row["signal"], exit_at=row["at"],
        )
        for rank, row in exit_record["ranks"].items()
    ]  # fmt: skip
    return Tick(
        n=before.n + 1,
        mono=before.mono + TICK_S,
        ts=before.ts + TICK_S,
        ranks=ranks if exit_record["reason"] == "completed" else [],
        go=True,
        prev=tick_digest(tick_line(before)),
        files=seals(run_dir, run_dir.exit, *map(run_dir.rank_exit, run_dir.ended_ranks())),
    )


def seals(run_dir: RunDir, *paths: Path) -> dict[str, FileSeal]:
    """Each record's seal by its name in the run directory."""
    return {str(path.relative_to(run_dir.path)): seal(path) for path in paths}


def seal(path: Path) -> FileSeal:
    content = path.read_bytes()
    return FileSeal(bytes=len(content), sha256=sha256(content).hexdigest())


def save_checkpoint(run_dir: Path, *, step: int) -> None:
    """A checkpoint as the trainer leaves it: the manifest last."""
    folder = run_dir / "checkpoints" / f"step_{step:06d}"
    folder.mkdir(parents=True)
    content = b"x" * (10 + step)
    (folder / "model.pt").write_bytes(content)
    found = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {"v": 1, "step": step, "files": {"model.pt": found}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
