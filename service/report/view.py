"""Everything that a report prints, read from the database: runs, and the numbers of their ranks."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gonogo.contract.api import ArtifactsView, ExperimentView, RunView
from gonogo.contract.canonical import rounded
from gonogo.contract.criterion import Metric
from gonogo.contract.decision import Decision, Verdict
from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.goodput import ExperimentGoodput
from gonogo.contract.heartbeat import Identity, Msg
from gonogo.contract.observation import DeviceSample
from gonogo.contract.order import Order, Rules, RunReason
from gonogo.contract.outcome import OutcomeClass
from gonogo.contract.records import ModelRecord, Preflight
from gonogo.contract.workload import OURS
from gonogo.judge.facts.devices import lay_over
from gonogo.judge.facts.measure import quantile
from gonogo.judge.facts.metrics import METRICS
from gonogo.judge.gate.conditions import all_met
from gonogo.judge.gate.rules import build_rules
from gonogo.timeline.rank_steps import RankSteps
from service.context import Context
from service.db.schema import RunRow
from service.db.store import Session
from service.evidence.artifacts import Excerpt, list_artifacts, load_stack
from service.evidence.files import load_bytes, load_digests, load_log, load_records, load_run_steps
from service.evidence.series import Point, downsample
from service.experiments.advance import resolved_of
from service.experiments.state import decision_about
from service.queries.experiments import load_decisions, load_experiment, runs_of
from service.queries.runs import load_findings
from service.text import stamp
from service.views.experiments import view_experiment
from service.views.goodput import load_experiment_goodput
from service.views.rows import load_run_view

POINTS = 400
SECTIONS = ("data", "forward", "backward", "optimizer", "wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One number of a rank over the steps; the statistics are of all its finite values."""

    points: tuple[Point, ...]
    """Finite values, thinned; every peak is kept."""
    count: int
    first: float
    last: float
    median: float | None = None
    p95: float | None = None
    highest: float | None = None
    non_finite: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNumbers:
    """What one rank did."""

    rank: int
    last_step: int
    loader_ready_s: float | None = None
    series: Mapping[str, Series] = field(default_factory=dict)
    """By name: loss, val_loss, tok_s, step_s, …; what was not reported is missing."""

    def points(self, name: str) -> tuple[Point, ...]:
        """Return the points of a series; none where it is missing."""
        return self.series[name].points if name in self.series else ()

    def median(self, name: str) -> float:
        """Return the median of a series; 0 where it is missing."""
        return (self.series[name].median or 0.0) if name in self.series else 0.0

    @property
    def section_s(self) -> dict[str, float]:
        """Section → its median seconds in a step."""
        return {name: self.median(name) for name in SECTIONS if name in self.series}

    @property
    def whole_step_s(self) -> float:
        """The median step with its sections; data may be fetched between two steps."""
        return max(self.median("step_s"), sum(self.section_s.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """One file of a run, with the digest of a record that the worker sent."""

    path: str
    bytes: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run."""

    view: RunView
    order: Order | None
    preflight: Preflight | None
    ran: Mapping[int, Identity]
    """Rank → the identity on its boot line."""
    counted: Identity | None
    """What was counted on the live model (model.json)."""
    ranks: tuple[RankNumbers, ...]
    findings: tuple[Finding, ...]
    decision: Decision | None
    """The newest decision about this run that has criteria."""
    artifacts: ArtifactsView
    stack: Excerpt | None = None
    """Where the rank stood that the halt finding names."""
    log: Excerpt | None = None
    """The end of the log that may say why the run failed."""
    change: Mapping[str, Any] | None = None
    """What a remedy or the variant of a confirmation changed about the plan."""
    files: tuple[RunFile, ...] = ()

    @property
    def title(self) -> str:
        """The name of the run in the report."""
        attempt = f", attempt {self.view.attempt}" if self.view.attempt > 1 else ""
        return f"{self.view.phase}{attempt}"

    @property
    def ours(self) -> bool:
        """Whether it ran the workload that comes with gonogo."""
        return self.order is not None and self.order.entry == OURS

    @property
    def halts(self) -> list[Finding]:
        """The findings that halt."""
        return [row for row in self.findings if row.severity is Severity.HALT]

    def values(self, name: str, statistic: str) -> list[float]:
        """Return one statistic of a series, of every rank that has it, the lowest rank first."""
        found = (getattr(rank.series.get(name), statistic, None) for rank in self.ranks)
        return [value for value in found if value is not None]

    def most(self, name: str, statistic: str) -> float | None:
        """Return the largest value over the ranks."""
        return max(self.values(name, statistic), default=None)

    def least(self, name: str, statistic: str) -> float | None:
        """Return the smallest value over the ranks."""
        return min(self.values(name, statistic), default=None)

    def first(self, name: str, statistic: str) -> float | None:
        """Return the value of the lowest rank that has it."""
        return next(iter(self.values(name, statistic)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """One experiment."""

    experiment: ExperimentView
    created_by: str
    plan: Mapping[str, Any]
    plan_digest: str
    train: Mapping[str, Any]
    fault: str | None
    runs: tuple[RunReport, ...]
    decisions: tuple[Decision, ...]
    now: str
    url: str
    goodput: ExperimentGoodput | None = None

    def runs_of(self, phase: str) -> list[RunReport]:
        """Return the runs of a phase by attempt."""
        found = [run for run in self.runs if run.view.phase == phase]
        return sorted(found, key=lambda run: run.view.attempt)

    @property
    def phases(self) -> list[str]:
        """The phases that have a run, in the order in which they began."""
        return list(dict.fromkeys(run.view.phase for run in self.runs))

    @property
    def culprit(self) -> RunReport | None:
        """The run to look at first: the last failure that no later attempt of its phase mended."""
        for run in reversed(self.runs):
            outcome = run.view.outcome
            bad = outcome is not None and outcome.code != "completed"
            bad = bad or (run.view.verdict is not None and not self._counts_as_go(run))
            tries = [row for row in self.runs_of(run.view.phase) if not _confirms(row)]
            later = [row for row in tries if row.view.attempt > run.view.attempt]
            if bad and not any(map(self._counts_as_go, later)):
                until = (row for row in reversed(tries) if row.view.attempt <= run.view.attempt)
                return next(until, run)
        return None

    def is_met(self, phase: str) -> bool:
        """Say whether all conditions of a phase were met: its verdict then counts as GO."""
        rows = self.experiment.conditions
        return all_met(row for row in rows if row.id.partition(":")[0] == phase)

    def _counts_as_go(self, run: RunReport) -> bool:
        verdict = run.view.verdict
        met = verdict is Verdict.CONDITIONAL_GO and self.is_met(run.view.phase)
        return verdict is Verdict.GO or met


def _confirms(run: RunReport) -> bool:
    return run.view.reason == RunReason.CONFIRM


def build_numbers(
    order: Order | None, ranks: Mapping[int, RankSteps], samples: Sequence[DeviceSample] = ()
) -> tuple[RankNumbers, ...]:
    """Return the numbers of every rank of a run, as the judge computes them."""
    rules = build_rules(order)
    lay_over(ranks, samples, order)
    return tuple(
        RankNumbers(
            rank=rank,
            last_step=steps.last_step,
            loader_ready_s=next((b.loader_s for b in steps.boots if b.loader_s is not None), None),
            series={name: build_series(rows) for name, rows in _samples(steps, rules) if rows},
        )
        for rank, steps in sorted(ranks.items())
    )


def _samples(steps: RankSteps, rules: Rules) -> Iterator[tuple[str, Mapping[int, float]]]:
    for name, key in (
        ("loss", "loss"),
        ("fetch_s", "dt_fetch_s"),
        ("alloc_mb", "gpu_mem_alloc"),
        ("host_mb", "host_rss_mb"),
        ("gate_entropy", "gate_entropy"),
        ("gate_max", "gate_max"),
    ):
        yield name, steps.samples(key)
    yield "val_loss", steps.evals
    yield "step_s", steps.steps.step_times()
    if rules.known:
        yield "tok_s", METRICS[Metric.TOKS_PER_S].samples(steps, rules)
    yield "device_mb", METRICS[Metric.GPU_MEM_RESERVED_MB].samples(steps, rules)
    yield "util", METRICS[Metric.GPU_UTIL].samples(steps, rules)
    columns = steps.steps.sections()
    ended = [
        row for row in steps.steps.steps_of(Msg.STEP_END) if not math.isnan(columns[0][row[1]])
    ]
    for name, column in zip(SECTIONS, columns, strict=True):
        yield name, {step: column[row] for step, row in ended}


def build_series(by_step: Mapping[int, float]) -> Series:
    """Return the statistics and the points of step → value; at least one value is needed."""
    rows = sorted(by_step.items())
    finite = [row for row in rows if math.isfinite(row[1])]
    values = sorted(value for _, value in finite)
    return Series(
        points=tuple(downsample(finite, POINTS)),
        count=len(rows),
        first=rows[0][1],
        last=rows[-1][1],
        median=rounded(statistics.median(values)) if values else None,
        p95=rounded(quantile(values, 0.95)) if values else None,
        highest=values[-1] if values else None,
        non_finite=next((step for step, value in rows if not math.isfinite(value)), None),
    )


LOG_LINES = 25
MAX_BYTES = 64 * 2**20


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
        decision=decision_about(decisions, run.id),
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
