"""Decisions of release 0.1, as it left them on disk, come out the same in every later release."""

import json
from pathlib import Path
from typing import Any

import pytest

from gonogo.ledger.difference import first_difference
from gonogo.ledger.v1.document import as_recorded, content_hash
from gonogo.ledger.v1.facts import build_facts
from gonogo.ledger.v1.record import load_run
from gonogo.ledger.v1.rules import build_rules
from gonogo.ledger.v1.verdict import judge
from tests.data.make_runs import HERE

RELEASE = sorted((HERE / "releases" / "0.1.0").glob("*/decisions/*.json"))
GOLDEN = sorted((HERE / "decisions").glob("v1_*.json"))


def read(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_bytes())
    return document


def test_the_kept_release_has_a_go_a_hang_and_a_nan() -> None:
    verdicts = [(file.parts[-3], read(file)["verdict"]) for file in RELEASE]
    assert {name for name, _ in verdicts} == {"go", "hang", "nan"}
    assert {verdict for _, verdict in verdicts} >= {"GO", "NO_GO"}


@pytest.mark.parametrize("file", [*RELEASE, *GOLDEN], ids=lambda file: file.stem)
def test_recorded_facts_and_rules_come_to_the_recorded_judgement_and_hash(file: Path) -> None:
    document = read(file)
    assert content_hash(document) == document["hash"]
    assert first_difference(document, as_recorded(document)) is None
    again = judge(document["facts"], document["rules"])
    assert first_difference({name: document[name] for name in again}, again) is None


@pytest.mark.parametrize("file", RELEASE, ids=lambda file: file.stem)
def test_the_run_directory_comes_to_the_recorded_rules_and_facts(file: Path) -> None:
    document = read(file)
    record = load_run(file.parent.parent / "runs" / document["run"])
    assert record.order is not None
    rules = build_rules(record.order, document["rules"]["conditions"])
    assert first_difference(document["rules"], rules) is None
    assert first_difference(document["facts"], build_facts(record, rules)) is None
