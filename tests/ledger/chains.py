"""Decisions for tests of the ledger: those of release 0.1, and signed chains of the present one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gonogo.contract.canonical import digest
from gonogo.contract.decision import Verdict
from gonogo.judge.directory import judge_directory
from gonogo.ledger.again import judge_again
from gonogo.ledger.chain import Authority
from gonogo.ledger.recorded import (
    RecordedDecision,
    parse_decision,
    record_of,
    rule_digest,
)
from gonogo.ledger.seal import Entry, Place, append, by_person
from gonogo.ledger.sign import SigningKey, trusting
from gonogo.rundir import save_json
from gonogo.watch.registry import versions
from tests.data.make_runs import HERE

RELEASE = HERE / "releases" / "0.1.0"
HOMES = ("go", "hang", "nan")
KEY = SigningKey(bytes(range(32)))
OTHER_KEY = SigningKey(bytes(32))
TRUST = trusting([KEY.public])
AUTHORITY = Authority(trust=TRUST)
EXPERIMENT = "exp_01M7WY6TXP5J58NAZ77ZFKP9EZ"


def release(home: str) -> list[RecordedDecision]:
    """The decisions of a home of release 0.1, in their order."""
    files = (RELEASE / home / "decisions").glob("*.json")
    rows = [parse_decision(file.read_bytes()) for file in files]
    return sorted(rows, key=lambda row: row.decision.seq)


def entry_of(recorded: RecordedDecision) -> Entry:
    """What an automatic decision of the release decided, to be recorded again by the present."""
    decision = recorded.decision
    return Entry(
        kind=decision.kind,
        verdict=decision.verdict,
        criteria=decision.criteria,
        conditions=decision.conditions,
        diagnosis=decision.diagnosis,
        rules=recorded.document["rules"],
        facts=recorded.document["facts"],
        judge_version=decision.judge_version,
        reason=decision.reason,
    )


def chain(home: str = "go", *, key: SigningKey | None = KEY) -> list[RecordedDecision]:
    """The decisions of a release's home as the present release would have recorded them, signed;
    then the word of a person about the last phase."""
    rows: list[RecordedDecision] = []
    whose = release(home)[0].decision.experiment
    told = [*((entry_of(row), row) for row in release(home))]
    for entry, row in told:
        at = place(rows, row.decision.phase, row.decision.run, experiment=whose)
        rows.append(append(entry, at, key))
    person = by_person(Verdict.NO_GO, actor="ana", reason="the loss is too good")
    last = rows[-1]
    phase, run = last.decision.phase, last.decision.run
    at = place(rows, phase, run, supersedes=last.id, experiment=whose)
    return [*rows, append(person, at, key)]


def present(name: str) -> RecordedDecision:
    """The signed decision that the present judge makes about one of the example runs."""
    found = record_of(judge_directory(HERE / "runs" / name))
    whose = found.decision.experiment
    at = place([], found.decision.phase, found.decision.run, experiment=whose)
    entry = replace(entry_of(found), weakened=found.decision.weakened)
    return append(entry, at, KEY)


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


def judged_anew(recorded: RecordedDecision, **fields: Any) -> RecordedDecision:
    """A decision whose facts or rules were changed, and which says what they then come to."""
    document = {**recorded.document, **fields}
    return resealed(recorded, **fields, **judge_again(document["facts"], document["rules"]))


def save_chain(folder: Path, rows: Sequence[RecordedDecision]) -> Path:
    """Write each decision into its own file."""
    for row in rows:
        save_json(folder / f"{row.id}.json", json.loads(json.dumps(row.document)))
    return folder


def changed_since_the_example(name: str) -> set[str]:
    """Return the detectors whose rule is another one than in an example's order."""
    ordered = json.loads((HERE / "runs" / name / "order.json").read_bytes())["detectors"]
    return {detector for detector, version in versions().items() if ordered[detector] != version}
