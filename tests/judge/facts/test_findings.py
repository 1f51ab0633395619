"""The fold is the witness: a halt that only the file has counts, and every difference is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.outcome import Detector
from gonogo.judge.facts.record import RunFiles, compare_findings
from tests.judge.runs import finding

HALT = finding(Detector.STALL, rank=1, section="data", step=8)
WARN = finding(Detector.STALL, Severity.WARN, rank=1, section="data", step=8).model_copy(
    update={"key": HALT.key}
)


def recorded(path: Path, *rows: Finding) -> RunFiles:
    text = "".join(row.model_dump_json() + "\n" for row in rows)
    (path / "findings.jsonl").write_text(text)
    return RunFiles(path)


@pytest.mark.parametrize(
    ("file", "fold", "counted", "differences"),
    [
        ([HALT], [HALT], [HALT], []),
        ([], [HALT], [HALT], [("halt", None)]),
        ([HALT], [], [HALT], [(None, "halt")]),
        ([WARN], [], [], [(None, "warn")]),
        ([HALT], [WARN], [WARN, HALT], [("warn", None), (None, "halt")]),
        ([WARN], [HALT], [HALT], [("halt", None), (None, "warn")]),
        (
            [HALT.model_copy(update={"rank": None})],
            [HALT],
            [HALT, HALT.model_copy(update={"rank": None})],
            [("halt", None), (None, "halt")],
        ),
        # its time and its words make no difference
        ([HALT.model_copy(update={"at": 9.0, "text": "-"})], [HALT], [HALT], []),
    ],
)
def test_what_counts_and_what_differs(
    file: list[Finding],
    fold: list[Finding],
    counted: list[Finding],
    differences: list[tuple[str | None, str | None]],
    tmp_path: Path,
) -> None:
    files = recorded(tmp_path, *file)
    findings, found = compare_findings(fold, files.rows("findings.jsonl", Finding))
    assert sorted(findings, key=str) == sorted(counted, key=str)
    assert [(row.expected, row.found) for row in found] == differences
    assert files.unreadable == []


def test_without_the_file_there_are_those_of_the_fold(tmp_path: Path) -> None:
    assert compare_findings([HALT], [])[0] == (HALT,)


def test_lines_that_are_no_findings_are_counted(tmp_path: Path) -> None:
    files = recorded(tmp_path, HALT)
    with (tmp_path / "findings.jsonl").open("a") as stream:
        stream.write("\n\nno finding\n{}\n")
    assert [*files.rows("findings.jsonl", Finding)] == [HALT]
    assert [(row.name, row.found) for row in files.unreadable] == [("findings.jsonl", "2 lines")]
