"""By which rules is a run judged? Everything that a verdict depends on besides the facts, typed.

Rules hold the gate with its thresholds, the identity, the steps owed, the conditions that the
phase can meet and the watchdog's values with their sources, so that recorded facts and recorded
rules come to the same decision for ever, whatever the defaults of later versions are.
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
    """A condition that waits for evidence, with its criterion as it was when it failed."""

    condition: Condition
    criterion: Criterion | None
    """None where nothing can be measured again: only a person can settle it."""


class WatchValue(Recorded):
    """One setting of the watchdog, and where its value came from."""

    value: JsonValue
    source: Source


class Rules(Recorded):
    """The rules of one run."""

    plan: str | None = None
    plan_digest: str | None = None
    phase: str | None = None
    profile: str | None = None
    steps: int | None = None
    """Last step that is owed; null where nobody recorded what was ordered."""
    first_step: int = 1
    """First step of this attempt: 1, or the one after the checkpoint that it resumed from."""
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
    """The column of the table of patience."""
    watch: dict[str, WatchValue] = Field(default_factory=dict)
    """Dotted path of every setting of the watchdog → its value."""
    run: str | None = None
    """The run that lines, ticks and exit records must name."""
    attempt: int | None = None
    reason: RunReason | None = None
    """Why the run was started."""
    preflight: list[str] = Field(default_factory=list)
    """Ids of the preflight checks that are owed."""
    detectors: list[str] = Field(default_factory=list)
    """The detectors that watched the run."""
    waive: list[str] = Field(default_factory=list)
    """Criteria that may stay unobserved, by id."""
    programs: int | None = None
    """How many programs were started, where it is not one a rank."""
    allow_faults: bool = False
    """Whether faults and scripted devices were allowed."""
    fault: str | None = None
    """The fault that was put in on purpose."""
    carried: list[CarriedRemedy] = Field(default_factory=list)
    """Remedies of earlier phases under which the run was made."""
    failures: list[RecordedFailure] = Field(default_factory=list)
    """Failures that the plan names; they are tried before the library."""
    taints: list[Taint] = Field(default_factory=list)
    """What counts against the run because of its checkpoint."""
    disarmed: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the order that no plan may have, by their path."""

    @property
    def known(self) -> bool:
        """Whether anybody recorded what was ordered."""
        return self.world_size is not None

    @property
    def last_step(self) -> int:
        """The last step that is owed; 0 where nobody knows."""
        return self.steps or 0

    @property
    def steps_after(self) -> int:
        """Steps of the phases after this one."""
        return sum(row.steps for row in self.phases_after)

    def criteria(self) -> dict[str, Criterion]:
        """Return what is measured, by id: the criteria of the gate, and those of conditions."""
        found = {row.id: row for row in self.gate}
        found |= {row.condition.id: row.criterion for row in self.conditions if row.criterion}
        return found

    def ranks(self) -> range:
        """Return the ordered ranks."""
        return range(self.world_size or 0)

    def owed_steps(self) -> range:
        """Return the steps that this attempt owes."""
        return range(self.first_step, self.last_step + 1)

    def window(self, criterion: Criterion) -> range:
        """Return the steps that a criterion looks at: after warm-up, the last `window` of them.

        Warm-up counts from the first step of the attempt: a resumed process warms up again.
        """
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
