"""What do commands print with `--json`? A model each; `OUTPUTS` says which is whose."""

from typing import Any

from pydantic import BaseModel, Field, create_model

from gonogo.contract.api import (
    AlertView,
    ArtifactsView,
    CampaignView,
    ExperimentView,
    Forecast,
    LogView,
    OriginView,
    RunView,
    WorkerView,
)
from gonogo.contract.campaign import CampaignSpec
from gonogo.contract.comparison import Comparison
from gonogo.contract.decision import Decision, Verdict
from gonogo.contract.finding import Finding
from gonogo.contract.goodput import ExperimentGoodput
from gonogo.contract.order import Order
from gonogo.contract.outcome import Outcome
from gonogo.contract.patience import Patience, Place
from gonogo.contract.plan import Plan
from gonogo.contract.wire import Recorded


class Up(Recorded):
    """`gonogo up`, when it is ready."""

    url: str
    home: str
    sign_in: str


class ServiceStatus(Recorded):
    """`gonogo status`."""

    up: bool
    """Whether the service answers."""
    ready: bool
    """Whether its database answers, too."""
    url: str
    source: str
    """Who named this address: GONOGO_URL, a service.json, or the default."""
    problem: str | None = None
    """Why it does not answer, as far as is known here, and what to do."""
    version: str | None = None
    home: str
    workers: list[WorkerView] = []
    going_on: list[ExperimentView] = []
    """Queued, running or stopping."""
    waiting: list[ExperimentView] = []
    """Those that a person has to decide or approve."""


class Experiments(Recorded):
    """`gonogo list`."""

    items: list[ExperimentView]
    next_cursor: str | None = None


class Workers(Recorded):
    """`gonogo workers`."""

    items: list[WorkerView]


class Alerts(Recorded):
    """`gonogo alerts`."""

    items: list[AlertView]


class Decisions(Recorded):
    """`gonogo decisions EXPERIMENT`."""

    items: list[Decision]


class ShownExperiment(ExperimentView):
    """`gonogo show`."""

    decisions: list[Decision]
    goodput: ExperimentGoodput


class Watched(Recorded):
    """A line of `gonogo watch --json`: the experiment, and its newest run."""

    experiment: ExperimentView
    run: RunView | None


class ShownPlan(Recorded):
    """`gonogo plans NAME`."""

    valid: bool
    digest: str
    plan: dict[str, Any]
    train: dict[str, Any]
    fault: str | None = None


class Plans(Recorded):
    """`gonogo plans`."""

    items: list[Plan]


class DryRun(Recorded):
    """`gonogo submit --dry-run`."""

    dry_run: bool
    plan: dict[str, Any]
    plan_digest: str
    train: dict[str, Any]
    fault: str | None
    orders: list[Order]
    warnings: list[str] = []
    """What no worker that lives would take as it is."""
    origin: OriginView | None = None
    """What it would go on from; the phases before it have no order."""


class OpenedPage(Recorded):
    """`gonogo open`."""

    url: str
    sign_in: str | None
    """A link that signs one browser in, once, and leads there; null for a key that may not."""
    opened: bool


class Report(Recorded):
    """`gonogo report`."""

    experiment: str
    output: str | None
    """The file that holds it, when one was asked for."""
    text: str


class Campaigns(Recorded):
    """`gonogo campaign list`."""

    items: list[CampaignView]
    next_cursor: str | None = None


class CampaignDryRun(Recorded):
    """`gonogo campaign submit --dry-run`."""

    dry_run: bool
    plan: str
    spec: CampaignSpec
    runs: int
    """Runs before the first look."""
    most_runs: int
    """Runs that it takes at most, those that fail and are made again left out."""
    warnings: list[str]
    orders: dict[str, Order]
    """Variant → the order of its first run."""


class Check(Recorded):
    """One check of `gonogo doctor`."""

    id: str
    outcome: str
    """pass | warn | fail."""
    text: str


class DoctorReport(Recorded):
    """`gonogo doctor`."""

    ok: bool
    checks: list[Check]


class DatabaseState(Recorded):
    """`gonogo db`."""

    revision: str | None
    """Null: there is no database yet."""
    newest: str


class Kept(Recorded):
    """What a backup holds."""

    made_at: str
    database: str
    """sqlite: it is in the file; postgresql: `pg_dump` keeps it."""
    files: int
    decisions: int
    runs: int
    """How many run directories."""


class BackedUp(Kept):
    """`gonogo backup`."""

    file: str
    bytes: int


class Restored(Kept):
    """`gonogo restore`."""

    home: str


class PrunedRun(Recorded):
    """A run directory that goes, as a whole or its checkpoints."""

    run: str
    experiment: str
    what: str
    """`all` or `checkpoints`."""
    bytes: int
    problem: str | None = None
    """Why it is still there, or some of it."""


class KeptRun(Recorded):
    """A run directory that stays."""

    run: str
    experiment: str
    why: str


class Pruned(Recorded):
    """`gonogo prune`."""

    home: str
    dry_run: bool
    keep_days: float
    keep: int
    checkpoints_only: bool
    bytes: int
    """What was freed, or with `--dry-run` would be."""
    pruned: list[PrunedRun]
    kept: list[KeptRun]


