"""What runs while things are killed, and what must hold afterwards."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from gonogo.ledger.sign import Trust
from gonogo.ledger.verify import verify_folder
from gonogo.rundir import RunDir
from gonogo.signing import load_public_key
from service.db.schema import RunRow
from service.db.store import Store
from tests.e2e.lab import beats, processes_of

# The experiments that run while things are killed. Small programs without torch, of a few


class Kind(StrEnum):
    """What an experiment is, and so how it must end."""

    HEALTHY = "healthy"
    """Two phases, attached, with checkpoints: GO."""
    PRINTS = "prints"
    """One phase of a program that knows nothing of us: CONDITIONAL_GO, by what is waived."""
    FAILS = "fails"
    """It ends with 3 by itself: NO_GO, once."""


ENDS = {Kind.HEALTHY: "GO", Kind.PRINTS: "CONDITIONAL_GO", Kind.FAILS: "NO_GO"}

_ATTACHED = """
import json, sys, time
import gonogo.trainer

fails_at = int(sys.argv[1])
with gonogo.trainer.attach(identity={"params": 1000}) as beat:
    begun = 0
    if beat.resume_from is not None:
        begun = json.loads((beat.resume_from / "state.json").read_text())["step"]
    for step in range(begun + 1, beat.steps + 1):
        time.sleep(0.1)
        if step == fails_at:
            sys.exit(3)
        beat.step(loss=5 - step / 1000, tokens=64)
        halts = beat.should_halt()
        if halts or beat.should_save():
            with beat.section("checkpoint"):
                folder = beat.checkpoint_path()
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "state.json").write_text(json.dumps({"step": step}))
                beat.checkpoint(folder)
        if halts:
            break
"""
_PRINTS = """
import sys, time

for step in range(int(sys.argv[1])):
    time.sleep(0.1)
    print(f"iter {step}: loss {5 - step / 1000:.4f}", flush=True)
"""
_STEPS = 80
_FAILS_AT = 40


def plan_of(kind: Kind, folder: Path) -> dict[str, Any]:
    """Return the plan of an experiment of a kind; its script is written where it is not yet."""
    prints = kind is Kind.PRINTS
    script = folder / ("prints.py" if prints else "attached.py")
    if not script.exists():
        script.write_text(_PRINTS if prints else _ATTACHED)
    argument = _STEPS if prints else _FAILS_AT if kind is Kind.FAILS else 0
    phase = {"name": "one", "steps": _STEPS, "checkpoint": {"every_steps": 20, "every_s": 600}}
    finite = {"id": "finite", "metric": "loss", "aggregate": "all_finite"}
    phases = [phase if prints else {**phase, "gate": [finite]}]
    if kind is Kind.HEALTHY:
        phases.append({**phases[0], "name": "two"})
    return {
        "v": 1,
        "name": f"chaos-{kind}",
        "profile": "cpu",
        "workload": {"command": [sys.executable, script.name, str(argument)], "cwd": str(folder)},
        "train": {"lr": 0.1},
        "retry": {"infra": 4},
        "phases": phases,
        **({"waive": ["identity", "coverage"]} if prints else {}),
    }


# What is wrong after the kills? Each check looks at one thing that must hold, from outside.


if TYPE_CHECKING:
    from tests.e2e.chaos import Chaos

ALERTED_S = 30.0
"""How long an alert may be under way once everything is up again."""


def problems_of(chaos: Chaos) -> list[str]:
    """Return what is wrong, a sentence each."""
    checks = (_experiments, _submissions, _runs, _lines, _events, _decisions, _judged, _alerts)
    return [text for check in checks for text in check(chaos)]


def _experiments(chaos: Chaos) -> Iterator[str]:
    """Every experiment has the verdict of its kind."""
    for name, kind in chaos.kinds.items():
        view = chaos.lab.client.experiment(name)
        unseen = kind is Kind.PRINTS and name in chaos.unseen
        if view.verdict != ENDS[kind] and not (unseen and view.verdict == "INCONCLUSIVE"):
            why = view.cause.told() if view.cause else "no cause is told"
            yield f"{name} ({kind}) is {view.state} {view.verdict}: {why}"


def _submissions(chaos: Chaos) -> Iterator[str]:
    """What was acknowledged is there, once."""
    rows = list(chaos.lab.client.pages("/experiments", limit=200))
    names = Counter(row["name"] for row in rows)
    yield from (f"{name} was made {n} times" for name, n in names.items() if n > 1)
    lost = chaos.kinds.keys() - {row["id"] for row in rows}
    yield from (f"{name} was acknowledged and is gone" for name in lost)


def _runs(chaos: Chaos) -> Iterator[str]:
    """Only its keeper's death ended a healthy run, which was then resumed.

    A run whose worker was killed between claim and launch was never begun, and is tried again.
    """
    for name, kind in chaos.kinds.items():
        for phase in chaos.lab.client.experiment(name).phases:
            runs = [chaos.lab.client.run(run) for run in phase.runs]
            for n, run in enumerate(runs):
                code = run.outcome.code if run.outcome else None
                if processes_of(run.id):
                    yield f"{run.id} has processes left"
                never_began = run.started_at is None  # its worker was killed before the launch
                if code == "keeper_lost" and (never_began or run.id in chaos.keepers_killed):
                    if n + 1 == len(runs):
                        yield f"{run.id} lost its keeper and was not resumed"
                elif code != ("nonzero_exit" if kind is Kind.FAILS else "completed"):
                    text = run.outcome.text if run.outcome else ""
                    yield f"{run.id} ({kind}) ended as {code}: {text}"


def _lines(chaos: Chaos) -> Iterator[str]:
    """Every line of every run directory is in the database, once."""
    for run, folder in _folders(chaos):
        rows = chaos.lab.client.pages(f"/runs/{run}/heartbeats", limit=1000)
        stored = Counter(map(_key, rows))
        stood = Counter(_key(row) for rank in folder.ranks() for row in beats(folder, rank))
        if stored != stood:
            less, more = (stood - stored).total(), (stored - stood).total()
            yield f"{run}: {less} lines are not stored, {more} are too many"


def _key(row: dict[str, Any]) -> tuple[int, str, int]:
    return row["rank"], row["boot"], row["seq"]


def _events(chaos: Chaos) -> Iterator[str]:
    """A follower received each event once, and each experiment's events in order."""
    listed = list(chaos.lab.client.pages("/events", limit=1000))
    told = [row["id"] for row in chaos.events]
    yield from (f"{name} was told {n} times" for name, n in Counter(told).items() if n > 1)
    lost = {row["id"] for row in listed[: len(told)]} - set(told)
    if lost:
        yield f"{len(lost)} events were never sent to a follower"
    for name in chaos.kinds:
        seqs = [row["seq"] for row in listed if row["experiment"] == name]
        if seqs != list(range(1, len(seqs) + 1)):
            yield f"{name}: events come as {seqs}"


