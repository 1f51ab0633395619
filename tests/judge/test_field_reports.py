"""What does the judge say of the five field reports' runs? (X19, R16, R18, R20-R22, R70, R82)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gonogo.judge.directory import judge_directory
from gonogo.planning.source import bundled_plan
from tests.data.field_reports import FIELD_REPORTS, PHASE, PLAN
from tests.data.field_reports_page import page

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {row.name: row for row in FIELD_REPORTS}


def judge(name: str, folder: Path) -> dict[str, Any]:
    path, now = BY_NAME[name].save(folder)
    return judge_directory(path, bundled_plan(PLAN), PHASE, now=now)


def criterion(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in document["criteria"] if row["id"] == name)
    return found


VERDICTS = [
    ("runbook_125m", "NO_GO", None, []),
    ("a100_hang", "NO_GO", None, ["stall"]),
    ("a100_125m", "NO_GO", None, []),
    ("ddp_crash", "INCONCLUSIVE", "ddp_marked_ready_twice", []),
    ("50k_toy", "NO_GO", None, []),
    ("v4_toy", "NO_GO", None, []),
]


def test_every_report_is_judged() -> None:
    assert [name for name, *_ in VERDICTS] == [row.name for row in FIELD_REPORTS]


@pytest.mark.parametrize(("name", "verdict", "diagnosis", "halts"), VERDICTS)
def test_each_report_s_run_gets_its_verdict(
    name: str, verdict: str, diagnosis: str | None, halts: list[str], tmp_path: Path
) -> None:
    found = judge(name, tmp_path)
    assert (found["verdict"], found["diagnosis"]) == (verdict, diagnosis)
    assert [row["detector"] for row in found["findings"] if row["severity"] == "halt"] == halts
    topics = {text.partition(":")[0] for text in found["not_observed"]}
    assert {"identity", "coverage", "gpu_util"} <= topics


@pytest.mark.parametrize(("name", "tok_s"), [("runbook_125m", 38.0), ("a100_125m", 37.0)])
def test_the_real_model_s_speed_is_its_own_and_below_the_floor(
    name: str, tok_s: float, tmp_path: Path
) -> None:
    found = judge(name, tmp_path)
    throughput = criterion(found, "throughput")
    assert (throughput["outcome"], throughput["severity"]) == ("fail", "required")
    assert throughput["observed"] == pytest.approx(tok_s, rel=1e-6)


def test_the_page_of_field_reports_is_what_judging_says() -> None:
    made = "`python -m tests.data.field_reports_page > docs/explanation/field-reports.md` makes it"
    assert (ROOT / "docs/explanation/field-reports.md").read_text() == page(), made


@pytest.mark.parametrize("name", ["v4_toy", "50k_toy"])
def test_a_toy_is_told_by_the_tokens_that_its_own_lines_imply(name: str, tmp_path: Path) -> None:
    found = judge(name, tmp_path)
    assert criterion(found, "coverage")["outcome"] == "inconclusive"
    assert criterion(found, "identity")["outcome"] == "fail"
    assert criterion(found, "identity")["observed"] == {"tokens": 256}
    assert criterion(found, "throughput")["outcome"] == "inconclusive"
