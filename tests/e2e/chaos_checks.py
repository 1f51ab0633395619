"""What is wrong after the kills? Each check looks at one thing that must hold, from outside."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from gonogo.ledger.sign import Trust
from gonogo.ledger.verify import verify_folder
from gonogo.rundir import RunDir
from gonogo.signing import load_public_key
from service.db.schema import RunRow
from service.db.store import Store
from tests.e2e.chaos_plans import ENDS, Kind
from tests.e2e.lab import beats, processes_of

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
