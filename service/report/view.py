"""Everything that a report prints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.api import ArtifactsView, EventView, ExperimentView, RunView
from gonogo.contract.decision import Decision, Verdict
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.goodput import ExperimentGoodput
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order, RunReason
from gonogo.contract.records import Preflight
from gonogo.contract.workload import OURS
from gonogo.judge.gate.conditions import all_met
from service.evidence.stacks import Excerpt
from service.report.numbers import RankNumbers


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """One file of a run."""

    path: str
    bytes: int
    sha256: str | None = None
    """Bytes of a small record that the worker sent."""


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
        """Return one statistic of a series, of every rank that has it."""
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
    events: tuple[EventView, ...] = ()
    """In the order in which they happened."""
    goodput: ExperimentGoodput | None = field(default=None)

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
        """The run to look at first: the last that is not GO and that no later attempt made good.

        In the place of a confirmation stands the run that it confirmed: that one is judged.
        """
        for run in reversed(self.runs):
            outcome = run.view.outcome
            bad = outcome is not None and outcome.code != "completed"
            bad = bad or (run.view.verdict is not None and not self._counts_as_go(run))
            if bad and not self._made_good(run):
                return self._confirmed_by(run)
        return None

    def _confirmed_by(self, run: RunReport) -> RunReport:
        rows = [row for row in self.runs_of(run.view.phase) if row.view.attempt <= run.view.attempt]
        judged = (row for row in reversed(rows) if row.view.reason != RunReason.CONFIRM)
        return next(judged, run)

    def is_met(self, phase: str) -> bool:
        """Say whether all conditions of a phase were met: its verdict then counts as GO."""
        rows = self.experiment.conditions
        return all_met(row for row in rows if row.id.partition(":")[0] == phase)

    def _counts_as_go(self, run: RunReport) -> bool:
        verdict = run.view.verdict
        met = verdict is Verdict.CONDITIONAL_GO and self.is_met(run.view.phase)
        return verdict is Verdict.GO or met

    def _made_good(self, run: RunReport) -> bool:
        """Say whether a later attempt of its phase counts as GO; a confirmation makes none good."""
        return any(
            later.view.attempt > run.view.attempt
            and self._counts_as_go(later)
            and later.view.reason != RunReason.CONFIRM
            for later in self.runs_of(run.view.phase)
        )
