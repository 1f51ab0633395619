"""Compare findings.jsonl with the findings of the fold. The fold is the witness, not the file.

Findings are folded again at every judging. A finding of the fold counts whether the file has it or
not. A halt that only the file has counts too, since the run was ended for it. Every difference is
named.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from os.path import lexists

from pydantic import ValidationError

from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.finding import Finding, Severity
from gonogo.judge.facts.files import unreadable_doubt
from gonogo.rundir import RunDir, load_all_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The findings that count, and how the file differs from the fold."""

    findings: tuple[Finding, ...]
    differences: tuple[Doubt, ...]


def compare_findings(
    run_dir: RunDir, folded: Iterable[Finding], unreadable: list[Doubt]
) -> Compared:
    """Return the findings of the fold, with the halts that only the file has.

    Args:
        run_dir: the run directory.
        folded: what the fold found.
        unreadable: is told what of findings.jsonl cannot be read.
    """
    found = {row.key: row for row in folded}
    counted = dict(found)
    recorded = load_findings(run_dir, unreadable) or []
    known = {row.key for row in recorded}
    differences = [_difference(None, row) for key, row in found.items() if key not in known]
    for row in recorded:
        key, mine = row.key, found.get(row.key)
        if mine is None:
            differences.append(_difference(row, None))
            if row.severity is Severity.HALT:
                counted[key] = row
        elif _essence(mine) != _essence(row):
            differences.append(_difference(row, mine))
            if row.severity is Severity.HALT and mine.severity is not Severity.HALT:
                counted[f"{key} as recorded"] = row
    more = [row for key, row in counted.items() if key not in found]
    findings = (*found.values(), *more)
    return Compared(findings=findings, differences=tuple(differences))


def load_findings(run_dir: RunDir, unreadable: list[Doubt] | None = None) -> list[Finding] | None:
    """Return the recorded findings, or None when there is no findings.jsonl.

    Args:
        run_dir: the run directory.
        unreadable: receives what cannot be read.
    """
    problems = [] if unreadable is None else unreadable
    if not lexists(run_dir.findings):
        return None
    found, bad = list[Finding](), 0
    try:
        for line in filter(bytes.strip, load_all_lines(run_dir.findings)):
            try:
                found.append(Finding.model_validate_json(line))
            except ValidationError:
                bad += 1
    except OSError as error:
        problems.append(unreadable_doubt("findings.jsonl", error))
    if bad:
        what = f"{bad} lines"
        problems.append(Doubt(kind=DoubtKind.UNREADABLE, name="findings.jsonl", found=what))
    return found


def _essence(row: Finding) -> tuple[object, ...]:
    return row.detector, row.severity, row.rank, row.section, row.step


def _difference(recorded: Finding | None, folded: Finding | None) -> Doubt:
    row = recorded or folded
    assert row is not None
    return Doubt(
        kind=DoubtKind.FINDING_DIFFERS,
        rank=row.rank,
        step=row.step,
        name=row.detector,
        expected=None if folded is None else folded.severity.value,
        found=None if recorded is None else recorded.severity.value,
    )