def _decisions(chaos: Chaos) -> Iterator[str]:
    """Every decision has its file, and each holds by itself and in its chain."""
    home = chaos.lab.stack.home
    for name in chaos.kinds:
        rows = list(chaos.lab.client.pages(f"/experiments/{name}/decisions", limit=200))
        yield from (
            f"{row['id']} has no file" for row in rows
            if not (home / "decisions" / f"{row['id']}.json").exists()
        )  # fmt: skip
        runs = Counter(row["run"] for row in rows if row["kind"] == "auto")
        yield from (f"{run} was decided {n} times" for run, n in runs.items() if n > 1)
    ledger = verify_folder(home / "decisions", Trust([load_public_key(home / "signing.pub")]))
    yield from (f"{row.decision}: {row.path}: {row.text}" for row in ledger.problems)


def _judged(chaos: Chaos) -> Iterator[str]:
    """No run is left that nobody judged."""
    settings = chaos.lab.stack.settings
    local = f"sqlite:///{chaos.lab.stack.home}/gonogo.db"
    store = Store(settings.inherited.get("GONOGO_DATABASE_URL", local))
    query = select(RunRow.id).where(RunRow.judged.is_(False))
    try:
        rows = store.read(lambda session: list(session.scalars(query)))
    finally:
        store.close()
    yield from (f"{run} is not judged" for run in rows)


def _alerts(chaos: Chaos) -> Iterator[str]:
    """Every alert reached its receiver, at least once, under its id."""
    deadline = time.monotonic() + ALERTED_S
    while True:
        due = {row["id"] for row in chaos.lab.client.pages("/alerts", limit=200)}
        got = {headers["webhook-id"] for headers, _ in chaos.receiver.received}
        if due <= got or time.monotonic() > deadline:
            break
        chaos.lab.stack.tend(chaos.lab.said.append)
        time.sleep(0.5)
    yield from (f"alert {name} never arrived" for name in due - got)


def _folders(chaos: Chaos) -> Iterator[tuple[str, RunDir]]:
    for name in chaos.kinds:
        for phase in chaos.lab.client.experiment(name).phases:
            for run in phase.runs:
                folder = chaos.lab.client.run(run).dir
                if folder is not None:
                    yield run, RunDir(Path(folder))
