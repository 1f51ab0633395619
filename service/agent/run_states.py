"""What does a worker report about a run? Its states, findings and evidence, each idempotent.

A report of something that the run is already past changes nothing and is answered like the first
one. The end is stored with the sizes of all heartbeat files; judgement waits until the database
has every byte and every finding that they promise.
"""

import base64
import binascii
from collections.abc import Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any

from sqlalchemy import func, select

from gonogo.contract.agent import (
    MAX_EVIDENCE_BYTES,
    MAX_EVIDENCE_FILES,
    MAX_FINDINGS,
    EvidenceReport,
    FindingsReport,
    StateReport,
)
from gonogo.contract.api import AlertType
from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.decision import PASSING, Verdict
from gonogo.contract.errors import Rejected
from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.lifecycle import RunEvent, RunState
from gonogo.contract.outcome import Outcome
from gonogo.planning.resolve import FROZEN
from gonogo.watch.registry import shown_by_lines
from service.agent.fence import Bearer, check_bearer
from service.db.documents import Promised, is_by_service
from service.db.schema import EvidenceRow, ExperimentRow, FindingRow, ProgressRow, RunRow
from service.db.store import Topic, ring
from service.experiments.course import recall_failure
from service.experiments.lifecycle import Deed, lock_run, move_run, queue_alert, record_event
from service.queries.experiments import phases_of
from service.queries.findings import load_findings, load_known
from service.told.alert_text import finding_text
from service.told.causes import load_last_line

_PROGRESS = list(RunState)
_KEY_CHARS = 200
"""What the column of a finding's key takes."""
_WORD_CHARS = 200
_TOLD_CHARS = 4000
"""Of a text in events and alerts, which travel to everybody; the document is kept whole."""
_EVIDENCE = 100
"""How many of its files a told finding names."""
LEADS_TO = {
    RunEvent.CLAIM: RunState.CLAIMED,
    RunEvent.CHECK: RunState.PREFLIGHT,
    RunEvent.LAUNCH: RunState.STARTING,
    RunEvent.STEP: RunState.RUNNING,
    RunEvent.HALT: RunState.HALTING,
    RunEvent.END: RunState.ENDED,
}


def take_state(deed: Deed, run_id: str, report: StateReport, bearer: Bearer) -> None:
    """Let a run go on as its worker reports.

    Raises:
        NotFound: no such run.
        NotAllowed, StaleToken: see `check_bearer`.
        Conflict: an event that the run's state does not allow.
        Rejected: an end without its record.
    """
    experiment, run = lock_run(deed, run_id)
    check_bearer(run, bearer)
    if report.event is RunEvent.END and report.exit is None:
        raise Rejected("exit: missing; an end is reported with its record")
    _take_records(deed, experiment, run, report)
    if _PROGRESS.index(run.state) >= _PROGRESS.index(LEADS_TO[report.event]):
        return
    if report.event is RunEvent.END:
        _end(deed, experiment, run, report)
    else:
        move_run(deed, experiment, run, report.event, token=report.token)


def _take_records(deed: Deed, experiment: ExperimentRow, run: RunRow, report: StateReport) -> None:
    """Keep what the report brings; after the end nothing changes any more."""
    progress = deed.session.get_one(ProgressRow, run.id)
    progress.heard += 1
    progress.heard_at = deed.now
    if run.state == RunState.ENDED:
        return
    run.dir = report.dir or run.dir
    if report.preflight is not None:
        run.preflight = report.preflight.wire()
    if report.model is not None:
        run.model = report.model.wire()
        freeze_identity(deed, experiment, run, run.model)


