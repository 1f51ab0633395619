"""A plan: phases, gates and settings of the watchdog.

`planning.source` reads one and reports its problems.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import chain, islice
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import Field, field_validator, model_validator

from gonogo.contract.campaign import CampaignSpec
from gonogo.contract.canonical import digest
from gonogo.contract.criterion import BUILT_IN_CRITERIA, Criterion
from gonogo.contract.errors import MOST_PROBLEMS, NotFound, Rejected, hint
from gonogo.contract.heartbeat import Count
from gonogo.contract.outcome import Detector, FailureRow
from gonogo.contract.watch import Watch
from gonogo.contract.wire import Name, Submitted
from gonogo.contract.workload import OURS, ClusterRequest, Patch, Workload


class HardwareProfile(Submitted):
    """One row of the hardware table."""

    floor_tok_s: float | None = None
    gpus: int = 0
    peak_flops: float | None = None
    text: str = ""

    @property
    def has_devices(self) -> bool:
        """Whether utilisation and device memory apply."""
        return self.gpus > 0


@cache
def hardware_profiles() -> Mapping[str, HardwareProfile]:
    """Return the hardware table (hardware.yaml), read once."""
    text = resources.files("gonogo.contract").joinpath("hardware.yaml").read_text()
    rows = yaml.safe_load(text).items()
    return MappingProxyType({name: HardwareProfile.model_validate(row) for name, row in rows})


Drift = Literal["git_sha", "torch", "device", "driver"]
DRIFTS: tuple[Drift, ...] = get_args(Drift)

NEVER_WAIVED = ("completed", "no_halt_finding")

MOST_PHASES = 200


class HeartbeatCadence(Submitted):
    """How often a silent rank shows that it lives."""

    alive_every_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds between `alive` lines; at most a third of `watch.alive_lost.suspect_s`."""


class Halt(Submitted):
    """How a run is ended."""

    grace_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    """Seconds between SIGTERM and SIGKILL, at most 3600; null: 1 s, with CUDA 5 s."""


class Retry(Submitted):
    """How often a failed run is retried, by outcome class."""

    infra: Annotated[int, Field(ge=0, le=10)] = 2  # Retries of a phase after infra failures.


class Confirm(Submitted):
    """Reruns before a NO_GO (R15)."""

    on: list[Detector]  # Findings whose NO_GO is confirmed by an unchanged rerun.
    variants: Annotated[list[Patch], Field(max_length=20)] = []  # Changes of further reruns.


class Limits(Submitted):
    """Limits in time, seconds; null = none."""

    deadline_s: Annotated[float, Field(gt=0)] | None = None  # Longest run.
    isolated_limit_s: Annotated[float, Field(ge=300)] | None = None
    """How long a run continues without the control plane."""


class CheckpointCadence(Submitted):
    """When a checkpoint is due: whichever comes first."""

    every_steps: Annotated[int, Field(ge=1)] | None = None  # Steps between checkpoints.
    every_s: Annotated[float, Field(gt=0)] | None = None  # Seconds between checkpoints.


class DeclaredIdentity(Submitted):
    """Identity that a foreign workload must report; null: not checked."""

    params: Count | None = None  # Parameters, within `watch.identity.params_tolerance_ratio`.
    dim: Count | None = None  # Width of the model.
    layers: Count | None = None  # Number of layers.
    heads: Count | None = None  # Number of attention heads.
    groups: Count | None = None  # Number of key and value groups.
    seq_len: Count | None = None  # Tokens of a sequence.
    vocab: Count | None = None  # Size of the vocabulary; its logarithm is the expected first loss.
    dtype: str | None = None  # Number format: `bf16`, `fp16` or `fp32`.
    tokens_per_step: Count | None = None  # Tokens of a step, all ranks.
    dataset: str | None = None  # Training data; null: `data` of the phase.


