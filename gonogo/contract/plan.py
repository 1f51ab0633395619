"""What does a plan say? Phases, gates and the watchdog's settings, as data.

`planning.source` reads one and names what is wrong with it; the whole training configuration is
resolved in `planning.resolve`.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from gonogo.contract.campaign import CampaignSpec
from gonogo.contract.canonical import digest
from gonogo.contract.cluster import ClusterRequest
from gonogo.contract.criterion import BUILT_IN_CRITERIA, Criterion
from gonogo.contract.errors import MOST_PROBLEMS, NotFound, hint
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.outcome import Detector, FailureRow
from gonogo.contract.watch import Watch
from gonogo.contract.wire import Name, Submitted
from gonogo.contract.workload import OURS, Patch, Workload

Drift = Literal["git_sha", "torch", "device", "driver"]
DRIFTS: tuple[Drift, ...] = get_args(Drift)
"""Fields of the identity that a plan may let differ."""

NEVER_WAIVED = ("completed", "no_halt_finding")
"""Built-in criteria without which nothing is proved: no plan waives them."""


MOST_PHASES = 200
"""Of a plan: each is checked under each patch that may lie over it."""


class HeartbeatCadence(Submitted):
    """How often an otherwise silent rank says that it lives."""

    alive_every_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds of silence after which a rank says that it lives; at most a third of
    `watch.alive_lost.suspect_s`."""


class Halt(Submitted):
    """How a run is ended; `grace_s` null takes 1 s without CUDA and 5 s with."""

    grace_s: Annotated[float, Field(ge=0)] | None = None
    """Seconds between asking a process to end and killing it; a plan says at most 3600."""


class Retry(Submitted):
    """How often what failed is tried again, by outcome class."""

    infra: Annotated[int, Field(ge=0, le=10)] = 2
    """How often a run that infrastructure ended is tried again, in one phase."""


class Confirm(Submitted):
    """Reruns before a NO_GO (R15)."""

    on: list[Detector]
    """Findings whose NO_GO is confirmed; the first rerun changes nothing."""
    variants: Annotated[list[Patch], Field(max_length=20)] = []
    """What is changed in the reruns after that, one by one, while the failure comes again."""


class Limits(Submitted):
    """Limits in time, seconds; null = none."""

    deadline_s: Annotated[float, Field(gt=0)] | None = None
    """How long a run may last before it is ended."""
    isolated_limit_s: Annotated[float, Field(ge=300)] | None = None
    """How long a run continues while the control plane cannot be reached."""


class CheckpointCadence(Submitted):
    """When a checkpoint is due: whichever comes first; null = not by this."""

    every_steps: Annotated[int, Field(ge=1)] | None = None
    """A checkpoint is due after so many steps."""
    every_s: Annotated[float, Field(gt=0)] | None = None
    """A checkpoint is due after so many seconds."""


class DeclaredIdentity(Submitted):
    """What a foreign workload must report of itself; null = not checked."""

    params: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    """Number of parameters, within `watch.identity.params_tolerance_ratio`."""
    dim: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    """Width of the model."""
    layers: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    """Number of layers."""
    heads: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    """Number of attention heads."""
    groups: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    """Number of key and value groups."""
    seq_len: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    """Tokens of a sequence."""
    vocab: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    """Size of the vocabulary; the first loss is held against its logarithm."""
    dtype: str | None = None
    """Number format that it computes in (`bf16`, `fp16`, `fp32`)."""
    tokens_per_step: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    """Tokens of a step over all ranks; speeds are computed from it."""
    dataset: str | None = None
    """What it is trained on; null: as the phase's `data` says."""


