"""Reports of a worker about a run: states, findings, evidence and small records; each idempotent.

A report of a state that the run has passed changes nothing. The end is stored with the sizes of all
files; judgement waits until the database has every byte and every finding that they promise.
"""

import base64
import binascii
import hashlib
from pathlib import PurePosixPath
from typing import Any

from sqlalchemy import func, select

from gonogo.contract.api import AlertType
from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.errors import Rejected
from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.lifecycle import RunEvent, RunState
from gonogo.contract.outcome import Outcome
from gonogo.contract.worker_messages import (
    MAX_EVIDENCE_BYTES,
    MAX_EVIDENCE_FILES,
    MAX_FINDINGS,
    MAX_RECORD_BYTES,
    MAX_RECORDS_BYTES,
    EvidenceReport,
    FindingsReport,
    RecordReport,
    StateReport,
)
from gonogo.planning.resolve import FROZEN
from service.agent.claims import Bearer, check_bearer
from service.db.columns import Promised
from service.db.schema import EvidenceRow, ExperimentRow, FindingRow, ProgressRow, RecordRow, RunRow
from service.db.store import Topic, ring
from service.experiments.lifecycle import (
    Deed,
    lock_run,
    move_run,
    queue_alert,
    record_event,
    with_next,
)
from service.queries.runs import load_findings, load_known

_PROGRESS = list(RunState)
_KEY_CHARS = 200
LEADS_TO = {
    RunEvent.CLAIM: RunState.CLAIMED,
    RunEvent.CHECK: RunState.PREFLIGHT,
    RunEvent.LAUNCH: RunState.STARTING,
    RunEvent.STEP: RunState.RUNNING,
    RunEvent.HALT: RunState.HALTING,
    RunEvent.END: RunState.ENDED,
}