def freeze_identity(
    deed: Deed, experiment: ExperimentRow, run: RunRow, identity: dict[str, object]
) -> None:
    """Freeze code, torch, device and driver, each as a run says it first; later ones must equal.

    A program may tell them one after the other: its code at once, its device with its model. What
    none says (a driver, on a CPU) stays unchecked.
    """
    found = {name: identity[name] for name in unfrozen(experiment.frozen, identity)}
    if not found:
        return
    experiment.frozen = {**experiment.frozen, **found}
    record_event(deed, experiment, "experiment.frozen", run=run.id, phase=run.phase, **found)


def unfrozen(frozen: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    """Return what a run tells of what is to be frozen and is not yet.

    One that tells otherwise what is frozen is not what was measured, and freezes nothing more.
    """
    said = {name: told[name] for name in FROZEN if told.get(name)}
    if any(said.get(name, value) != value for name, value in frozen.items()):
        return []
    return [name for name in said if name not in frozen]


def _end(deed: Deed, experiment: ExperimentRow, run: RunRow, report: StateReport) -> None:
    assert report.exit is not None
    told = _clipped(report.exit.text, _TOLD_CHARS)
    outcome = Outcome(code=report.exit.reason, actor=report.exit.ended_by, text=told)
    run.exit = report.exit.wire()
    run.outcome = outcome
    run.sizes = dict(report.sizes)
    run.findings_expected = min(report.findings, MAX_FINDINGS)
    run.promised = Promised(files=dict(report.files), records=dict(report.records))
    move_run(
        deed,
        experiment,
        run,
        RunEvent.END,
        token=report.token,
        outcome=outcome.code.value,
        ended_by=outcome.actor.value,
        text=outcome.text,
    )


def take_findings(deed: Deed, run_id: str, report: FindingsReport, bearer: Bearer) -> int:
    """Store the findings whose key is new and return how many they were.

    Only the first halt finding of a run alerts, and every one that asks for a person (`page`) does;
    none does once the run is judged (but see `_alert`). Of a run that has ended, so does the first
    one that shows it to have failed, which may come behind one that waited for a checkpoint. Of
    more than `MAX_FINDINGS` only the first halt is stored.

    Raises:
        NotFound: no such run.
        NotAllowed, StaleToken: see `check_bearer`.
    """
    experiment, run = lock_run(deed, run_id)
    check_bearer(run, bearer)
    known = load_known(deed.session, run_id)
    halts: list[Finding] = []
    if Severity.HALT in known.values():
        halts = [row for row in load_findings(deed.session, run_id) if _halts(row)]
    ended = run.state == RunState.ENDED
    taken = 0
    for finding in report.findings:
        told = _told(finding)
        first_halt = _halts(finding) and not halts
        if told.key in known or (len(known) >= MAX_FINDINGS and not first_halt):
            continue
        known[told.key] = finding.severity
        _store_finding(deed, experiment, run, finding, told, len(known))
        taken += 1
        if finding.act is Act.PAGE:
            _alert(deed, experiment, run, told, AlertType.FINDING_PAGE)
        elif _halts(finding):
            had_failed = shown_by_lines(halts) is not None
            halts.append(finding)
            failed = ended and not had_failed and shown_by_lines(halts) is not None
            if failed:
                deed.session.flush()
                recall_failure(deed, experiment, run)
            if first_halt or (failed and run.judged):
                _alert(deed, experiment, run, told, AlertType.FINDING_HALT)
    if taken and run.state == RunState.ENDED:
        ring(deed.session, Topic.ENDED)
    return taken


def _halts(finding: Finding) -> bool:
    """Say whether a finding ends its run; one that asks for a person alone (`page`) does not."""
    return finding.severity is Severity.HALT and finding.act is not Act.PAGE


def _storable_key(key: str) -> str:
    """Return a key as every database takes it: by its digest where it is long or holds a NUL.

    A detector from elsewhere chooses its own, and one that is refused would be owed for ever.
    """
    if len(key) <= _KEY_CHARS and "\x00" not in key:
        return key
    return f"sha256:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _told(finding: Finding) -> Finding:
    """Return a finding as events and alerts tell it: whatever was written, nothing without end."""
    section = finding.section
    return finding.model_copy(
        update={
            "key": _storable_key(finding.key),
            "detector": _clipped(finding.detector, _WORD_CHARS),
            "section": None if section is None else _clipped(section, _WORD_CHARS),
            "text": _clipped(finding.text, _TOLD_CHARS),
            "evidence": [_clipped(path, _WORD_CHARS) for path in finding.evidence[:_EVIDENCE]],
        }
    )


def _store_finding(
    deed: Deed,
    experiment: ExperimentRow,
    run: RunRow,
    finding: Finding,
    told: Finding,
    number: int,
) -> None:
    deed.session.add(
        FindingRow(
            run=run.id,
            key=told.key,
            n=number,
            severity=finding.severity,
            document=canonical_bytes(finding.wire()).decode(),
        )
    )
    record_event(
        deed,
        experiment,
        "finding",
        run=run.id,
        phase=run.phase,
        detector=told.detector,
        severity=told.severity.value,
        rank=told.rank,
        step=told.step,
        text=told.text,
        key=told.key,
    )


def _alert(
    deed: Deed, experiment: ExperimentRow, run: RunRow, finding: Finding, kind: AlertType
) -> None:
    """Tell a person of a finding, unless the run has been judged since.

    Of one that was called dead, and whose phase has passed without it, a person is told even then
    that its lines show that it had failed: nothing else looks at them any more.
    """
    place = f"{experiment.name}, {run.phase}"
    if run.judged:
        passed = _passed_without(deed, run)
        if passed is None or shown_by_lines([finding]) is None:
            return
        place = f"{place}, attempt {run.attempt}, which was called dead ({passed} stands)"
    said = None if finding.rank is None else load_last_line(deed.session, run, finding.rank)
    text = finding_text(experiment.id, place, finding, said)
    queue_alert(
        deed,
        experiment,
        kind,
        text,
        run=run,
        rank=finding.rank,
        finding=finding.wire(),
    )


def _passed_without(deed: Deed, run: RunRow) -> Verdict | None:
    """Return by which verdict the phase of a run has passed that was called dead, if it has."""
    if not is_by_service(run.exit):
        return None
    phases = phases_of(deed.session, run.experiment)
    verdict = next(row.verdict for row in phases if row.name == run.phase)
    return verdict if verdict in PASSING else None


def take_evidence(deed: Deed, run_id: str, report: EvidenceReport, bearer: Bearer) -> None:
    """Store one file of evidence; the same path again replaces it.

    Raises:
        NotFound: no such run.
        NotAllowed, StaleToken: see `check_bearer`.
        Rejected: a path that leaves the run directory, bad base64, or more than a run may upload.
    """
    _, run = lock_run(deed, run_id)
    check_bearer(run, bearer)
    path = PurePosixPath(report.path)
    if path.is_absolute() or ".." in path.parts or not path.parts or len(report.path) > 400:
        raise Rejected(f"path: {report.path!r} is not a path inside the run directory")
    try:
        content = base64.b64decode(report.content_b64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Rejected("content_b64: not base64") from error
    session = deed.session
    others = select(func.count(), func.coalesce(func.sum(EvidenceRow.size), 0)).where(
        EvidenceRow.run == run_id, EvidenceRow.path != str(path)
    )
    files, size = session.execute(others).one()
    if files >= MAX_EVIDENCE_FILES or size + len(content) > MAX_EVIDENCE_BYTES:
        most = f"{MAX_EVIDENCE_FILES} files and {MAX_EVIDENCE_BYTES} bytes"
        raise Rejected(f"evidence: a run may upload {most}")
    row = session.get(EvidenceRow, (run_id, str(path)))
    if row is None:
        row = EvidenceRow(run=run_id, path=str(path), size=0, truncated=False, content=b"")
        session.add(row)
    row.size, row.content, row.truncated = len(content), content, report.truncated
