"""Reports about a run that are due, built from its directory alone."""

import logging
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gonogo.contract.agent import MAX_FINDINGS_BYTES, StateReport, Telemetry
from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Msg, parse_object
from gonogo.contract.lifecycle import RunEvent
from gonogo.contract.records import ModelRecord, Preflight
from gonogo.files import is_there
from gonogo.rundir import RunDir, load_lines, load_record

_log = logging.getLogger(__name__)
_STEP_LINES = frozenset({Msg.STEP_START, Msg.PROGRESS, Msg.STEP_END})
_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsPart:
    """Findings of a part of findings.jsonl, and where the next part begins."""

    findings: list[Finding]
    offset: int
    unreadable: int
    """Lines that are no findings."""


def load_findings(run_dir: RunDir, offset: int = 0) -> FindingsPart:
    """Return the findings on the complete lines from `offset` on, as many as fit in a message."""
    part = load_lines(run_dir.findings, offset, offset + MAX_FINDINGS_BYTES)
    found = [finding for line in part.lines if (finding := _finding_of(line))]
    unreadable = len(part.lines) - len(found)
    return FindingsPart(findings=found, offset=part.offset, unreadable=unreadable)


def recorded_findings(run_dir: RunDir) -> list[Finding]:
    """Return the different findings (by key) of the whole file, in order."""
    found: dict[str, Finding] = {}
    offset, part = -1, load_findings(run_dir)
    while part.offset != offset:
        found |= {finding.key: finding for finding in part.findings}
        offset = part.offset
        part = load_findings(run_dir, offset)
    return list(found.values())


def first_step_at(telemetry: Telemetry) -> float | None:
    """Return the stamp of the first line of a training step in a message, if any."""
    stamps = [at for part in telemetry.ranks if (at := _first_step(part.lines)) is not None]
    return min(stamps, default=None)


def _first_step(lines: list[str]) -> float | None:
    for line in lines:
        try:
            found = parse_object(line.encode())
        except Corrupt:
            continue
        stamp = found.get("ts")
        if found.get("msg") in _STEP_LINES and isinstance(stamp, int | float):
            return float(stamp)
    return None


def due_events(run_dir: RunDir, reported: Container[RunEvent], *, stepped: bool) -> list[RunEvent]:
    """Return the events in the directory that were not reported, in order."""
    shown: dict[RunEvent, Callable[[], bool]] = {
        RunEvent.CHECK: run_dir.order.exists,
        RunEvent.LAUNCH: lambda: _has_launched(run_dir, stepped),
        RunEvent.STEP: lambda: stepped,
        RunEvent.HALT: lambda: _is_halting(run_dir),
    }
    return [event for event, holds in shown.items() if event not in reported and holds()]


def build_report(
    run_dir: RunDir, token: int, event: RunEvent, *, stepped_at: float | None = None
) -> StateReport:
    """Return the report of an event before the end."""
    known = event is not RunEvent.CHECK
    stamps = {
        RunEvent.CHECK: _changed_at(run_dir.order),
        RunEvent.LAUNCH: _changed_at(run_dir.preflight),
        RunEvent.STEP: stepped_at,
        RunEvent.HALT: _changed_at(run_dir.halt) or _changed_at(run_dir.findings),
    }
    return StateReport(
        token=token,
        event=event,
        at=stamps.get(event) or _changed_at(run_dir.path) or 0.0,
        dir=str(run_dir.path),
        preflight=load_or_none(run_dir.preflight, Preflight) if known else None,
        model=load_or_none(run_dir.model, ModelRecord) if known else None,
    )


def load_or_none(path: Path, model: type[_M]) -> _M | None:
    """Return a record, or None when it is missing or cannot be read (which is logged)."""
    try:
        return load_record(path, model)
    except Corrupt as error:
        _log.warning("unreadable record: %s", error, extra={"action": "record_corrupt"})
        return None


def _has_launched(run_dir: RunDir, stepped: bool) -> bool:
    preflight = load_or_none(run_dir.preflight, Preflight)
    fit = preflight is not None and preflight.passed
    return fit and (stepped or is_there(run_dir.path / "keeper.json"))


def _is_halting(run_dir: RunDir) -> bool:
    """Say whether the run is being ended: `.HALT`, or a finding that halts."""
    if run_dir.halt.exists():
        return True
    try:
        found = recorded_findings(run_dir)
    except OSError as error:  # other events are reported all the same
        _log.warning("findings unseen: %s", error, extra={"action": "findings_unseen"})
        return False
    return any(finding.severity is Severity.HALT for finding in found)


def _finding_of(line: bytes) -> Finding | None:
    try:
        return Finding.model_validate_json(line)
    except ValidationError:
        return None


def _changed_at(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