class Phase(Patch):
    """A stage of a plan; its `env`, `train` and `workload` are laid over the plan's."""

    name: Name  # Name of the phase.
    steps: Annotated[int, Field(ge=1, le=10**9)]  # Number of steps.
    data: Annotated[str, Field(min_length=1)] | None = None
    """Training data; foreign ones may omit it."""
    checkpoint: CheckpointCadence = CheckpointCadence()  # When it saves.
    approve: Literal["never", "on_conditional", "always"] = "never"  # When a person must approve.
    approve_expires_s: Annotated[float, Field(gt=0)] | None = None
    """Until the approval expires; null: plan's."""
    init_from: str | None = None  # Earlier phase whose last weights it begins with; null: fresh.
    limits: Limits | None = None  # Limits instead of the plan's; null: the plan's.
    gate: list[Criterion] = []  # Criteria besides the built-in ones.


class Plan(Submitted):
    """A whole plan."""

    v: Literal[1]  # Version of the plan's form.
    name: Name  # Name of the plan.
    profile: str  # Row of the hardware table.
    allow_faults: bool = False  # Whether faults may be caused on demand.
    workload: Workload  # The program, and how it is started.
    cluster: ClusterRequest | None = None  # Requests to a scheduler; no verdict depends on them.
    train: dict[str, Any] = {}  # `config` and changes of it; for other programs their own keys.
    watch: Watch = Watch()  # The watchdog's settings.
    heartbeat: HeartbeatCadence = HeartbeatCadence()  # How often a silent rank shows that it lives.
    halt: Halt = Halt()  # How a run is ended.
    retry: Retry = Retry()  # How often a failed run is retried.
    confirm: Confirm | None = None  # Reruns before a NO_GO; null: none.
    failures: Annotated[list[FailureRow], Field(max_length=100)] = []
    """Known failures of your programs, tried before [the library](failures.md)."""
    remedies: dict[str, Patch] = {}  # Diagnosis → changes before the phase is retried.
    max_remedies: Annotated[int, Field(ge=0, le=10)] = 0  # How many remedies one phase may try.
    carry_remedies: bool = True  # Whether a remedy that helped applies to later phases too.
    allow_drift: list[Drift] = []  # What may differ from the first run; that makes CONDITIONAL_GO.
    limits: Limits = Limits()  # Limits of every phase.
    approve_expires_s: Annotated[float, Field(gt=0)] | None = None
    """Until an approval expires; null: never."""
    waive: list[Name] = []  # Criteria that may stay unobserved; CONDITIONAL_GO if one does.
    identity: DeclaredIdentity | None = None  # What a foreign workload must report.
    campaign: CampaignSpec | None = None  # Compared variants; null: no campaign.
    phases: Annotated[list[Phase], Field(min_length=1, max_length=MOST_PHASES)]  # In order.

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
        """Whether it runs the workload that comes with gonogo."""
        return self.workload.program == OURS

    def phase(self, name: str) -> Phase:
        """Return the phase called `name`, or raise `NotFound`."""
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
        """Return the seconds until the approval of a phase expires; None: never."""
        own = self.phase(name).approve_expires_s
        return self.approve_expires_s if own is None else own

    def canonical(self) -> dict[str, Any]:
        """Return the stored and digested JSON form, without defaults."""
        return self.model_dump(mode="json", exclude_unset=True)

    def digest(self) -> str:
        """Return the digest of the plan, without `cluster` and `workload.nodes`."""
        said = self.canonical()
        said.pop("cluster", None)
        said["workload"].pop("nodes", None)
        return digest(said)


def _problems_of(plan: Plan) -> Iterator[str]:
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
    """Return the problem of a condition whose evidence comes after it is due."""
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


DEFAULT_PHASE = "smoke"

