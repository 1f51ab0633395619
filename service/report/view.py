"""What does a report know? Everything it prints, and nothing that it would have to look up."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.api import ArtifactsView, EventView, ExperimentView, Forecast, RunView
from gonogo.contract.decision import Decision, Verdict
from gonogo.contract.finding import Finding
from gonogo.contract.goodput import ExperimentGoodput
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order, RunReason
from gonogo.contract.records import Preflight
from gonogo.contract.workload import OURS
from gonogo.judge.gate.conditions import all_met
from service.report.devices import DeviceNumbers
from service.report.evidence import Excerpt
from service.report.files import SealedFile
from service.report.health import LayerHealth, Served
from service.report.profile import Profile

Series = tuple[tuple[int, float], ...]
"""(step, value), ascending by step."""

SECTIONS = ("data", "forward", "backward", "optimizer", "wait")


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long every step took: no point of it is thinned away."""

    steps: "array[int]" = field(default_factory=lambda: array("q"))
    """Ascending."""
    seconds: "array[float]" = field(default_factory=lambda: array("d"))

    def between(self, first: int, last: int) -> list[float]:
        """Return the seconds of the steps from `first` to `last`, both included."""
        return list(self.seconds[bisect_left(self.steps, first) : bisect_right(self.steps, last)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNumbers:
    """What one rank did, as its heartbeats say."""

    rank: int
    final_step: int
    first_loss: float | None = None
    last_loss: float | None = None
    last_val_loss: float | None = None
    median_tok_s: float | None = None
    """Recomputed from the rank's clock and the tokens of a step, over all ranks."""
    median_step_s: float | None = None
    p95_step_s: float | None = None
    median_fetch_s: float | None = None
    loader_ready_s: float | None = None
    peak_reserved_mb: float | None = None
    peak_alloc_mb: float | None = None
    peak_rss_mb: float | None = None
    peak_used_mb: float | None = None
    """Memory in use on its device, as the driver says, whoever uses it."""
    median_util: float | None = None
    """Utilisation of its device in its steps, percent."""
    sections_s: Mapping[str, float | None] = field(default_factory=dict)
    """Section → median seconds of a step."""
    loss: Series = ()
    val_loss: Series = ()
    tok_s: Series = ()
    host_mb: Series = ()
    device_mb: Series = ()
    """What the lines call reserved; where they never say, what the device says is in use."""
    util: Series = ()
    gate_entropy: Series = ()
    gate_max: Series = ()
    gate_collapse_frac: Series = ()
    sections: Mapping[str, Series] = field(default_factory=dict)
    step_times: StepTimes = field(default_factory=StepTimes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run."""

    view: RunView
    order: Order | None
    preflight: Preflight | None
    ran: Mapping[int, Identity]
    """Rank → what its boot line said that it is."""
    counted: Identity | None
    """What was counted on the live model (model.json)."""
    ranks: tuple[RankNumbers, ...]
    findings: tuple[Finding, ...]
    decision: Decision | None
    """The newest decision about this run that has criteria."""
    artifacts: ArtifactsView
    forecast_after: Forecast | None = None
    """What the phases after this one would take at this run's pace."""
    stack: Excerpt | None = None
    """Where the rank stood that the halt finding names."""
    log: Excerpt | None = None
    """The end of the log that may say why it failed."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """env.json, where the run directory is on this host."""
    change: Mapping[str, Any] | None = None
    """What a remedy or a confirmation's variant changed about the plan."""
    devices: tuple[DeviceNumbers, ...] = ()
    layers: tuple[LayerHealth, ...] = ()
    served: tuple[Served, ...] = ()
    """Which attention path served how often."""
    profile: Profile | None = None
    files: tuple[SealedFile, ...] = ()
    more_files: int = 0
    """How many files there are beyond these."""

    @property
    def title(self) -> str:
        """How the report calls it."""
        attempt = f", attempt {self.view.attempt}" if self.view.attempt > 1 else ""
        return f"{self.view.phase}{attempt}"

    @property
    def ours(self) -> bool:
        """Whether it ran the workload that comes with gonogo."""
        return self.order is not None and self.order.entry == OURS

    def worst(self, name: str) -> float | None:
        """Return the largest value over the ranks of one number."""
        found = [value for rank in self.ranks if (value := getattr(rank, name)) is not None]
        return max(found, default=None)

    def least(self, name: str) -> float | None:
        """Return the smallest value over the ranks of one number."""
        found = [value for rank in self.ranks if (value := getattr(rank, name)) is not None]
        return min(found, default=None)

    def first(self, name: str) -> float | None:
        """Return one number of the lowest rank that has it."""
        found = (getattr(rank, name) for rank in self.ranks)
        return next((value for value in found if value is not None), None)


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
    goodput: ExperimentGoodput | None = None
    """Where its time went."""
    no_plots: str | None = None
    """Why there are no pictures."""

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
        """The run to look at first: the last that is not GO and was not made good, if any.

        In the place of a confirmation stands the run that it was made of: it is judged.
        """
        for run in reversed(self.runs):
            outcome = run.view.outcome
            bad = outcome is not None and outcome.code != "completed"
            bad = bad or (run.view.verdict is not None and not self._counts_as_go(run))
            if bad and not self._made_good(run):
                return self._confirmed_by(run)
        return None

    def _confirmed_by(self, run: RunReport) -> RunReport:
        """Return the run that a confirmation was made of; any other run is its own."""
        rows = [row for row in self.runs_of(run.view.phase) if row.view.attempt <= run.view.attempt]
        judged = (row for row in reversed(rows) if row.view.reason != RunReason.CONFIRM)
        return next(judged, run)

    def is_met(self, phase: str) -> bool:
        """Say whether all that a phase left open was met since: then its word counts as GO."""
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