def decoded(text: str, where: str) -> bytes:
    """Return the bytes of a base64 text."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Rejected(f"{where}: not base64") from error


def take_state(deed: Deed, run_id: str, report: StateReport, bearer: Bearer) -> None:
    """Advance a run as its worker reports."""
    experiment, run = lock_run(deed, run_id)
    check_bearer(run, bearer)
    if report.event is RunEvent.END and report.exit is None:
        raise Rejected("exit: missing; an end is reported with its record")
    progress = deed.session.get_one(ProgressRow, run.id)
    progress.heard += 1
    progress.heard_at = deed.now
    if run.state != RunState.ENDED:
        run.dir = report.dir or run.dir
        if report.preflight is not None:
            run.preflight = report.preflight.wire()
        if report.model is not None:
            run.model = report.model.wire()
            freeze_identity(deed, experiment, run, run.model)
    if _PROGRESS.index(run.state) >= _PROGRESS.index(LEADS_TO[report.event]):
        return
    if report.event is RunEvent.END:
        _end(deed, experiment, run, report)
    else:
        move_run(deed, experiment, run, report.event, token=report.token)


def freeze_identity(
    deed: Deed, experiment: ExperimentRow, run: RunRow, identity: dict[str, Any]
) -> None:
    """Freeze code, torch, device and driver when a run first reports each; later ones equal."""
    found = {name: identity[name] for name in unfrozen(experiment.frozen, identity)}
    if not found:
        return
    experiment.frozen = {**experiment.frozen, **found}
    record_event(deed, experiment, "experiment.frozen", run=run, **found)


def unfrozen(frozen: dict[str, Any], told: dict[str, Any]) -> list[str]:
    """Return the names to freeze: reported, not frozen; none if a frozen value is contradicted."""
    said = {name: told[name] for name in FROZEN if told.get(name)}
    if any(said.get(name, value) != value for name, value in frozen.items()):
        return []
    return [name for name in said if name not in frozen]


def _end(deed: Deed, experiment: ExperimentRow, run: RunRow, report: StateReport) -> None:
    assert report.exit is not None
    outcome = Outcome(code=report.exit.reason, actor=report.exit.ended_by, text=report.exit.text)
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
    """Store the findings whose key is new and return their number.

    The first halt of a run alerts, and so does each finding that asks for a person (`page`),
    unless the run has been judged. Beyond `MAX_FINDINGS` only the first halt is stored.
    """
    experiment, run = lock_run(deed, run_id)
    check_bearer(run, bearer)
    known = load_known(deed.session, run_id)
    halted = Severity.HALT in known.values() and any(
        map(_halts, load_findings(deed.session, run_id))
    )
    taken = 0
    for finding in report.findings:
        key, first_halt = _storable_key(finding.key), _halts(finding) and not halted
        if key in known or (len(known) >= MAX_FINDINGS and not first_halt):
            continue
        known[key] = finding.severity
        _store_finding(deed, experiment, run, finding, key, len(known))
        taken += 1
        halted = halted or first_halt
        if run.judged:
            continue
        if finding.act is Act.PAGE:
            _alert(deed, experiment, run, finding, AlertType.FINDING_PAGE)
        elif first_halt:
            _alert(deed, experiment, run, finding, AlertType.FINDING_HALT)
    if taken and run.state == RunState.ENDED:
        ring(deed.session, Topic.ENDED)
    return taken


def _halts(finding: Finding) -> bool:
    """Say whether a finding ends its run; a `page` does not."""
    return finding.severity is Severity.HALT and finding.act is not Act.PAGE


def _storable_key(key: str) -> str:
    """Return a key as every database takes it: by its digest if it is long or holds a NUL."""
    if len(key) <= _KEY_CHARS and "\x00" not in key:
        return key
    return f"sha256:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _store_finding(
    deed: Deed, experiment: ExperimentRow, run: RunRow, finding: Finding, key: str, n: int
) -> None:
    document = canonical_bytes(finding.wire()).decode()
    deed.session.add(
        FindingRow(run=run.id, key=key, n=n, severity=finding.severity, document=document)
    )
    record_event(
        deed,
        experiment,
        "finding",
        run=run,
        detector=finding.detector,
        severity=finding.severity.value,
        rank=finding.rank,
        step=finding.step,
        text=finding.text,
        key=key,
    )


def _alert(
    deed: Deed, experiment: ExperimentRow, run: RunRow, finding: Finding, kind: AlertType
) -> None:
    text = with_next(f"{experiment.name}, {run.phase}: {finding.text}", f"show {experiment.id}")
    queue_alert(deed, experiment, kind, text, run=run, rank=finding.rank, finding=finding.wire())


def take_evidence(deed: Deed, run_id: str, report: EvidenceReport, bearer: Bearer) -> None:
    """Store one file of evidence; the same path again replaces it."""
    _, run = lock_run(deed, run_id)
    check_bearer(run, bearer)
    path = PurePosixPath(report.path)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise Rejected(f"path: {report.path!r} is not a path inside the run directory")
    content, session = decoded(report.content_b64, "content_b64"), deed.session
    others = select(func.count(), func.coalesce(func.sum(EvidenceRow.size), 0)).where(
        EvidenceRow.run == run_id, EvidenceRow.path != str(path)
    )
    files, size = session.execute(others).one()
    if files >= MAX_EVIDENCE_FILES or size + len(content) > MAX_EVIDENCE_BYTES:
        most = f"{MAX_EVIDENCE_FILES} files and {MAX_EVIDENCE_BYTES} bytes"
        raise Rejected(f"evidence: a run may upload {most}")
    session.merge(
        EvidenceRow(
            run=run_id,
            path=str(path),
            size=len(content),
            truncated=report.truncated,
            content=content,
        )
    )


def take_record(deed: Deed, run_id: str, report: RecordReport, bearer: Bearer) -> None:
    """Keep a small record; after the end only what the end promised."""
    content = decoded(report.content_b64, "content_b64")
    if len(content) > MAX_RECORD_BYTES:
        raise Rejected(f"content_b64: a record has at most {MAX_RECORD_BYTES} bytes")
    _, run = lock_run(deed, run_id)
    check_bearer(run, bearer)
    sha256, session = hashlib.sha256(content).hexdigest(), deed.session
    promised = run.promised.records if run.promised is not None else {}
    ended = run.state == RunState.ENDED
    if ended and promised.get(report.path) != sha256:
        return
    others = select(func.coalesce(func.sum(func.length(RecordRow.content)), 0)).where(
        RecordRow.run == run_id, RecordRow.path != report.path
    )
    if session.scalars(others).one() + len(content) > MAX_RECORDS_BYTES:
        raise Rejected(f"records: those of a run have at most {MAX_RECORDS_BYTES} bytes")
    session.merge(RecordRow(run=run_id, path=report.path, sha256=sha256, content=content))
    if ended:
        ring(session, Topic.ENDED)
