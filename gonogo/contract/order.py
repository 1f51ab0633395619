"""The order of a run: everything about it, gate, limits and identity included.

The order is a file of the run directory, so a run directory judges itself.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, JsonValue, model_validator

from gonogo.contract.canonical import digest
from gonogo.contract.criterion import Criterion
from gonogo.contract.decision import Condition, MadeBy
from gonogo.contract.facts import SaidIdentity
from gonogo.contract.finding import Source
from gonogo.contract.heartbeat import Identity
from gonogo.contract.outcome import RecordedFailure
from gonogo.contract.plan import CheckpointCadence, HeartbeatCadence, Limits
from gonogo.contract.watch import Patience, Place, ProgramKind, Watch, patience_of
from gonogo.contract.wire import Recorded
from gonogo.contract.workload import ClusterRequest, is_ours

MOST_STEPS = 10**9
MOST_RANKS = 64 * 1024


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
    """Continue after it; 0: only the weights are taken."""
    manifest_sha256: str | None = None


class HaltGrace(Recorded):
    """Seconds between SIGTERM and SIGKILL."""

    grace_s: float = 1.0


class LeftOut(Recorded):
    """A criterion that does not apply to the profile."""

    id: str
    why: str


class CarriedRemedy(Recorded):
    """A remedy that helped in an earlier phase, and is laid over this one too."""

    diagnosis: str
    patch: dict[str, JsonValue]
    since: str

    def told(self) -> str:
        """Return it for a sentence."""
        return f"the remedy of {self.diagnosis} from {self.since}: {self.patch}"


class PhaseAhead(Recorded):
    """A later phase of the plan."""

    name: str
    steps: int


class TaintKind(StrEnum):
    """Why an earlier run counts against a run that resumes from its checkpoint."""

    UNPASSED = "unpassed"  # It reached its last step and is not GO.
    FAILED = "failed"  # Its lines or measures had not passed when it ended.
    DRIFTED = "drifted"  # Its code or its work was not as ordered.


class Taint(Recorded):
    """One fact about an earlier run; orders and checkpoints copy it, nothing removes it."""

    kind: TaintKind
    experiment: str
    run: str
    step: int
    found: str | None = None  # Its verdict, or how it ended; None: no verdict.

    def words(self) -> str:
        """Return it for a sentence."""
        who = f"{self.run} of {self.experiment}"
        if self.kind is TaintKind.UNPASSED:
            verdict = "has no verdict" if self.found is None else f"is {self.found}"
            return f"{who} went to its last step, {self.step}, and {verdict}"
        if self.kind is TaintKind.FAILED:
            return f"{who} failed ({self.found})"
        return f"{who} trained the checkpoint, and was not as ordered"


def carried_on(*parts: list[Taint]) -> list[Taint]:
    """Return all taints; each run counts once, by its first taint."""
    found: dict[tuple[str, str], Taint] = {}
    for part in parts:
        for taint in part:
            found.setdefault((taint.experiment, taint.run), taint)
    return list(found.values())


def command_digest(command: Sequence[str]) -> str:
    """Return the plan digest of a command without a plan."""
    return digest({"command": list(command)})


class Order(Recorded):
    """order.json."""

    v: int = 1
    experiment: str
    run: str
    attempt: int = 1
    reason: RunReason = RunReason.FIRST
    token: int
    plan: str
    plan_digest: str
    phase: str
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] | None
    """Last step of the phase (`train.steps`); null: unknown, so no run is complete."""
    world_size: Annotated[int, Field(ge=1, le=MOST_RANKS)]
    nodes: Annotated[int, Field(ge=1, le=MOST_RANKS)] = 1  # Hosts, with equally many ranks each.
    cluster: ClusterRequest | None = None
    profile: str
    entry: str | None = "nsa.train"
    args: list[str] = []
    command: list[str] | None = None
    filled_at_start: list[str] = []  # What is filled at the start: `command`, `args`, `env`.
    cwd: str | None = None
    files: list[str] = []
    patterns: list[str] = []  # Regular expressions for step lines of the output.
    patterns_guessed: bool = False  # Whether the first pattern that fits a line is taken.
    init_from: str | None = None  # Phase whose last weights it begins with; null: it is fresh.
    resume_from: ResumePoint | None = None
    train: dict[str, Any]  # The whole training configuration.
    env: dict[str, str] = {}
    identity: Identity = Identity()
    allow_drift: list[str] = []
    gate: list[Criterion] = []
    left_out: list[LeftOut] = []
    waive: list[str] = []
    carried: list[CarriedRemedy] = []
    """Remedies of earlier phases, the oldest first; `train` and `env` include them."""
    failures: list[RecordedFailure] = []
    taints: list[Taint] = []
    phases_after: list[PhaseAhead] = []
    watch: Watch = Watch()  # Settings of the plan and the profile; all others are defaults.
    watch_from_profile: list[str] = []
    patience: dict[Place, Patience] = {}  # Limit of each place; a missing one has its default.
    halt: HaltGrace = HaltGrace()
    heartbeat: HeartbeatCadence = HeartbeatCadence()
    checkpoint: CheckpointCadence = CheckpointCadence()
    fault: str | None = None
    allow_faults: bool = False
    limits: Limits = Limits()
    preflight: list[str] = []
    detectors: list[str] = []
    made_by: MadeBy | None = None

    @model_validator(mode="after")
    def _spread_evenly(self) -> Self:
        if self.world_size % self.nodes:
            raise ValueError(
                f"nodes: {self.world_size} ranks are not shared evenly by {self.nodes}"
            )
        return self

    @property
    def has_plan(self) -> bool:
        """Whether a plan ordered the run."""
        if self.command is None:
            return bool(self.plan)
        return bool(self.plan) and self.plan_digest != command_digest(self.command)

    @property
    def program_kind(self) -> ProgramKind:
        """The column of the table of patience."""
        if is_ours(self.entry, self.command):
            return ProgramKind.OURS
        return ProgramKind.ATTACHED if self.command is None else ProgramKind.PRINTED

    def limits_of_places(self) -> dict[Place, Patience]:
        """Return the whole table of patience."""
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
        """The last step; beyond all steps if unknown."""
        return MOST_STEPS if self.steps is None else self.steps

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks on one host."""
        return self.world_size // self.nodes

    def node_of(self, rank: int) -> int:
        """Return the node on which a rank runs."""
        return rank // self.ranks_per_node

    def document(self) -> dict[str, Any]:
        """Return the JSON form of order.json, without unset settings and thresholds."""
        document = self.model_dump(mode="json")
        if self.nodes == 1:
            del document["nodes"]
        for name in ("args", "filled_at_start", "carried", "failures", "taints", "patience"):
            if not document[name]:
                del document[name]
        if self.resume_from is not None and self.resume_from.manifest_sha256 is None:
            del document["resume_from"]["manifest_sha256"]
        if self.cluster is None:
            del document["cluster"]
        else:
            document["cluster"] = self.cluster.model_dump(mode="json", exclude_unset=True)
        document["watch"] = self.watch.model_dump(mode="json", exclude_unset=True)
        document["gate"] = [row.model_dump(mode="json", exclude_unset=True) for row in self.gate]
        return document


