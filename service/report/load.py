"""Reads what a report prints from the database, run by run."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gonogo.contract.api import ArtifactsView
from gonogo.contract.decision import Decision
from gonogo.contract.errors import Corrupt
from gonogo.contract.observation import DeviceSample
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeClass
from gonogo.contract.records import ModelRecord, Preflight
from service.context import Context
from service.db.schema import RunRow
from service.db.store import Session
from service.evidence.artifacts import Excerpt, list_artifacts, load_stack
from service.evidence.files import load_bytes, load_digests, load_log, load_records
from service.evidence.heartbeats import load_run_steps
from service.experiments.advance import resolved_of
from service.experiments.overview import last_judged
from service.instants import stamp
from service.queries.experiments import load_decisions, load_events, load_experiment, runs_of
from service.queries.runs import load_findings
from service.report.view import ReportView, RunFile, RunReport, build_numbers
from service.views.experiments import view_experiment
from service.views.goodput import load_experiment_goodput
from service.views.rows import load_run_view, view_event

LOG_LINES = 25
MAX_BYTES = 64 * 2**20
"""Bytes of `devices.jsonl` that are read."""


def load_report_view(session: Session, experiment_id: str, context: Context) -> ReportView:
    """Return everything that the report of an experiment prints."""
    row = load_experiment(session, experiment_id)
    decisions = load_decisions(session, experiment_id)
    resolved = resolved_of(row)
    return ReportView(
        experiment=view_experiment(session, row),
        created_by=row.created_by,
        plan=resolved.plan,
        plan_digest=resolved.parsed().digest(),
        train=resolved.train,
        fault=resolved.fault,
        runs=tuple(_load_run(session, run, decisions) for run in runs_of(session, row.id)),
        decisions=tuple(decisions),
        now=stamp(context.now()),
        url=context.url,
        goodput=load_experiment_goodput(session, row, context.now()),
        events=tuple(map(view_event, load_events(session, experiment_id))),
    )


def _load_run(session: Session, run: RunRow, decisions: Sequence[Decision]) -> RunReport:
    order = Order.model_validate(run.order) if run.order else None
    findings = load_findings(session, run.id)
    steps = load_run_steps(session, run.id)
    ran = {rank: row.identity() for rank, row in steps.items()}
    artifacts = list_artifacts(session, run)
    samples = list(read_samples(_load_devices(session, run.id)))
    report = RunReport(
        view=load_run_view(session, run),
        order=order,
        preflight=Preflight.model_validate(run.preflight) if run.preflight else None,
        ran={rank: identity for rank, identity in ran.items() if identity is not None},
        counted=ModelRecord.model_validate(run.model) if run.model else None,
        ranks=build_numbers(order, steps, samples),
        findings=tuple(findings),
        decision=last_judged(decisions, run.id),
        artifacts=artifacts,
        stack=load_stack(session, run, findings),
        change=run.change,
        files=_load_files(session, run, artifacts),
    )
    return replace(report, log=_load_tail(session, run, report))


def _load_devices(session: Session, run: str) -> bytes:
    try:
        return b"".join(load_bytes(session, run, "devices.jsonl", MAX_BYTES))
    except Corrupt:
        return b""


def read_samples(content: bytes) -> Iterator[DeviceSample]:
    """Yield the samples of `devices.jsonl`; lines that cannot be read are left out."""
    for line in content.splitlines():
        try:
            yield DeviceSample.model_validate_json(line)
        except ValueError:
            continue


def _load_files(session: Session, run: RunRow, listed: ArtifactsView) -> tuple[RunFile, ...]:
    digests = load_digests(session, run.id)
    sizes = {path: len(content) for path, content in load_records(session, run.id).items()}
    sizes |= {row.path: row.bytes for row in listed.items}
    return tuple(
        RunFile(path=path, bytes=sizes[path], sha256=digests.get(path))
        for path in sorted(sizes)
        if not path.startswith(".")
    )


def _load_tail(session: Session, run: RunRow, report: RunReport) -> Excerpt | None:
    """Return the end of the log that may say why a run failed, None for one that did not."""
    outcome = run.outcome
    if outcome is None or outcome.klass in (OutcomeClass.SUCCESS, OutcomeClass.OPERATOR):
        return None
    named = report.halts[0].rank if report.halts else None
    others = [rank.rank for rank in report.ranks]
    for rank in [None, 0] if named is None else [named, *others, None]:
        log = load_log(session, run.id, rank, LOG_LINES, 0)
        if log.text.strip():
            return Excerpt(name=log.name, text=log.text)
    return None
