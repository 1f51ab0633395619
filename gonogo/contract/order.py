"""What is a worker told about a run? Everything: gate, deadlines and identity included.

An order lies in its run directory, so that a run directory judges itself.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from gonogo.contract.canonical import digest
from gonogo.contract.cluster import ClusterRequest
from gonogo.contract.criterion import Criterion
from gonogo.contract.decision import READS_BEFORE, MadeBy
from gonogo.contract.heartbeat import Identity
from gonogo.contract.outcome import RecordedFailure
from gonogo.contract.patience import Patience, Place, ProgramKind, patience_of
from gonogo.contract.plan import CheckpointCadence, HeartbeatCadence, Limits
from gonogo.contract.watch import Watch
from gonogo.contract.wire import Recorded
from gonogo.contract.workload import is_ours

MOST_STEPS = 10**9
MOST_RANKS = 64 * 1024
"""What no run here comes near: whoever reads an order may count up to it."""


class RunReason(StrEnum):
    """Why a run was started."""

    FIRST = "first"
    RESUME = "resume"
    RERUN = "rerun"
    TAKEOVER = "takeover"
    CONFIRM = "confirm"
    REMEDY = "remedy"
    CAMPAIGN = "campaign"


class ResumePoint(Recorded):
    """A durable checkpoint to start from."""

    path: str
    step: Annotated[int, Field(ge=0, le=MOST_STEPS)]
    """Step to go on after; 0 takes the weights alone, whatever step they are of (`init_from`)."""
    manifest_sha256: str | None = None
    """Of its `manifest.json` when it was found whole; null = nobody told (an older release)."""


class HaltGrace(Recorded):
    """Seconds between SIGTERM and SIGKILL."""

    grace_s: float = 1.0


class LeftOut(Recorded):
    """A criterion that does not apply to the profile."""

    id: str
    why: str


class CarriedRemedy(Recorded):
    """A remedy that helped in an earlier phase, and is laid over every run of this one too."""

    diagnosis: str
    """The failure that it answered."""
    patch: dict[str, JsonValue]
    """What it changes."""
    since: str
    """Phase in which it helped."""

    def told(self) -> str:
        """Return what it is and whence, as a part of a sentence."""
        return f"the remedy of {self.diagnosis} from {self.since}: {self.patch}"


class PhaseAhead(Recorded):
    """A phase of the plan that comes after the ordered one."""

    name: str
    steps: int


class TaintKind(StrEnum):
    """Why an earlier run counts against whoever resumes from its checkpoint."""

    UNPASSED = "unpassed"
    """It went to its last step and is not GO."""
    FAILED = "failed"
    """Its lines, or what it measured for its gate, had not passed when it ended."""
    DRIFTED = "drifted"
    """It trained the checkpoint with other code, or on other work, than was ordered."""


class Taint(Recorded):
    """One fact about an earlier run; orders and checkpoints carry it on, and nothing removes it."""

    kind: TaintKind
    experiment: str
    run: str
    step: int
    """Last step that the run was ordered to."""
    found: str | None = None
    """Its verdict; of a run that did not complete, how it ended. None: it has no verdict."""

    def words(self) -> str:
        """Return it as a part of a sentence."""
        who = f"{self.run} of {self.experiment}"
        if self.kind is TaintKind.UNPASSED:
            verdict = "has no verdict" if self.found is None else f"is {self.found}"
            return f"{who} went to its last step, {self.step}, and {verdict}"
        if self.kind is TaintKind.FAILED:
            return f"{who} failed ({self.found})"
        return f"{who} trained the checkpoint, and was not as ordered"


def carried_on(*parts: list[Taint]) -> list[Taint]:
    """Return taints together; each run counts once, by the first that names it."""
    found: dict[tuple[str, str], Taint] = {}
    for part in parts:
        for taint in part:
            found.setdefault((taint.experiment, taint.run), taint)
    return list(found.values())


def command_digest(command: Sequence[str]) -> str:
    """Return the plan digest of a command that no plan knows."""
    return digest({"command": list(command)})


class Order(Recorded):
    """order.json."""

    v: int = 1
    experiment: str
    run: str
    attempt: int = 1
    reason: RunReason = RunReason.FIRST
    token: int
    """Fencing token: grows with each claim; every write for the run carries it."""
    plan: str
    plan_digest: str
    phase: str
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] | None
    """Last step of the phase (`train.steps`). Null: nobody says, so no run can be complete."""
    world_size: Annotated[int, Field(ge=1, le=MOST_RANKS)]
    nodes: Annotated[int, Field(ge=1, le=MOST_RANKS)] = 1
    """On how many hosts the ranks run, the same number on each; no rule depends on it."""
    cluster: ClusterRequest | None = None
    """What the plan asks of a cluster's scheduler; no rule depends on it."""
    profile: str
    entry: str | None = "nsa.train"
    """Module or script that torchrun starts once a rank; null where there is a command."""
    args: list[str] = Field(default_factory=list)
    """Arguments of the entry, after `--order PATH`."""
    command: list[str] | None = None
    """Program and arguments, started once a host as they are written."""
    filled_at_start: list[str] = Field(default_factory=list)
    """Which of `command`, `args` and `env` hold `{run_dir}` or `{resume}`: they are filled where
    the run is started."""
    cwd: str | None = None
    """Folder in which it is started, where the plan names one."""
    files: list[str] = Field(default_factory=list)
    """Files whose digests are code identity."""
    patterns: list[str] = Field(default_factory=list)
    """Regular expressions that find steps in the command's output (docs/how-to/run.md)."""
    patterns_guessed: bool = False
    """Whether nobody chose the patterns: then the first that fits a line is the one."""
    init_from: str | None = None
    """Phase whose last weights this phase begins with; null = it starts fresh."""
    resume_from: ResumePoint | None = None
    train: dict[str, Any]
    """The whole training configuration; the trainer adds no defaults of its own."""
    env: dict[str, str] = Field(default_factory=dict)
    identity: Identity = Identity()
    allow_drift: list[str] = Field(default_factory=list)
    gate: list[Criterion] = Field(default_factory=list)
    left_out: list[LeftOut] = Field(default_factory=list)
    waive: list[str] = Field(default_factory=list)
    """Criteria that the plan lets stay unobserved, by id."""
    carried: list[CarriedRemedy] = Field(default_factory=list)
    """Remedies of earlier phases that lie over the phase, the oldest first; `train`, `env` and
    the rest hold them already."""
    failures: list[RecordedFailure] = Field(default_factory=list)
    """Failures that the plan names."""
    taints: list[Taint] = Field(default_factory=list)
    """What counts against the run because of the checkpoint that it resumes from."""
    phases_after: list[PhaseAhead] = Field(default_factory=list)
    """What the plan goes on with: conditions name these phases, forecasts count their steps."""
    watch: Watch = Watch()
    """What the plan and the profile set; everything else is a detector's default."""
    watch_from_profile: list[str] = Field(default_factory=list)
    """Dotted paths in `watch` whose value came from the profile."""
    patience: dict[Place, Patience] = Field(default_factory=dict)
    """How long a rank may stay in each place; a place that is left out has its default."""
    halt: HaltGrace = HaltGrace()
    heartbeat: HeartbeatCadence = HeartbeatCadence()
    checkpoint: CheckpointCadence = CheckpointCadence()
    fault: str | None = None
    allow_faults: bool = False
    """Whether the plan lets faults (and scripted devices) be put in on purpose."""
    limits: Limits = Limits()
    best_step_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Median step of the fastest complete run of the same work on the same devices, in seconds."""
    preflight: list[str] = Field(default_factory=list)
    """Ids of the preflight checks that are owed."""
    detectors: list[str] = Field(default_factory=list)
    """The detectors that watch this run."""
    made_by: MadeBy | None = None
    """The code that made the order; null for an order by hand."""

    @field_validator("detectors", mode="before")
    @classmethod
    def _of_this_form(cls, value: object) -> object:
        if isinstance(value, Mapping):
            raise ValueError(f"an order of an earlier form; {READS_BEFORE}")
        return value

    @model_validator(mode="after")
    def _spread_evenly(self) -> Self:
        if self.world_size % self.nodes:
            raise ValueError(
                f"nodes: {self.world_size} ranks are not shared evenly by {self.nodes}"
            )
        return self

    @property
    def has_plan(self) -> bool:
        """Whether a plan ordered the run; `gonogo run` may give a name to a command without one."""
        if self.command is None:
            return bool(self.plan)
        return bool(self.plan) and self.plan_digest != command_digest(self.command)

    @property
    def program_kind(self) -> ProgramKind:
        """How the watchdog knows where the program is: its column of the table of patience."""
        if is_ours(self.entry, self.command):
            return ProgramKind.OURS
        return ProgramKind.ATTACHED if self.command is None else ProgramKind.PRINTED

    def limits_of_places(self) -> dict[Place, Patience]:
        """Return the whole table of patience: a place that is not stored has its default."""
        engine = self.train.get("engine")
        tokens, floor = self.identity.tokens_per_step, self.watch.slow.floor_tok_s
        defaults = patience_of(
            self.watch,
            self.program_kind,
            from_profile=frozenset(self.watch_from_profile),
            compiled=isinstance(engine, Mapping) and engine.get("compile") is True,
            nodes=self.nodes,
            step_s=tokens / floor if tokens and floor else None,
        )
        return {**defaults, **self.patience}

    @property
    def last_step(self) -> int:
        """The step after which none is owed; one beyond all where nobody says."""
        return MOST_STEPS if self.steps is None else self.steps

    @property
    def ranks_per_node(self) -> int:
        """How many ranks one host has."""
        return self.world_size // self.nodes

    def node_of(self, rank: int) -> int:
        """Return the node on which a rank runs."""
        return rank // self.ranks_per_node

    def document(self) -> dict[str, Any]:
        """Return the JSON form of order.json: unset watch settings and thresholds stay unsaid."""
        document = self.model_dump(mode="json")
        if self.nodes == 1:
            del document["nodes"]
        if not self.args:
            del document["args"]
        if not self.filled_at_start:
            del document["filled_at_start"]
        if not self.carried:
            del document["carried"]
        if not self.failures:
            del document["failures"]
        if not self.taints:
            del document["taints"]
        if self.resume_from is not None and self.resume_from.manifest_sha256 is None:
            del document["resume_from"]["manifest_sha256"]
        if not self.patience:
            del document["patience"]
        if self.cluster is None:
            del document["cluster"]
        else:
            document["cluster"] = self.cluster.model_dump(mode="json", exclude_unset=True)
        document["watch"] = self.watch.model_dump(mode="json", exclude_unset=True)
        document["gate"] = [row.model_dump(mode="json", exclude_unset=True) for row in self.gate]
        return document
