"""Which resources does the REST API have? Their shapes, shared by service and client."""

from typing import Any

from pydantic import Field

from gonogo.contract.decision import Condition, Verdict
from gonogo.contract.heartbeat import Identity
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import Outcome
from gonogo.contract.wire import Recorded, Submitted


class Submission(Submitted):
    """POST /experiments."""

    plan: str | dict[str, Any]
    name: str | None = Field(default=None, max_length=200)
    set: dict[str, Any] = {}
    labels: dict[str, str] = {}
    dry_run: bool = False


class Action(Submitted):
    """Body of the verbs."""

    reason: str = ""


class Override(Submitted):
    """POST /experiments/{id}/decisions; with `condition`, waives that condition."""

    verdict: Verdict
    reason: str = Field(min_length=1)
    condition: str | None = None


class Forecast(Recorded):
    """How long the rest takes, computed from measurement (R18)."""

    seconds_p50: float | None = None
    seconds_p90: float | None = None
    basis: str = "nothing measured yet"
    claimed_seconds: float | None = None


class PhaseView(Recorded):
    """A phase of an experiment."""

    name: str
    state: PhaseState
    steps: int
    verdict: Verdict | None = None
    runs: list[str] = []


class ExperimentView(Recorded):
    """An experiment."""

    id: str
    name: str
    plan: str
    state: ExperimentState
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    phases: list[PhaseView] = []
    conditions: list[Condition] = []
    forecast: Forecast = Forecast()
    labels: dict[str, str] = {}
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    waiting_for: str | None = None
    """Why nothing happens, in one sentence (no worker, an approval, a decision)."""


class RunView(Recorded):
    """A run."""

    id: str
    experiment: str
    phase: str
    attempt: int
    reason: RunReason
    state: RunState
    suspect: bool = False
    lost: bool = False
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    worker: str | None = None
    step: int = 0
    steps: int
    loss: float | None = None
    toks_per_s: float | None = None
    last_heartbeat_at: str | None = None
    identity: Identity | None = None
    dir: str | None = None
    host: str | None = None
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None


class AlertData(Recorded):
    """`data` of an alert."""

    alert_id: str
    experiment: str | None = None
    run: str | None = None
    phase: str | None = None
    rank: int | None = None
    finding: dict[str, Any] | None = None
    decision: dict[str, Any] | None = None
    text: str
    url: str


class AlertBody(Recorded):
    """Body of a webhook, after the Standard Webhooks specification."""

    type: str
    timestamp: str
    data: AlertData


class ProblemBody(Recorded):
    """RFC 9457 problem details."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str | None = None
    code: str
    errors: list[dict[str, str]] = []
    state: str | None = None
    allowed: list[str] = []
