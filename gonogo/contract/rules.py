"""The rules of one run: everything besides the facts that a verdict depends on.

Recorded facts and recorded rules give the same decision, whatever later defaults are.
"""

from pydantic import Field, JsonValue

from gonogo.contract.criterion import Criterion
from gonogo.contract.decision import Condition
from gonogo.contract.facts import SaidIdentity
from gonogo.contract.finding import Source
from gonogo.contract.order import CarriedRemedy, LeftOut, PhaseAhead, RunReason, Taint
from gonogo.contract.outcome import RecordedFailure
from gonogo.contract.patience import ProgramKind
from gonogo.contract.wire import Recorded


class OpenCondition(Recorded):
    """A condition that waits for evidence, with the criterion that failed."""

    condition: Condition
    criterion: Criterion | None
    """None: only a person can settle it."""


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
    steps: int | None = None
    """Last required step; null: the order is unknown."""
    first_step: int = 1
    world_size: int | None = None
    tokens_per_step: int | None = None
    eval_every_steps: int | None = None
    identity: SaidIdentity = SaidIdentity()
    params_tolerance_ratio: float = 0.0
    allow_drift: list[str] = Field(default_factory=list)
    built_in: list[str]
    gate: list[Criterion]
    left_out: list[LeftOut] = Field(default_factory=list)
    phases_after: list[PhaseAhead] = Field(default_factory=list)
    conditions: list[OpenCondition]
    program_kind: ProgramKind = ProgramKind.OURS
    watch: dict[str, WatchValue] = Field(default_factory=dict)
    """Dotted path of a watchdog setting → its value."""
    run: str | None = None
    attempt: int | None = None
    reason: RunReason | None = None
    preflight: list[str] = Field(default_factory=list)
    detectors: list[str] = Field(default_factory=list)
    waive: list[str] = Field(default_factory=list)
    programs: int | None = None
    """Number of started programs, if not one a rank."""
    allow_faults: bool = False
    fault: str | None = None
    carried: list[CarriedRemedy] = Field(default_factory=list)
    failures: list[RecordedFailure] = Field(default_factory=list)
    taints: list[Taint] = Field(default_factory=list)
    disarmed: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the order that no plan may have, by path."""

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
