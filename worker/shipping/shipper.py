"""Ships one run directory to the control plane.

Growing files go by byte offset from what the control plane acknowledged, so an outage of any length
costs nothing. Findings and reports are idempotent. A control plane restored from an older database
gets everything again. `.shipped` is written once everything is acknowledged, or once a newer
attempt owns the run. Nothing here raises if a service fails.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ValidationError

from gonogo.contract.errors import (
    Conflict,
    NotAllowed,
    NotFound,
    Rejected,
    StaleToken,
    Unavailable,
)
from gonogo.contract.finding import Finding, Near
from gonogo.contract.lifecycle import RunEvent
from gonogo.contract.records import ExitRecord, ModelRecord, Preflight
from gonogo.contract.worker_messages import (
    Command,
    CommandKind,
    FindingsReport,
    StateReport,
    Telemetry,
    TelemetryAck,
)
from gonogo.files import read_small
from gonogo.rundir import RunDir, complete_bytes, save_json
from gonogo.supervise.durable import load_json
from worker.client import Backoff, ControlPlane, Intercepted
from worker.shipping.reports import (
    SentRecords,
    build_evidence,
    build_report,
    due_events,
    first_step_at,
    load_findings,
    load_or_none,
    pending_evidence,
    recorded_findings,
)
from worker.shipping.telemetry import GrowingFiles, has_content, stream_sizes

RENEW_S = 1.0
"""An empty message at least this often renews the lease and returns commands."""
OUTAGE = Backoff(first_s=0.25, longest_s=4.0)
MAX_ROUNDS = 8
FINISH_ROUNDS = 10_000
_REPORTED = ".reported.json"
"""A cache of what is acknowledged: losing it repeats idempotent reports and nothing else."""
_SUPERSEDED = TelemetryAck(
    command=Command(kind=CommandKind.SUPERSEDE, reason="the run's token is stale")
)
"""The answer that stands for a stale token."""

_WAITS = (Rejected, Unavailable, OSError)

_log = logging.getLogger(__name__)


class Reported(BaseModel):
    """What the control plane has acknowledged besides heartbeats and logs."""

    events: list[RunEvent] = []
    stepped_at: float | None = None
    """Stamp of the first acknowledged line of a training step."""
    findings_bytes: int = 0
    evidence: dict[str, int] = {}
    """File → its size when it was uploaded."""
    had: dict[str, int] = {}
    """Growing file → bytes that the control plane had; it has fewer after a restore."""

    def forget(self) -> None:
        """Repeat all reports: the control plane has lost some of them."""
        self.events, self.findings_bytes, self.evidence = [], 0, {}

    def save(self, run_dir: Path) -> None:
        """Write `.reported.json`; a full disk costs repetition, not the run."""
        try:
            save_json(run_dir / _REPORTED, {"v": 1, **self.model_dump(mode="json")})
        except OSError as error:
            _log.warning("no %s: %s", _REPORTED, error, extra={"action": "reported_unsaved"})


def load_reported(run_dir: Path) -> Reported:
    """Return what was acknowledged; nothing when the file is missing or torn."""
    try:
        return Reported.model_validate_json(read_small(run_dir / _REPORTED))
    except (OSError, ValidationError):
        return Reported()


class Shipper:
    """Ships one run directory; used from one thread. A second one may take over at any moment."""

    def __init__(
        self,
        run_dir: RunDir,
        run_id: str,
        token: int,
        client: ControlPlane,
    ) -> None:
        self.fenced = False
        """Whether a newer attempt owns the run."""
        self._dir = run_dir
        self._run = run_id
        self._token = token
        self._client = client
        self._growing = GrowingFiles(run_dir, token)
        self._records = SentRecords(run_dir, run_id, token, client)
        self._reported: Reported = load_reported(run_dir.path)
        self._waiting: set[str] = set()
        """Evidence that could not be sent at the last try."""
        self._unwritten: list[Finding] = []
        self._outage = OUTAGE
        self._not_before = float("-inf")
        self._last_call = float("-inf")

    @property
    def backlog_lines(self) -> int:
        """About how many complete lines have not been acknowledged."""
        return self._growing.backlog_lines

    def ship(
        self,
        now_mono: float,
        *,
        suspect: bool = False,
        near: Mapping[str, Near] | None = None,
    ) -> TelemetryAck | None:
        """Send what is new; return the last answer. A stale token is a `supersede` command."""
        if self.fenced:
            return _SUPERSEDED
        if now_mono < self._not_before:
            return None
        try:
            return self._ship(now_mono, suspect, near)
        except StaleToken as error:
            return _SUPERSEDED if self._is_fenced(error, now_mono) else None
        except (Unavailable, Rejected) as error:
            self._back_off(now_mono, error)
            return None

    def report(self) -> None:
        """Report the events that are due; what cannot be sent now is sent later."""
        if self.fenced:
            return
        try:
            self._send_states()
        except StaleToken as error:
            self._is_fenced(error, time.monotonic())
        except (Unavailable, Rejected) as error:
            _log.warning("report waits: %s", error, extra={"action": "report_waits"})

    def add_finding(self, finding: Finding) -> None:
        """Report a finding that could not be written to the full disk."""
        self._unwritten.append(finding)

    def finish(self, exit_record: ExitRecord, *, within_s: float = math.inf) -> bool:
        """Send the rest and the end, for so long; True when all is acknowledged (`.shipped`)."""
        if (self._dir.path / ".shipped").exists():
            return True
        try:
            if not (self.fenced or self._finish(exit_record, time.monotonic() + within_s)):
                return False
        except StaleToken as error:
            if not self._is_fenced(error, time.monotonic()):
                return False
        except (Unavailable, Rejected) as error:
            _log.warning("end not shipped: %s", error, extra={"action": "finish_failed"})
            return False
        if self.fenced and self._is_set_aside():
            return True  # the mark would lie in the newer attempt's directory
        self._reported.forget()  # who opens the run again sends all of it
        self._save()
        save_json(self._dir.path / ".shipped", {"v": 1, "fenced": self.fenced})
        return True

    def _is_set_aside(self) -> bool:
        token = (load_json(self._dir.order) or {}).get("token")
        return isinstance(token, int) and token > self._token

    def _ship(
        self, now_mono: float, suspect: bool, near: Mapping[str, Near] | None
    ) -> TelemetryAck | None:
        self._tolerate("finding_refused", self._send_unwritten)
        self._tolerate("finding_refused", self._send_findings)
        self._tolerate("state_refused", self._send_states)
        ack = None
        for _ in range(MAX_ROUNDS):
            telemetry = self._growing.build_message(suspect=suspect, near=near)
            asked, fresh = self._growing.asked, has_content(telemetry)
            if asked and not fresh and now_mono - self._last_call < RENEW_S:
                break
            ack, _ = self._send_telemetry(telemetry)
            self._last_call = now_mono
            if asked and not fresh:
                break
        self._outage = OUTAGE
        self._tolerate("state_refused", self._send_states)
        self._tolerate("evidence_waits", partial(self._send_evidence, limit=1), _WAITS)
        return ack

    def _tolerate(
        self,
        action: str,
        step: Callable[[], None],
        errors: tuple[type[Exception], ...] = (Rejected, Intercepted, OSError),
    ) -> None:
        """Do a step whose failure, or stale token without a newer one, holds no heartbeats back."""
        try:
            step()
        except errors as error:
            if isinstance(error, StaleToken) and error.newer > self._token:
                raise
            _log.warning("%s: %s", action, error, extra={"action": action})

    def _finish(self, exit_record: ExitRecord, deadline: float) -> bool:
        """Send everything, then the end; False where the time is up before."""
        for _ in range(FINISH_ROUNDS):
            telemetry = self._growing.build_message(suspect=False)
            if self._growing.asked and not has_content(telemetry):
                if self._growing.unread is not None:
                    raise self._growing.unread  # the end promises its lines
                break
            _, moved = self._send_telemetry(telemetry)
            if not moved:
                raise Unavailable("the control plane acknowledges nothing new")
            if has_content(telemetry) and time.monotonic() > deadline:
                return False  # the next call continues
        self._send_unwritten()
        self._send_findings()
        self._send_states()
        self._send_evidence(limit=10_000)
        beats = {str(rank): self._dir.heartbeat(rank) for rank in self._dir.ranks()}
        end = StateReport(
            token=self._token,
            event=RunEvent.END,
            at=exit_record.ended_at,
            dir=str(self._dir.path),
            preflight=load_or_none(self._dir.preflight, Preflight),
            model=load_or_none(self._dir.model, ModelRecord),
            exit=exit_record,
            sizes={rank: complete_bytes(path) for rank, path in beats.items()},
            findings=len(recorded_findings(self._dir)),
            files=stream_sizes(self._dir),
            records=self._records.send(),
        )
        self._once(end)
        return True

    def _send_telemetry(self, telemetry: Telemetry) -> tuple[TelemetryAck, bool]:
        """Send one message; return the answer, and whether more is acknowledged than before."""
        ack = self._client.post_telemetry(self._run, telemetry)
        moved = self._growing.take_over(telemetry, ack)
        had, self._reported.had = self._reported.had, self._growing.acknowledged
        if any(self._reported.had.get(name, 0) < size for name, size in had.items()):
            self._begin_anew()
        if self._reported.stepped_at is None and (at := first_step_at(telemetry)) is not None:
            self._reported.stepped_at = at
            self._save()
        return ack, moved

    def _begin_anew(self) -> None:
        """Send everything again: the database of the control plane was restored."""
        _log.warning(
            "the control plane has less than it had: all is sent again",
            extra={"action": "went_back"},
        )
        self._reported.forget()
        self._records.forget()
        self._save()

    def _send_states(self) -> None:
        stepped_at = self._reported.stepped_at
        events = self._reported.events
        for event in due_events(self._dir, events, stepped=stepped_at is not None):
            self._once(build_report(self._dir, self._token, event, stepped_at=stepped_at))
            self._reported.events.append(event)
            self._save()

    def _once(self, report: StateReport) -> None:
        """Report an event; one that the control plane is already past counts as reported."""
        try:
            self._client.post_state(self._run, report)
        except Conflict as error:
            if error.state is None:
                raise
            _log.info("%s is past: %s", report.event, error, extra={"action": "state_past"})

    def _send_unwritten(self) -> None:
        if self._unwritten:
            report = FindingsReport(token=self._token, findings=self._unwritten)
            self._client.post_findings(self._run, report)
            self._unwritten = []

    def _send_findings(self) -> None:
        part = load_findings(self._dir, self._reported.findings_bytes)
        while part.offset != self._reported.findings_bytes:
            if part.findings:
                report = FindingsReport(token=self._token, findings=part.findings)
                self._client.post_findings(self._run, report)
            if part.unreadable:
                text = "findings.jsonl: %d lines cannot be read"
                _log.warning(text, part.unreadable, extra={"action": "finding_corrupt"})
            self._reported.findings_bytes = part.offset
            self._save()
            part = load_findings(self._dir, part.offset)

    def _send_evidence(self, limit: int) -> None:
        """Upload up to `limit` files; only what the file system or key refuses is tried again."""
        ended = self._dir.exit.exists()
        pending = pending_evidence(self._dir, self._reported.evidence, ended=ended)
        pending.sort(key=lambda item: item.path in self._waiting)
        for item in pending[:limit]:
            try:
                report = build_evidence(self._dir, self._token, item)
                if report is not None:
                    self._client.post_evidence(self._run, report)
            except StaleToken:
                raise
            except (NotAllowed, NotFound, Conflict, OSError) as error:
                if item.path not in self._waiting:
                    text = "evidence waits: %s: %s"
                    _log.warning(text, item.path, error, extra={"action": "evidence_waits"})
                self._waiting.add(item.path)
                continue
            except Rejected as error:
                _log.warning("evidence refused: %s", error, extra={"action": "evidence_refused"})
            self._reported.evidence[item.path] = item.bytes
            self._save()

    def _back_off(self, now_mono: float, error: Exception) -> None:
        if self._outage.failures == 0:
            _log.warning("telemetry waits: %s", error, extra={"action": "telemetry_waits"})
        self._outage = self._outage.later(now_mono)
        self._not_before = self._outage.not_before

    def _is_fenced(self, error: StaleToken, now_mono: float) -> bool:
        """Note a stale token; False where the control plane names no newer one."""
        if error.newer > self._token:
            _log.error("fenced off: %s", error, extra={"action": "fenced"})
            self.fenced = True
        else:
            self._back_off(now_mono, error)
        return self.fenced

    def _save(self) -> None:
        self._reported.save(self._dir.path)
