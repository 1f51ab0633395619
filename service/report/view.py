"""Everything that a report prints, read from the database: runs, and the numbers of their ranks."""

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
from gonogo.contract.records import Preflight
from gonogo.contract.workload import OURS
from gonogo.judge.facts.metrics import METRICS, quantile
from gonogo.judge.facts.record import lay_over
from gonogo.judge.gate.conditions import all_met
from gonogo.judge.gate.rules import build_rules
from gonogo.timeline.rank_steps import RankSteps
from service.charts import KINDS, LIMIT, Chart, Line, Mark, Point, non_finite_mark
from service.context import Context
from service.db.schema import RunRow
from service.db.store import Session
from service.evidence.artifacts import Excerpt, list_artifacts, load_stack
from service.evidence.files import load_bytes, load_log, load_run_steps
from service.evidence.series import downsample
from service.experiments.advance import resolved_of
from service.experiments.state import decision_about
from service.queries.experiments import load_decisions, load_experiment, runs_of
from service.queries.runs import load_findings
from service.text import stamp
from service.views.experiments import view_experiment
from service.views.rows import load_experiment_goodput, load_run_view

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
class RunReport:
    """One run."""

    view: RunView
    order: Order | None
    preflight: Preflight | None
    ran: Mapping[int, Identity]
    """Rank → the identity on its boot line."""
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
            tries = [
                row for row in self.runs_of(run.view.phase) if row.view.reason != RunReason.CONFIRM
            ]
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
    samples = list(read_samples(_load_devices(session, run.id)))
    report = RunReport(
        view=load_run_view(session, run),
        order=order,
        preflight=Preflight.model_validate(run.preflight) if run.preflight else None,
        ran={rank: identity for rank, identity in ran.items() if identity is not None},
        ranks=build_numbers(order, steps, samples),
        findings=tuple(findings),
        decision=decision_about(decisions, run.id),
        artifacts=list_artifacts(session, run),
        stack=load_stack(session, run, findings),
        change=run.change,
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


MAX_RANKS = len(KINDS)
"""Lines of ranks in one chart; of more ranks these stand for all."""


class Picture(NamedTuple):
    """A chart with the name of its file, without the ending."""

    name: str
    chart: Chart


BY_RANK = (
    ("speed", "tok_s", "tokens/s over all ranks", 1.0),
    ("steps", "step_s", "seconds of a step", 1.0),
    ("host", "host_mb", "host memory, GB", 1e-3),
    ("device", "device_mb", "device memory, GB", 1e-3),
    ("util", "util", "device utilisation, %", 1.0),
)
"""File, series, title, scale of the charts with one line for each rank."""


def pictures_of(view: ReportView) -> list[Picture]:
    """Return every chart of a report."""
    found = overview(view)
    phases = [row for phase in view.phases for row in phase_pictures(view, phase)]
    return [*([found] if found else []), *phases]


def overview(view: ReportView) -> Picture | None:
    """Return the loss of all phases, one after the other; without a loss, the speed."""
    for series, title in (("loss", "loss of all phases"), ("tok_s", "tokens/s of all phases")):
        lines, marks, start = [], [], 0
        for phase in view.phases:
            runs = view.runs_of(phase)
            for run in runs:
                points = tuple((start + step, value) for step, value in _points(run, series))
                lines.append(Line(name=run.title, points=points))
                marks += [replace(row, step=row.step + start) for row in _marks(run, series)]
            start += max(run.view.steps for run in runs)
        chart = _chart(title, lines, marks)
        if chart is not None:
            return Picture("overview", chart)
    return None


def phase_pictures(view: ReportView, phase: str) -> list[Picture]:
    """Return the charts of a phase: of the loss every attempt, of the rest the newest."""
    runs = view.runs_of(phase)
    return [
        Picture(f"{re.sub(r'[^A-Za-z0-9_-]+', '-', phase)}-{name}", chart)
        for name, chart in _charts(phase, runs)
        if chart is not None
    ]


def _charts(phase: str, runs: Sequence[RunReport]) -> Iterator[tuple[str, Chart | None]]:
    lines, marks = [], []
    for run in runs:
        of = f", attempt {run.view.attempt}" if len(runs) > 1 else ""
        for series, name in (("loss", "loss"), ("val_loss", "validation loss")):
            lines.append(Line(name=f"{name}{of}", points=_points(run, series)))
        marks += _marks(run, "loss")
    yield "loss", _chart(f"{phase}: loss", lines, marks)
    for name, series, title, scale in BY_RANK:
        newest = _newest(runs, series)
        if newest is not None:
            yield name, _by_rank(newest, series, f"{newest.title}: {title}", scale)
    newest = _newest(runs, "data")
    if newest is not None:
        slow = max(newest.ranks, key=lambda rank: rank.median("step_s"))
        lines = [Line(name=name, points=slow.points(name)) for name in SECTIONS]
        title = f"{newest.title}: seconds of a step by section, rank {slow.rank}"
        yield "sections", _chart(title, lines, (), zero=True)
    newest = _newest(runs, "gate_entropy")
    if newest is not None:
        named = {"gate_entropy": "entropy (1: even)", "gate_max": "largest share of a branch"}
        lines = [Line(name=text, points=_points(newest, name)) for name, text in named.items()]
        yield "gates", _chart(f"{newest.title}: gates of the branches", lines, (), zero=True)


def _by_rank(run: RunReport, series: str, title: str, scale: float) -> Chart | None:
    ranks = spread_out([rank for rank in run.ranks if rank.points(series)], series)
    some = f", {len(ranks)} of {len(run.ranks)} ranks" if len(ranks) < len(run.ranks) else ""
    lines = [
        Line(
            name=f"rank {rank.rank}",
            points=tuple((step, value * scale) for step, value in rank.points(series)),
        )
        for rank in ranks
    ]
    floor = run.order.watch.slow.floor_tok_s if run.order is not None else None
    if series == "tok_s" and floor and lines:
        ends = lines[0].points[0][0], lines[0].points[-1][0]
        limit = tuple((step, floor) for step in ends)
        lines.append(Line(name=f"floor {floor:g}", points=limit, kind=LIMIT))
    return _chart(f"{title}{some}", lines, _marks(run, series), zero=True)


def spread_out(ranks: Sequence[RankNumbers], series: str) -> list[RankNumbers]:
    """Return at most `MAX_RANKS` ranks, from the lowest median to the highest."""
    if len(ranks) <= MAX_RANKS:
        return list(ranks)
    ordered = sorted(ranks, key=lambda rank: rank.median(series))
    last = len(ordered) - 1
    return [ordered[round(place * last / (MAX_RANKS - 1))] for place in range(MAX_RANKS)]


def _chart(
    title: str, lines: Sequence[Line], marks: Sequence[Mark], *, zero: bool = False
) -> Chart | None:
    """Return a chart whose lines have a colour each; None where no line has two points."""
    shown = [line for line in lines if line.points]
    if not any(len(line.points) > 1 for line in shown):
        return None
    coloured = [
        line if line.kind == LIMIT else Line(name=line.name, points=line.points, kind=kind)
        for line, kind in zip(shown, KINDS * (len(shown) // len(KINDS) + 1), strict=False)
    ]
    return Chart(title=title, lines=coloured, marks=tuple(marks), zero=zero)


def _points(run: RunReport, series: str) -> Sequence[Point]:
    return next((points for rank in run.ranks if (points := rank.points(series))), ())


def _newest(runs: Sequence[RunReport], series: str) -> RunReport | None:
    return next((run for run in reversed(runs) if _points(run, series)), None)


def _marks(run: RunReport, series: str) -> list[Mark]:
    marks = [
        Mark(step=row.step, text=f"{row.detector} at step {row.step}")
        for row in run.halts
        if row.step is not None
    ]
    point = run.view.resume_from
    if point is not None and point.step:
        marks.append(Mark(step=point.step, text=f"{run.title} from step {point.step + 1}"))
    strange = [rank.series[series].non_finite for rank in run.ranks if series in rank.series]
    steps = [step for step in strange if step is not None]
    return [*marks, non_finite_mark(min(steps))] if steps else marks
