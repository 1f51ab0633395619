"""What does the database hold for a report? One view, read run by run.

Numbers are of all steps, so every heartbeat is read, though only the fields that are shown.
"""

from collections.abc import Iterable, Sequence

from gonogo.contract.api import Forecast
from gonogo.contract.decision import Decision
from gonogo.contract.errors import Corrupt, Rejected
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeClass
from gonogo.contract.records import ModelRecord, Preflight
from gonogo.contract.wire import Recorded
from gonogo.judge.course.forecast import Ahead, Measured, build_forecast
from gonogo.rundir import load_record
from service.context import Context
from service.db.schema import RunRow
from service.db.store import Session
from service.evidence.artifacts import list_artifacts, load_artifact, reachable_dir
from service.evidence.heartbeats import load_run_steps
from service.evidence.logs import load_log
from service.experiments.course import resolved_of
from service.experiments.forecasts import load_measured
from service.instants import stamp
from service.queries.decisions import load_decisions
from service.queries.events import load_events
from service.queries.experiments import load_experiment, runs_of
from service.queries.findings import load_findings
from service.report.devices import build_devices, load_samples
from service.report.evidence import Excerpt, load_stack
from service.report.files import load_files
from service.report.health import FILES, SERVED, lines_of, read_layers, read_served
from service.report.numbers import build_numbers
from service.report.profile import TABLE, TEXT, Profile, read_profile
from service.report.view import RankNumbers, ReportView, RunReport
from service.told.decided import last_judged
from service.views.experiments import view_experiment
from service.views.goodput import load_experiment_goodput
from service.views.news import view_event
from service.views.runs import load_run_view

LOG_LINES = 25
MAX_PROFILE_BYTES = 4 * 2**20


class EnvRecord(Recorded):
    """The parts of env.json that the report prints."""

    torch: str | None = None
    python: str | None = None
    host: str | None = None
    cuda: str | None = None
    device_name: str | None = None


def load_report_view(session: Session, experiment_id: str, context: Context) -> ReportView:
    """Return everything that the report of an experiment prints.

    Raises:
        NotFound: there is no such experiment.
    """
    row = load_experiment(session, experiment_id)
    decisions = load_decisions(session, experiment_id)
    resolved = resolved_of(row)
    runs = runs_of(session, experiment_id)
    return ReportView(
        experiment=view_experiment(session, row),
        created_by=row.created_by,
        plan=resolved.plan,
        plan_digest=resolved.parsed().digest(),
        train=resolved.train,
        fault=resolved.fault,
        runs=tuple(load_run_report(session, run, decisions) for run in runs),
        decisions=tuple(decisions),
        now=stamp(context.now()),
        url=context.url,
        goodput=load_experiment_goodput(session, row, context.now()),
        events=tuple(map(view_event, load_events(session, experiment_id))),
    )


def load_run_report(session: Session, run: RunRow, decisions: Sequence[Decision]) -> RunReport:
    """Return one run of an experiment."""
    order = Order.model_validate(run.order) if run.order else None
    findings = load_findings(session, run.id)
    steps = load_run_steps(session, run.id)
    samples = load_samples(session, run.id)
    ranks = build_numbers(order, steps, samples)
    said = {rank: row.identity() for rank, row in steps.items()}
    artifacts = list_artifacts(session, run)
    files, more_files = load_files(session, run, artifacts)
    return RunReport(
        view=load_run_view(session, run),
        order=order,
        preflight=Preflight.model_validate(run.preflight) if run.preflight else None,
        ran={rank: identity for rank, identity in said.items() if identity is not None},
        counted=ModelRecord.model_validate(run.model) if run.model else None,
        ranks=ranks,
        findings=tuple(findings),
        decision=last_judged(decisions, run.id),
        artifacts=artifacts,
        forecast_after=_forecast_after(session, run, order, ranks),
        stack=load_stack(session, run, findings),
        log=_load_tail(session, run, list(steps), findings),
        environment=_load_environment(run),
        change=run.change,
        devices=build_devices(samples),
        layers=read_layers(_load_lines(session, run, name) for name in FILES),
        served=read_served(_load_lines(session, run, SERVED)),
        profile=_load_profile(session, run),
        files=files,
        more_files=more_files,
    )


def _load_lines(session: Session, run: RunRow, name: str) -> Iterable[str]:
    """Yield the lines of a file that the trainer left, where it can be had here."""
    try:
        with load_artifact(session, run, name) as stream:
            yield from lines_of(stream)
    except (Rejected, OSError):
        return


def _load_profile(session: Session, run: RunRow) -> Profile | None:
    return read_profile(*(_load_some(session, run, name) for name in (TABLE, TEXT)))


def _load_some(session: Session, run: RunRow, name: str) -> bytes | None:
    """Return a small file of a run; None where it cannot be had here."""
    try:
        with load_artifact(session, run, name) as stream:
            return stream.read(MAX_PROFILE_BYTES)
    except (Rejected, OSError):
        return None


def _load_tail(
    session: Session, run: RunRow, ranks: Sequence[int], findings: Sequence[Finding]
) -> Excerpt | None:
    """Return the end of the log that may say why a run failed, None for one that did not."""
    outcome = run.outcome
    if outcome is None or outcome.klass in (OutcomeClass.SUCCESS, OutcomeClass.OPERATOR):
        return None
    halts = [row.rank for row in findings if row.severity is Severity.HALT]
    named = halts[0] if halts and halts[0] is not None else None
    order = [named, *ranks, None] if named is not None else [None, 0]
    for rank in order:
        log = load_log(session, run.id, rank, LOG_LINES, 0)
        if log.text.strip():
            return Excerpt(name=log.name, text=log.text)
    return None


def _load_environment(run: RunRow) -> dict[str, str]:
    run_dir = reachable_dir(run)
    if run_dir is None:
        return {}
    try:
        found = load_record(run_dir.path / "env.json", EnvRecord)
    except (OSError, Corrupt):
        return {}
    return {} if found is None else found.model_dump(exclude_none=True)


def _forecast_after(
    session: Session, run: RunRow, order: Order | None, ranks: Sequence[RankNumbers]
) -> Forecast | None:
    """Return what the phases after a run would take at its pace, if any come; each starts up."""
    ahead = [Ahead(steps=phase.steps) for phase in order.phases_after] if order else []
    if not ahead:
        return None
    measured = load_measured(session, run)
    slow = max(ranks, key=lambda rank: rank.median_step_s or 0.0, default=None)
    if measured is None and slow is not None and slow.median_step_s is not None:
        step_s = slow.median_step_s
        measured = Measured(step_s=step_s, late_s=step_s, steps=slow.final_step)
    return build_forecast(ahead, [measured] if measured else [])