KINDS: dict[str, dict[str, str]] = {
    "hang": {"rank": "1", "step": "12", "section": "backward"},
    "freeze": {"rank": "0", "step": "9"},
    "slow": {"factor": "5", "from": "20"},
    "nan": {"step": "15"},
    "xid": {"code": "79", "rank": "1", "step": "12"},
    "imbalance": {"rank": "1", "util": "30", "from": "10"},
    "crash": {"rank": "1", "step": "8"},
    "exit": {"code": "3", "rank": "0", "step": "8"},
    "wrong-config": {},
    "desync": {"rank": "1", "step": "12"},
    "diverge": {"from": "20"},
    "frozen": {"from": "20"},
    "straggle": {"rank": "1", "factor": "2", "from": "10"},
    "starve": {"share": "0.7", "from": "10"},
    "leak": {"rank": "0", "mb_per_step": "50", "from": "10"},
    "disk": {"step": "12"},
    "boast": {"factor": "25", "from": "10"},
    "truncate": {"step": "12"},
}
"""Kind → its keys and their defaults."""

WHOLE_NUMBERS: dict[str, tuple[int, int]] = {
    "code": (1, 255),
    "mb_per_step": (1, 65_536),
    "util": (0, 100),
}
FRACTIONS: dict[str, tuple[float, float]] = {"factor": (1, 1000), "share": (0.01, 0.99)}
"""Key → the least and the most it may be; rank, step and from depend on the plan."""

SECTIONS = ("data", "forward", "backward", "optimizer", "log", "checkpoint", "eval")


def parse_fault(spec: str, plan: Plan) -> tuple[str, str]:
    """Return the phase of a SPEC and the SPEC with all its values, or raise `Rejected`."""
    kind, _, rest = spec.partition(":")
    if kind not in KINDS:
        raise Rejected(f"fault: found {kind!r}; expected one of {', '.join(KINDS)}")
    for pair in filter(None, rest.split(",")):
        key, equals, _ = pair.partition("=")
        if not equals or key not in (*KINDS[kind], "phase"):
            known = ", ".join([*KINDS[kind], "phase"])
            raise Rejected(f"fault {kind}: found {pair!r}; expected KEY=VALUE with KEY of {known}")
    _, values = values_of(spec)
    name = values.pop("phase", DEFAULT_PHASE)
    phase = next((row for row in plan.phases if row.name == name), None)
    if phase is None:  # of a SPEC it is a bad value, not a missing thing
        known = ", ".join(row.name for row in plan.phases)
        raise Rejected(f"fault {kind}: phase: found {name!r}; expected one of {known}")
    if kind == "desync" and plan.workload.world_size < 2:
        raise Rejected("fault desync: expected a plan of at least 2 ranks; found 1")
    _check_values(kind, values, plan.workload.world_size, phase.steps)
    pairs = ",".join(f"{key}={value}" for key, value in values.items())
    return name, f"{kind}:{pairs}" if pairs else kind


def values_of(spec: str) -> tuple[str, dict[str, str]]:
    """Return kind and values of a whole SPEC, as an order carries it; nothing is checked."""
    kind, _, rest = spec.partition(":")
    pairs = (pair.partition("=") for pair in rest.split(",") if pair)
    return kind, {**KINDS.get(kind, {}), **{key: value for key, _, value in pairs}}


def _check_values(kind: str, values: dict[str, str], world_size: int, steps: int) -> None:
    whole = {
        **WHOLE_NUMBERS,
        "rank": (0, world_size - 1),
        "step": (1, steps),
        "from": (1, steps),
    }
    for key, value in values.items():
        if key == "section":
            if value not in SECTIONS:
                raise Rejected(
                    f"fault {kind}: section: found {value!r}; expected {', '.join(SECTIONS)}"
                )
            continue
        low, high = whole[key] if key in whole else FRACTIONS[key]
        try:
            number = int(value) if key in whole else float(value)
        except ValueError as error:
            raise Rejected(f"fault {kind}: {key}: found {value!r}; expected a number") from error
        if not low <= number <= high:
            raise Rejected(f"fault {kind}: {key}: found {value}; expected {low} to {high}")
