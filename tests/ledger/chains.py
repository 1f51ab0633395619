"""Decisions for tests of the ledger: a signed chain of an experiment, and its run directories."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gonogo.contract.canonical import digest
from gonogo.contract.decision import DecisionKind, Verdict
from gonogo.judge.directory import judge_directory
from gonogo.ledger.recorded import RecordedDecision, record_of, rule_digest
from gonogo.ledger.replay import judge_again
from gonogo.ledger.seal import Entry, Place, append
from gonogo.ledger.sign import SigningKey, trusting
from gonogo.rundir import save_json
from tests.data.make_runs import EXPERIMENT, HERE, exit_of, healthy_ranks, order_of, save_run

KEY = SigningKey(bytes(range(32)))
OTHER_KEY = SigningKey(bytes(32))
TRUST = trusting([KEY.public])
PHASES = ("smoke", "extended", "extended", "production", "production")
"""For each automatic decision of `chain`."""


def entry_of(recorded: RecordedDecision) -> Entry:
    """What an automatic decision decided, to be recorded again at another place."""
    decision = recorded.decision
    return Entry(
        kind=decision.kind,
        verdict=decision.verdict,
        criteria=decision.criteria,
        conditions=decision.conditions,
        diagnosis=decision.diagnosis,
        rules=recorded.document["rules"],
        facts=recorded.document["facts"],
        reason=decision.reason,
        weakened=decision.weakened,
    )


@cache
def _runs() -> tuple[Path, tuple[RecordedDecision, ...]]:
    """A folder with one healthy run for each of PHASES, and what each deserves."""
    folder, rows = Path(tempfile.mkdtemp()), []
    for number, phase in enumerate(PHASES):
        run = f"run_01K0000000000000000000000{number}"
        order = order_of(phase=phase).model_copy(update={"run": run})
        ranks = healthy_ranks(order)
        save_run(folder / run, order, ranks, exit_of(ranks))
        rows.append(record_of(judge_directory(folder / run)))
    return folder, tuple(rows)


def save_runs(folder: Path) -> Path:
    """Write the run directories of `chain`."""
    return Path(shutil.copytree(_runs()[0], folder))


def around_runs() -> Path:
    """The folder in which the run directories of `chain` lie; nobody writes there."""
    return _runs()[0]


def chain(key: SigningKey | None = KEY, experiment: str = EXPERIMENT) -> list[RecordedDecision]:
    """Five decisions about the healthy runs, then the word of a person about the last phase."""
    rows: list[RecordedDecision] = []
    for found in _runs()[1]:
        decision = found.decision
        before = [row.id for row in rows if row.decision.phase == decision.phase]
        last = before[-1] if before else None
        at = place(rows, decision.phase, decision.run, supersedes=last, experiment=experiment)
        rows.append(append(entry_of(found), at, key))
    last = rows[-1]
    person = Entry(
        kind=DecisionKind.HUMAN, verdict=Verdict.NO_GO, actor="ana", reason="the loss is too good"
    )
    at = place(rows, last.decision.phase, last.decision.run, supersedes=last.id)
    return [*rows, append(person, replace(at, experiment=experiment), key)]


def present(name: str) -> RecordedDecision:
    """The signed decision about one of the example runs."""
    found = record_of(judge_directory(HERE / "runs" / name))
    at = place([], found.decision.phase, found.decision.run)
    return append(entry_of(found), at, KEY)


def place(
    rows: Sequence[RecordedDecision],
    phase: str | None,
    run: str | None,
    supersedes: str | None = None,
    experiment: str = EXPERIMENT,
) -> Place:
    """The next place of a chain."""
    return Place(
        id=f"dec_01K000000000000000000000{len(rows):02}",
        seq=len(rows) + 1,
        experiment=experiment,
        phase=phase,
        run=run,
        at="2026-01-01T00:00:00Z",
        prev_hash=rows[-1].decision.hash if rows else None,
        supersedes=supersedes,
    )


def edited(recorded: RecordedDecision, **fields: Any) -> RecordedDecision:
    """A decision with fields changed by hand, its seals as they were."""
    return record_of({**recorded.document, **fields})


def resealed(recorded: RecordedDecision, **fields: Any) -> RecordedDecision:
    """A decision changed by somebody who can count digests but has no key."""
    document = {**recorded.document, **fields}
    document["rule_digest"] = rule_digest(document["rules"])
    document["facts_digest"] = digest(document["facts"])
    document["hash"] = record_of(document).content_hash()
    return record_of(document)


def unsigned(recorded: RecordedDecision, **fields: Any) -> RecordedDecision:
    """The same without any signature, as if nobody had signed."""
    return resealed(recorded, key_id=None, signature=None, **fields)


def judged_anew(recorded: RecordedDecision, **fields: Any) -> RecordedDecision:
    """A decision whose facts or rules were changed, and which says what they then come to."""
    document = {**recorded.document, **fields}
    return unsigned(recorded, **fields, **judge_again(document["facts"], document["rules"]))


def save_chain(folder: Path, rows: Sequence[RecordedDecision]) -> Path:
    """Write each decision into its own file."""
    for row in rows:
        save_json(folder / f"{row.id}.json", json.loads(json.dumps(row.document)))
    return folder