class Key(Recorded):
    """An API key, but not the key itself."""

    name: str
    role: str
    created_at: str
    revoked_at: str | None


class Keys(Recorded):
    """`gonogo keys list`."""

    items: list[Key]


class CreatedKey(Recorded):
    """`gonogo keys create`: the only time that the key is shown."""

    name: str
    role: str
    key: str | None
    """None: the one in the file that was given."""


class RevokedKey(Recorded):
    """`gonogo keys revoke`."""

    name: str
    revoked: bool


class Flag(Recorded):
    """One NSA_* variable."""

    name: str
    default: str | None
    values: str
    effect: str


class Flags(Recorded):
    """`gonogo flags`."""

    items: list[Flag]


class Judged(Decision):
    """`gonogo judge`: an unsigned decision, and what it could not see."""

    findings: list[Finding]
    not_observed: list[str]
    means: str | None
    """What the diagnosis means."""
    remedy: str | None
    """What helps against a known failure."""
    stood: list[str]
    """Where the ranks stood, by the evidence of a halt."""
    next: str
    """What to type next, and what it shows."""


class Ran(Judged):
    """`gonogo run`: the decision about the run that has ended."""

    advice: list[str]
    """What can be done next, the most useful first."""


class Replayed(Recorded):
    """`gonogo replay`."""

    id: str
    equal: bool
    checked: list[str]
    not_verified: list[str]
    path: str | None
    """Where the first difference is."""
    recorded: Any
    found: Any
    text: str


class RecordProblem(Recorded):
    """Something wrong with a recorded decision."""

    decision: str | None
    path: str
    text: str


class VerifiedRecords(Recorded):
    """`gonogo verify`."""

    decisions: int
    ok: bool
    problems: list[RecordProblem]
    not_verified: list[str]


class SimulatedDetector(Recorded):
    """What one detector did in a simulation."""

    false_halts: int
    warnings: int
    sick: int
    missed: int
    latency_p50_s: float | None
    latency_p99_s: float | None


class Simulated(Recorded):
    """`gonogo simulate`."""

    seed: int
    noise: str
    run_hours: float
    steps: int
    lines: int
    false_halts: int
    per_1000h: float | None
    upper95_per_1000h: float | None
    warnings_per_1000h: float | None
    sick_runs: int
    missed: int
    by_detector: dict[str, SimulatedDetector]
    misses: list[dict[str, Any]]
    halts: list[dict[str, Any]]
    cells: list[dict[str, Any]]


class DemoRun(Recorded):
    """A run of the demo."""

    id: str
    phase: str
    attempt: int
    dir: str | None
    outcome: Outcome | None
    verdict: Verdict | None


class Demo(Recorded):
    """`gonogo demo`."""

    experiment: str
    verdict: Verdict | None
    outcome: Outcome | None
    """Of the last run."""
    home: str
    report: str
    decisions: list[str]
    findings: list[Finding]
    runs: list[DemoRun]


class PatienceTable(Recorded):
    """The limits of one phase."""

    phase: str
    patience: dict[Place, Patience]


class PatienceTables(Recorded):
    """`gonogo watchdog`."""

    name: str
    """The plan or run that was asked for."""
    tables: list[PatienceTable]
    """Of a run one; of a plan one for each phase."""


OUTPUTS: dict[str, type[BaseModel]] = {
    "alerts": Alerts,
    "artifacts": ArtifactsView,
    "backup": BackedUp,
    "campaign cancel": CampaignView,
    "campaign list": Campaigns,
    "campaign show": CampaignView,
    "campaign submit": CampaignView,
    "campaign submit --dry-run": CampaignDryRun,
    "cancel": ExperimentView,
    "compare": Comparison,
    "db": DatabaseState,
    "decisions": Decisions,
    "decisions DECISION": Decision,
    "demo": Demo,
    "doctor": DoctorReport,
    "flags": Flags,
    "forecast": Forecast,
    "halt": ExperimentView,
    "judge": Judged,
    "run": Ran,
    "keys": Keys,
    "keys create": CreatedKey,
    "keys revoke": RevokedKey,
    "list": Experiments,
    "logs": LogView,
    "open": OpenedPage,
    "override": Decision,
    "plans": Plans,
    "plans PLAN": ShownPlan,
    "promote": ExperimentView,
    "prune": Pruned,
    "replay": Replayed,
    "report": Report,
    "rerun": ExperimentView,
    "restore": Restored,
    "resume": ExperimentView,
    "show": ShownExperiment,
    "simulate": Simulated,
    "status": ServiceStatus,
    "submit": ExperimentView,
    "submit --dry-run": DryRun,
    "takeover": ExperimentView,
    "up": Up,
    "verify": VerifiedRecords,
    "watch": Watched,
    "watchdog": PatienceTables,
    "workers": Workers,
}
"""Command → what one object (a line, for `watch` and `logs --follow`) on its stdout is."""


def _identifier(command: str) -> str:
    return command.replace(" ", "_").replace("-", "").lower()


_FIELDS: dict[str, Any] = {
    _identifier(command): (model, Field(default=None, alias=command))
    for command, model in OUTPUTS.items()
}
Outputs: type[Recorded] = create_model(
    "Outputs",
    __base__=Recorded,
    __doc__="What each command prints with `--json`: one property a command.",
    **_FIELDS,
)
