"""Does findings.jsonl say what the lines and ticks come to? The fold is the witness, not the file.

Findings are folded again at every judging. One that the fold makes counts whether the file has it
or not; a halt that only the file has counts too, since something was ended for it. Every difference
is named.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
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
    lines: tuple[bytes, ...] = ()
    """Of findings.jsonl, as they were compared."""


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
    lines = _read_lines(run_dir, unreadable) or []
    recorded = _parse(lines, unreadable)
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
    findings = as_found(found.values(), more)
    return Compared(findings=findings, differences=tuple(differences), lines=tuple(lines))


def load_findings(run_dir: RunDir, unreadable: list[Doubt] | None = None) -> list[Finding] | None:
    """Return the recorded findings, or None when there is no findings.jsonl.

    Args:
        run_dir: the run directory.
        unreadable: is told how many lines are no findings.
    """
    problems = [] if unreadable is None else unreadable
    lines = _read_lines(run_dir, problems)
    return None if lines is None else _parse(lines, problems)


def _read_lines(run_dir: RunDir, unreadable: list[Doubt]) -> list[bytes] | None:
    if not lexists(run_dir.findings):
        return None
    try:
        return load_all_lines(run_dir.findings)
    except OSError as error:
        unreadable.append(unreadable_doubt("findings.jsonl", error))
        return []


def _parse(lines: Iterable[bytes], unreadable: list[Doubt]) -> list[Finding]:
    found, bad = [], 0
    for line in filter(bytes.strip, lines):  # a blank line tells nothing
        try:
            found.append(Finding.model_validate_json(line))
        except ValidationError:
            bad += 1
    if bad:
        what = f"{bad} lines"
        unreadable.append(Doubt(kind=DoubtKind.UNREADABLE, name="findings.jsonl", found=what))
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


def by_time(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings by when they were found; the first halt is the one that decides."""
    return tuple(sorted(findings, key=lambda row: (row.at, row.key)))


def as_found(folded: Iterable[Finding], more: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order of the fold, though the wall clock was set back meanwhile.

    The first halt is the one that decides. Those of one moment are ordered by key.

    Args:
        folded: in the order in which the fold made them.
        more: placed by when they say that they were found.
    """
    placed = [((row.at, 0, row.at, row.key), row) for row in more]
    latest, last, backs = -math.inf, -math.inf, 0
    for row in folded:
        backs += row.at < last
        latest, last = max(latest, row.at), row.at
        placed.append(((latest, backs, row.at, row.key), row))
    return tuple(row for _, row in sorted(placed, key=itemgetter(0)))