class Phase(Patch):
    """A named stage of a plan; its `env`, `train` and `workload` lie over the plan's own."""

    name: Name
    """What the phase is called."""
    steps: Annotated[int, Field(ge=1, le=10**9)]
    """Steps that it trains."""
    data: Annotated[str, Field(min_length=1)] | None = None
    """What is trained on; a foreign workload may leave it to its own configuration."""
    checkpoint: CheckpointCadence = CheckpointCadence()
    """When it saves."""
    approve: Literal["never", "on_conditional", "always"] = "never"
    """When a person has to let the next phase begin."""
    approve_expires_s: Annotated[float, Field(gt=0)] | None = None
    """How long its approval is waited for; null: as the plan says."""
    init_from: str | None = None
    """The earlier phase whose last weights it begins with; null = it starts fresh."""
    limits: Limits | None = None
    """Its own limits, instead of all of the plan's; null: the plan's."""
    gate: list[Criterion] = []
    """What it must show, besides the built-in criteria."""


class Plan(Submitted):
    """A whole plan."""

    v: Literal[1]
    """Version of the plan's form."""
    name: Name
    """What the plan is called."""
    profile: str
    """Row of the hardware table: floor, devices and peak of the machine."""
    allow_faults: bool = False
    """Whether faults may be caused on demand."""
    workload: Workload
    """The program, and how it is started."""
    cluster: ClusterRequest | None = None
    """What a cluster's scheduler is asked for; no verdict depends on it. Null: nothing."""
    train: dict[str, Any] = {}
    """Ours: `config` and what is laid over it; a foreign workload's own configuration, as it is."""
    watch: Watch = Watch()
    """The watchdog's settings."""
    heartbeat: HeartbeatCadence = HeartbeatCadence()
    """How often a silent rank speaks."""
    halt: Halt = Halt()
    """How a run is ended."""
    retry: Retry = Retry()
    """How often what failed is tried again."""
    confirm: Confirm | None = None
    """Reruns before a NO_GO; null: none."""
    failures: Annotated[list[FailureRow], Field(max_length=100)] = []
    """Failures of your own programs by the text of their error; tried before
    [the library](failures.md)."""
    remedies: dict[str, Patch] = {}
    """Diagnosis → what is changed before the phase is tried again."""
    max_remedies: Annotated[int, Field(ge=0, le=10)] = 0
    """How many remedies one phase may try."""
    carry_remedies: bool = True
    """Whether a remedy that helped in one phase lies over the phases after it too."""
    allow_drift: list[Drift] = []
    """What may differ from the experiment's first run; it is shown, and makes CONDITIONAL_GO."""
    limits: Limits = Limits()
    """Limits of every phase."""
    approve_expires_s: Annotated[float, Field(gt=0)] | None = None
    """How long an approval is waited for, seconds; null: for ever."""
    waive: list[Name] = []
    """Criteria that may stay unobserved; what they waive is shown and makes CONDITIONAL_GO."""
    identity: DeclaredIdentity | None = None
    """What a foreign workload must report; of ours the configuration says it."""
    campaign: CampaignSpec | None = None
    """What is compared; null: nothing, it is an experiment and no campaign."""
    phases: Annotated[list[Phase], Field(min_length=1, max_length=MOST_PHASES)]
    """The phases, in order."""

    @field_validator("profile")
    @classmethod
    def _profile_is_known(cls, name: str) -> str:
        known = hardware_profiles()
        if name not in known:
            raise ValueError(f"found {name!r}; {hint(name, known)}")
        return name

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        found = chain(
            _problems_of(self),
            _problems_of_phases(self),
            _problems_of_campaign(self),
        )
        problems = list(islice(found, MOST_PROBLEMS + 1))
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def ours(self) -> bool:
        """Whether it runs the workload that comes with gonogo, whose configurations are known."""
        return self.workload.program == OURS

    def phase(self, name: str) -> Phase:
        """Return the phase called `name`.

        Raises:
            NotFound: there is none.
        """
        for phase in self.phases:
            if phase.name == name:
                return phase
        names = [phase.name for phase in self.phases]
        raise NotFound(f"plan {self.name} has no phase {name}; {hint(name, names)}")

    def next_phase(self, name: str) -> Phase | None:
        """Return the phase after `name`, or None after the last."""
        names = [phase.name for phase in self.phases]
        index = names.index(name) + 1
        return self.phases[index] if index < len(names) else None

    def approval_limit_s(self, name: str) -> float | None:
        """Return how long the approval of a phase is waited for, seconds; None: for ever."""
        own = self.phase(name).approve_expires_s
        return self.approve_expires_s if own is None else own

    def canonical(self) -> dict[str, Any]:
        """Return the JSON form that is stored and digested: what was said, nothing else."""
        return self.model_dump(mode="json", exclude_unset=True)

    def digest(self) -> str:
        """Return the digest of the plan: what is trained, watched and judged, wherever it runs.

        Rules hold it, and no rule depends on the place: `cluster` and `workload.nodes` are not in
        it, so that a run on two hosts is judged by the very rules of one on a single host.
        """
        said = self.canonical()
        said.pop("cluster", None)
        said["workload"].pop("nodes", None)
        return digest(said)