class OpenCondition(Recorded):
    """A condition that waits for evidence, with the criterion that failed."""

    condition: Condition
    criterion: Criterion | None  # None: only a person can settle it.


class WatchValue(Recorded):
    """One setting of the watchdog, and the source of its value."""

    value: JsonValue
    source: Source


class Rules(Recorded):
    """The rules of one run."""

    plan: str | None = None
    plan_digest: str | None = None
    phase: str | None = None
    profile: str | None = None
    steps: int | None = None  # Last required step; null: the order is unknown.
    first_step: int = 1
    world_size: int | None = None
    tokens_per_step: int | None = None
    eval_every_steps: int | None = None
    identity: SaidIdentity = SaidIdentity()
    params_tolerance_ratio: float = 0.0
    allow_drift: list[str] = []
    built_in: list[str]
    gate: list[Criterion]
    left_out: list[LeftOut] = []
    phases_after: list[PhaseAhead] = []
    conditions: list[OpenCondition]
    program_kind: ProgramKind = ProgramKind.OURS
    watch: dict[str, WatchValue] = {}  # Path of a setting → its value.
    run: str | None = None
    attempt: int | None = None
    reason: RunReason | None = None
    preflight: list[str] = []
    detectors: list[str] = []
    waive: list[str] = []
    programs: int | None = None  # Number of started programs, if not one a rank.
    allow_faults: bool = False
    fault: str | None = None
    carried: list[CarriedRemedy] = []
    failures: list[RecordedFailure] = []
    taints: list[Taint] = []
    disarmed: dict[str, JsonValue] = {}  # Settings that no plan may have, by path.

    @property
    def known(self) -> bool:
        """Whether the order is known."""
        return self.world_size is not None

    @property
    def last_step(self) -> int:
        """The last required step; 0 if unknown."""
        return self.steps or 0

    @property
    def steps_after(self) -> int:
        """Steps of the phases after this one."""
        return sum(row.steps for row in self.phases_after)

    def criteria(self) -> dict[str, Criterion]:
        """Return the criteria of the gate and of conditions, by id."""
        found = {row.id: row for row in self.gate}
        found |= {row.condition.id: row.criterion for row in self.conditions if row.criterion}
        return found

    def ranks(self) -> range:
        """Return the ordered ranks."""
        return range(self.world_size or 0)

    def owed_steps(self) -> range:
        """Return the required steps of this attempt."""
        return range(self.first_step, self.last_step + 1)

    def window(self, criterion: Criterion) -> range:
        """Return the steps of a criterion: the last `window` after the warm-up of this attempt."""
        first = self.first_step + criterion.warmup_steps
        if criterion.window:
            first = max(first, self.last_step - criterion.window + 1)
        return range(first, self.last_step + 1)

    def evals(self, window: range) -> range:
        """Return the steps in `window` after which an evaluation is due."""
        every = self.eval_every_steps
        if not every:
            return range(0)
        return range(window.start + -window.start % every, window.stop, every)
