"""What is reported of a run, built from its directory alone: events, findings, whole files.

At most 50 MB of evidence a run, each file once it is complete. A larger file is truncated and
marked so; all of it stays on the host.
"""

import base64
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gonogo.contract.errors import Corrupt, Rejected, StaleToken
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Msg, parse_object
from gonogo.contract.lifecycle import RunEvent
from gonogo.contract.records import ModelRecord, Preflight
from gonogo.contract.worker_messages import (
    MAX_EVIDENCE_BYTES,
    MAX_EVIDENCE_FILES,
    MAX_EVIDENCE_PATH,
    MAX_FINDINGS_BYTES,
    MAX_RECORD_BYTES,
    MAX_RECORDS_BYTES,
    RECORD_PATH,
    EvidenceReport,
    RecordReport,
    StateReport,
    Telemetry,
)
from gonogo.files import is_for_good, is_there, read_plain
from gonogo.rundir import RunDir, is_text, load_lines, load_record
from worker.client import ControlPlane, KeyRefused

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


MAX_FILE_BYTES = 4 * 2**20
SENT_AT_THE_END = (
    *("profile.json", "profile.txt"),
    *("gate_health.csv", "k_stats.csv", "fallback_counters.csv"),
)
"""Tables of a trainer, uploaded once nothing writes to them any more."""
SETTLED_S = 1.0
"""While the run lives, a file that was written more recently may be incomplete."""

_RECORD = re.compile(RECORD_PATH)
_NUMBER = re.compile(r"[0-9]+")
_PATTERNS = ("*.json", "preflight/*.json", "preflight/node*/preflight.json", ".HALT", ".kill")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceFile:
    """One file to upload; `path` is relative to the run directory."""

    path: str
    bytes: int


def pending_evidence(
    run_dir: RunDir, uploaded: Mapping[str, int], *, ended: bool, now: float | None = None
) -> list[EvidenceFile]:
    """Return the files not uploaded at their present size, evidence first, within the limit."""
    now = time.time() if now is None else now
    room = MAX_EVIDENCE_BYTES - sum(min(size, MAX_FILE_BYTES) for size in uploaded.values())
    pending: list[EvidenceFile] = []
    candidates = _candidates(run_dir, ended=ended)
    for path in sorted(candidates, key=lambda path: (path.name in SENT_AT_THE_END, path)):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        name = str(path.relative_to(run_dir.path))
        if len(name) > MAX_EVIDENCE_PATH or not is_text(name):
            continue
        settled = ended or abs(now - stat.st_mtime) > SETTLED_S
        if uploaded.get(name) == stat.st_size or not settled:
            continue
        cost = min(stat.st_size, MAX_FILE_BYTES)
        if cost > room or len(uploaded) + len(pending) >= MAX_EVIDENCE_FILES:
            break
        room -= cost
        pending.append(EvidenceFile(path=name, bytes=stat.st_size))
    return pending


def build_evidence(run_dir: RunDir, token: int, item: EvidenceFile) -> EvidenceReport | None:
    """Return the upload of one file, or None when it is gone or leads out of the directory."""
    try:
        with run_dir.inside(item.path).open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES)
    except (FileNotFoundError, Rejected):
        return None
    return EvidenceReport(
        token=token,
        path=item.path,
        content_b64=base64.b64encode(data).decode("ascii"),
        truncated=item.bytes > len(data),
    )


def _candidates(run_dir: RunDir, *, ended: bool) -> Iterator[Path]:
    """Yield the files of evidence/, the stack dumps, and at the end the trainer's tables."""
    paths = [
        Path(folder) / name for folder, _, names in os.walk(run_dir.evidence) for name in names
    ]
    paths += run_dir.path.glob("stackdump_rank*.txt")
    paths += [run_dir.path / name for name in SENT_AT_THE_END] if ended else []
    for path in paths:
        unfinished = path.name.startswith(".") or path.name.endswith((".tmp", ".part"))
        if not unfinished and path.is_file() and not path.is_symlink():
            yield path


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallRecord:
    """One record; `path` is relative to the run directory."""

    path: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Digest of its bytes."""
        return hashlib.sha256(self.content).hexdigest()


def load_small_records(run_dir: RunDir) -> list[SmallRecord]:
    """Return the small records that there are.

    One that is too large is left out, and so are those beyond the limit for all of them. Records of
    ranks and nodes come last, in the order of their numbers.
    """
    found, room = [], MAX_RECORDS_BYTES
    os.listdir(run_dir.path)  # or raise: `glob` may pass over what cannot be read now
    paths = (path for pattern in _PATTERNS for path in run_dir.path.glob(pattern))
    names = {str(path.relative_to(run_dir.path)) for path in paths}
    for name in sorted(filter(_RECORD.fullmatch, names), key=_record_order):
        path = run_dir.path / name
        if path.is_symlink():
            continue
        try:
            with read_plain(path) as stream:
                content = stream.read(MAX_RECORD_BYTES + 1)
        except OSError as error:
            if not (isinstance(error, FileNotFoundError) or is_for_good(error)):
                raise
            continue
        if len(content) > MAX_RECORD_BYTES:
            _log.warning("%s is too large to ship", name, extra={"action": "record_too_large"})
            continue
        if len(content) > room:
            _log.warning("%s and more is too much to ship", name, extra={"action": "no_room"})
            break
        room -= len(content)
        found.append(SmallRecord(path=name, content=content))
    return found


def _record_order(name: str) -> tuple[int, str]:
    number = _NUMBER.search(name)
    return (-1 if number is None else int(number[0])), name


class SentRecords:
    """The small records of one run that the control plane has."""

    def __init__(self, run_dir: RunDir, run: str, token: int, client: ControlPlane) -> None:
        self._dir, self._run, self._token, self._client = run_dir, run, token, client
        self._sent: dict[str, str] = {}

    def send(self) -> dict[str, str]:
        """Upload what is new or has changed; return path → digest of those that were accepted."""
        records = load_small_records(self._dir)
        for record in records:
            if self._sent.get(record.path) != record.sha256:
                self._send(record)
        return {
            record.path: record.sha256
            for record in records
            if self._sent.get(record.path) == record.sha256
        }

    def forget(self) -> None:
        """Send all of them again."""
        self._sent = {}

    def _send(self, record: SmallRecord) -> None:
        content = base64.b64encode(record.content).decode("ascii")
        report = RecordReport(token=self._token, path=record.path, content_b64=content)
        try:
            self._client.post_record(self._run, report)
        except (StaleToken, KeyRefused):
            raise  # about the caller, not about the record
        except Rejected as error:
            _log.warning("%s: %s", record.path, error, extra={"action": "record_refused"})
            return
        self._sent[record.path] = record.sha256