def _problems_of(plan: Plan) -> Iterator[str]:
    """Yield `path: what is wrong` between a plan's parts."""
    if plan.ours and not isinstance(plan.train.get("config"), str):
        yield "train.config: expected the name of a configuration"
    if plan.ours and plan.identity is not None:
        yield "identity: expected nothing: the configuration of nsa.train says what it is"
    limit = plan.watch.alive_lost.suspect_s / 3
    if plan.heartbeat.alive_every_s > limit:
        yield (
            f"heartbeat.alive_every_s: found {plan.heartbeat.alive_every_s:g}, expected at most"
            f" {limit:g} (a third of watch.alive_lost.suspect_s)"
        )
    named = {criterion.id for phase in plan.phases for criterion in phase.gate}
    waivable = named.union(BUILT_IN_CRITERIA).difference(NEVER_WAIVED)
    for name in plan.waive:
        if name in NEVER_WAIVED:
            yield f"waive: {name} cannot be waived: without it nothing is proved"
        elif name not in waivable:
            yield f"waive: found {name!r}; {hint(name, waivable)}"


def _problems_of_phases(plan: Plan) -> Iterator[str]:
    names = [phase.name for phase in plan.phases]
    for index, phase in enumerate(plan.phases):
        where = f"phases.{phase.name}"
        if phase.name in names[:index]:
            yield f"{where}: two phases have the same name"
        if plan.ours and phase.data is None:
            yield f"{where}.data: missing; expected a value"
        if phase.init_from is not None and phase.init_from not in names[:index]:
            yield (
                f"{where}.init_from: found {phase.init_from!r}; expected an earlier phase"
                f" ({', '.join(names[:index]) or 'there is none'})"
            )
        ids = Counter(criterion.id for criterion in phase.gate)
        for name in (name for name, times in ids.items() if times > 1):
            yield f"{where}.gate.{name}: two criteria have the same id"
        for criterion in phase.gate:
            problem = _misplaced(names, index, criterion)
            if problem:
                yield f"{where}.gate.{criterion.id}{problem}"


def _problems_of_campaign(plan: Plan) -> Iterator[str]:
    """Yield what would ask somebody, or run something else, in a variant's place."""
    if plan.campaign is None:
        return
    if len(plan.phases) > 1:
        yield f"phases: found {len(plan.phases)}, expected the one that a campaign compares"
    for phase in plan.phases:
        if phase.approve != "never":
            yield f"phases.{phase.name}.approve: found {phase.approve}, expected never (campaign)"
    if plan.confirm is not None:
        yield "confirm: expected nothing: a campaign runs its variants as they are"
    if plan.remedies:
        yield "remedies: expected nothing: a campaign runs its variants as they are"


def _misplaced(names: list[str], index: int, criterion: Criterion) -> str | None:
    """Say what is wrong with a condition whose evidence would come after it is due."""
    order = [*names, "end"]
    for field in ("evidence_from", "due"):
        value = getattr(criterion, field)
        if value is not None and value not in order[index + 1 :]:
            return f".{field}: found {value}, expected a later phase"
    if criterion.evidence_from == "end":
        return ".evidence_from: expected a phase"
    places = [order.index(value) for value in (criterion.evidence_from, criterion.due) if value]
    if len(places) == 2 and places[0] >= places[1]:
        return ": evidence_from does not come before due"
    return None
