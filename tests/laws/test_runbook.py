"""Does the runbook have a row for everything that gonogo may say?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gonogo.contract.api import AlertType
from gonogo.contract.decision import ConditionState, Verdict
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.outcome import CLASS_OF, Actor, Detector, Outcome, OutcomeCode
from gonogo.judge.gate.verdict import class_verdict

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "docs/how-to/runbook.md").read_text()
CONCEPTS = (ROOT / "docs/explanation/verdicts.md").read_text()


def rows(title: str, table: int = 0) -> list[list[str]]:
    """The cells of a section's table, its head left out."""
    text = RUNBOOK.split(f"\n## {title}\n")[1].split("\n## ")[0]
    parts = (part.strip() for part in text.split("\n\n"))
    tables = [part.splitlines() for part in parts if part.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[table][2:]]


def test_every_finding_has_a_row_in_order() -> None:
    assert [row[0] for row in rows("Findings")] == [f"`{name}`" for name in Detector]
    assert all(all(cell for cell in row) and len(row) == 4 for row in rows("Findings"))


def test_every_alert_has_a_row_in_order() -> None:
    rules = (ROOT / "docker/prometheus/rules.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert [row[0] for row in rows("Alerts", 1)] == alerts


def test_every_type_of_alert_has_a_row_in_order() -> None:
    assert [row[0] for row in rows("Alerts")] == [f"`{name}`" for name in AlertType]
    assert all(all(cell for cell in row) and len(row) == 3 for row in rows("Alerts"))


def test_every_outcome_is_there_under_its_class() -> None:
    told = {name: row[1] for row in rows("Outcomes") for name in re.findall(r"`(\w+)`", row[0])}
    assert told == {code.value: CLASS_OF[code].value for code in OutcomeCode}


@pytest.mark.parametrize("code", list(OutcomeCode))
def test_what_follows_an_outcome_is_its_verdict(code: OutcomeCode) -> None:
    (told,) = (row[2] for row in rows("Outcomes") if f"`{code}`" in row[0])
    verdict = class_verdict(Outcome(code=code, actor=Actor.INFRA), Verdict.GO)
    words = {Verdict.GO: "the gate decides", None: "no verdict"}
    assert words.get(verdict, str(verdict)) in told


@pytest.mark.parametrize(
    "word", [*Verdict, *ConditionState, *(s for s in ExperimentState if s != "finished")]
)
def test_the_concepts_name_every_state(word: str) -> None:
    assert re.search(rf"\b{word}\b", CONCEPTS)
