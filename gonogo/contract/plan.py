"""What does a plan say? Phases, gates and the watchdog's settings, as data.

`plan_source` reads one; the whole training configuration is resolved in `resolve`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from gonogo.contract.canonical import digest
from gonogo.contract.criterion import Criterion
from gonogo.contract.errors import NotFound
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.outcome import Detector
from gonogo.contract.watch import Watch
from gonogo.contract.wire import Name, Submitted

ENV_NAME = r"^(NSA_[A-Z0-9_]+|NCCL_[A-Z0-9_]+|TORCH_NCCL_[A-Z0-9_]+|GLOO_[A-Z0-9_]+|OMP_NUM_THREADS|MKL_NUM_THREADS|CUDA_VISIBLE_DEVICES|PYTORCH_CUDA_ALLOC_CONF|CONFIG|TOKENIZERS_PARALLELISM|HF_HOME|HF_TOKEN)$"  # noqa: E501 - one table of allowed names
Env = dict[Annotated[str, Field(pattern=ENV_NAME)], str]


class Workload(Submitted):
    """Which entry point runs, on how many ranks."""

    entry: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*$")] = "nsa.train"
    world_size: Annotated[int, Field(ge=1, le=1024)] = 1
    parallel: Literal["single", "ddp", "fsdp"] = "single"


class HeartbeatCadence(Submitted):
    """How often an otherwise silent rank says that it lives."""

    alive_every_s: Annotated[float, Field(gt=0)] = 5.0


class Halt(Submitted):
    """How a run is ended; `grace_s` null takes 1 s without CUDA and 5 s with."""

    grace_s: Annotated[float, Field(ge=0)] | None = None


class Retry(Submitted):
    """How often what failed is tried again, by outcome class."""

    infra: Annotated[int, Field(ge=0, le=10)] = 2


class Variant(Submitted):
    """One changed setting of a confirmation."""

    env: Env = {}
    train: dict[str, Any] = {}


class Confirm(Submitted):
    """Reruns before a NO_GO (R15)."""

    on: list[Detector]
    variants: list[Variant] = []


class Limits(Submitted):
    """Limits in time, seconds; null = none."""

    deadline_s: Annotated[float, Field(gt=0)] | None = None
    isolated_limit_s: Annotated[float, Field(ge=300)] | None = None


class CheckpointCadence(Submitted):
    """When a checkpoint is due: whichever comes first; null = not by this."""

    every_steps: Annotated[int, Field(ge=1)] | None = None
    every_s: Annotated[float, Field(gt=0)] | None = None


class Phase(Submitted):
    """A named stage of a plan."""

    name: Name
    steps: Annotated[int, Field(ge=1)]
    data: Annotated[str, Field(pattern=r"^(synthetic|local_text|fineweb_edu|parquet:.+)$")]
    env: Env = {}
    checkpoint: CheckpointCadence = CheckpointCadence()
    approve: Literal["never", "on_conditional", "always"] = "never"
    init_from: str | None = None
    limits: Limits | None = None
    gate: list[Criterion] = []


class Plan(Submitted):
    """A whole plan."""

    v: Literal[1]
    name: Name
    profile: str
    allow_faults: bool = False
    workload: Workload
    train: dict[str, Any]
    watch: Watch = Watch()
    heartbeat: HeartbeatCadence = HeartbeatCadence()
    halt: Halt = Halt()
    retry: Retry = Retry()
    confirm: Confirm | None = None
    remedies: dict[str, dict[str, Any]] = {}
    max_remedies: Annotated[int, Field(ge=0, le=10)] = 0
    allow_drift: list[Literal["git_sha", "torch", "device"]] = []
    limits: Limits = Limits()
    phases: Annotated[list[Phase], Field(min_length=1)]

    @field_validator("profile")
    @classmethod
    def _profile_is_known(cls, name: str) -> str:
        known = hardware_profiles()
        if name not in known:
            raise ValueError(f"expected one of {', '.join(sorted(known))}")
        return name

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [phase.name for phase in self.phases]
        if len(set(names)) != len(names):
            raise ValueError("two phases have the same name")
        if not isinstance(self.train.get("config"), str):
            raise ValueError("train.config: expected the name of a configuration")
        limit = self.watch.alive_lost.suspect_s / 3
        if self.heartbeat.alive_every_s > limit:
            raise ValueError(
                f"heartbeat.alive_every_s: found {self.heartbeat.alive_every_s:g}, expected at most"
                f" {limit:g} (a third of watch.alive_lost.suspect_s)"
            )
        for index, phase in enumerate(self.phases):
            if phase.init_from is not None and phase.init_from not in names[:index]:
                raise ValueError(f"phases.{phase.name}.init_from: expected an earlier phase")
            ids = [criterion.id for criterion in phase.gate]
            if len(set(ids)) != len(ids):
                raise ValueError(f"phases.{phase.name}.gate: two criteria have the same id")
            for criterion in phase.gate:
                _check_condition_places(names, index, phase.name, criterion)
        return self

    def phase(self, name: str) -> Phase:
        """Return the phase called `name`.

        Raises:
            NotFound: there is none.
        """
        for phase in self.phases:
            if phase.name == name:
                return phase
        raise NotFound(f"plan {self.name} has no phase {name}")

    def next_phase(self, name: str) -> Phase | None:
        """Return the phase after `name`, or None after the last."""
        names = [phase.name for phase in self.phases]
        index = names.index(name) + 1
        return self.phases[index] if index < len(names) else None

    def canonical(self) -> dict[str, Any]:
        """Return the JSON form that is stored and digested: what was said, nothing else."""
        return self.model_dump(mode="json", exclude_unset=True)

    def digest(self) -> str:
        """Return the digest of the plan."""
        return digest(self.canonical())


def _check_condition_places(names: list[str], index: int, phase: str, criterion: Criterion) -> None:
    """Refuse a condition whose evidence would come after it is due."""
    where = f"phases.{phase}.gate.{criterion.id}"
    order = [*names, "end"]
    for field in ("evidence_from", "due"):
        value = getattr(criterion, field)
        if value is not None and value not in order[index + 1 :]:
            raise ValueError(f"{where}.{field}: found {value}, expected a later phase")
    if criterion.evidence_from == "end":
        raise ValueError(f"{where}.evidence_from: expected a phase")
    places = [order.index(value) for value in (criterion.evidence_from, criterion.due) if value]
    if len(places) == 2 and places[0] >= places[1]:
        raise ValueError(f"{where}: evidence_from does not come before due")
