"""What does a plan say? Phases, gates and the watchdog's settings, as data.

`parse_plan` reads one, `with_overrides` applies `--set`; both name the path of what is wrong, what
was found and what was expected. The whole training configuration is resolved in `resolve`.
"""

import difflib
from collections.abc import Mapping
from copy import deepcopy
from enum import StrEnum
from importlib import resources
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from gonogo.contract.canonical import digest
from gonogo.contract.errors import NotFound, Problem, Rejected
from gonogo.contract.outcome import Detector
from gonogo.contract.watch import Watch
from gonogo.contract.wire import Submitted
from gonogo.contract.yaml_text import parse_yaml

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
ENV_NAME = r"^(NSA_[A-Z0-9_]+|NCCL_[A-Z0-9_]+|TORCH_NCCL_[A-Z0-9_]+|GLOO_[A-Z0-9_]+|OMP_NUM_THREADS|MKL_NUM_THREADS|CUDA_VISIBLE_DEVICES|PYTORCH_CUDA_ALLOC_CONF|CONFIG|TOKENIZERS_PARALLELISM|HF_HOME|HF_TOKEN)$"  # noqa: E501 - one table of allowed names
Env = dict[Annotated[str, Field(pattern=ENV_NAME)], str]


class Aggregate(StrEnum):
    """How a metric's samples become one number."""

    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    MEDIAN = "median"
    P95 = "p95"
    LAST = "last"
    COUNT = "count"
    SLOPE = "slope"
    ALL_FINITE = "all_finite"


class Metric(StrEnum):
    """What a criterion may look at."""

    STEPS_COMPLETED = "steps_completed"
    LOSS = "loss"
    LOSS_FIRST = "loss_first"
    VAL_LOSS = "val_loss"
    TOKS_PER_S = "toks_per_s"
    DT_STEP_S = "dt_step_s"
    STEP_CV = "step_cv"
    FETCH_SHARE = "fetch_share"
    GPU_MEM_RESERVED_MB = "gpu_mem_reserved_mb"
    GPU_MEM_SLOPE = "gpu_mem_slope_mb_per_step"
    HOST_RSS_MB = "host_rss_mb"
    GPU_UTIL = "gpu_util"
    GPU_UTIL_RATIO = "gpu_util_ratio"
    GRAD_NORM = "grad_norm"
    HEARTBEAT_GAPS = "heartbeat_gaps"
    FORECAST_S = "forecast_s"
    COST = "cost"
    GATE_ENTROPY = "gate_entropy"


DEVICE_METRICS = frozenset(
    {Metric.GPU_MEM_RESERVED_MB, Metric.GPU_MEM_SLOPE, Metric.GPU_UTIL, Metric.GPU_UTIL_RATIO}
)


class GateSeverity(StrEnum):
    """Weight of a criterion in its gate."""

    REQUIRED = "required"
    CONDITIONAL = "conditional"
    ADVISORY = "advisory"


class Grey(StrEnum):
    """What a value between the pass and fail thresholds means."""

    CONDITIONAL = "conditional"
    INCONCLUSIVE = "inconclusive"


BUILT_IN_CRITERIA = ("completed", "identity", "coverage", "preflight", "no_halt_finding")

Bound = float | Literal["profile"] | None


class Criterion(Submitted):
    """A predicate over facts; `pass_*` is inclusive, `fail_*` exclusive."""

    id: Name
    metric: Metric
    aggregate: Aggregate = Aggregate.MEDIAN
    over_ranks: Literal["min", "max", "mean", "sum"] = "min"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    window: Annotated[int, Field(ge=0)] = 0
    """The last so many steps after warm-up; 0 = all."""
    pass_above: Bound = None
    pass_below: Bound = None
    fail_above: float | None = None
    fail_below: float | None = None
    grey: Grey = Grey.INCONCLUSIVE
    min_samples: Annotated[int, Field(ge=1)] = 1
    on_missing: Literal["inconclusive", "error", "fail"] = "inconclusive"
    on_nan: Literal["fail", "error"] = "fail"
    severity: GateSeverity = GateSeverity.REQUIRED
    evidence_from: str | None = None
    due: str | None = None
    on_miss: Literal["no_go", "conditional_go", "inconclusive"] = "no_go"

    @model_validator(mode="after")
    def _thresholds_agree(self) -> Self:
        above = self.pass_above is not None or self.fail_below is not None
        below = self.pass_below is not None or self.fail_above is not None
        if self.aggregate is Aggregate.ALL_FINITE:
            if above or below:
                raise ValueError("all_finite takes no threshold")
        elif above == below:
            raise ValueError(
                "expected pass_above and/or fail_below, or pass_below and/or fail_above"
            )
        if self.id in BUILT_IN_CRITERIA:
            raise ValueError(f"{self.id} is a built-in criterion")
        for low, high in ((self.fail_below, self.pass_above), (self.pass_below, self.fail_above)):
            if isinstance(low, float) and isinstance(high, float) and low > high:
                raise ValueError("the fail threshold lies on the pass side of the pass threshold")
        return self


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


def hardware_profiles() -> dict[str, HardwareProfile]:
    """Return the hardware table (hardware.yaml)."""
    text = resources.files("gonogo.contract").joinpath("hardware.yaml").read_text()
    return {name: HardwareProfile.model_validate(row) for name, row in parse_yaml(text).items()}


def bundled_plan_names() -> list[str]:
    """Return the names of the plans that ship with gonogo."""
    folder = resources.files("gonogo.contract").joinpath("plans")
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    )


def bundled_plan(name: str) -> dict[str, Any]:
    """Return a bundled plan's YAML as data.

    Raises:
        NotFound: no such plan is bundled.
    """
    if name not in bundled_plan_names():
        raise NotFound(f"no plan {name!r}; there are {', '.join(bundled_plan_names())}")
    text = resources.files("gonogo.contract").joinpath("plans", f"{name}.yaml").read_text()
    found: dict[str, Any] = parse_yaml(text)
    return found


def parse_plan(data: Mapping[str, Any]) -> Plan:
    """Return the plan that `data` describes.

    Raises:
        Rejected: every problem with its path, what was found and what was expected.
    """
    try:
        return Plan.model_validate(data)
    except ValidationError as error:
        problems = tuple(_problem(row, data) for row in error.errors(include_url=False))
        first = problems[0]
        where = f"{first.path}: " if first.path else ""
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise Rejected(f"plan: {where}{first.message}{more}", problems=problems) from error


def _problem(row: Any, data: Any) -> Problem:
    """Return one pydantic error as a path (phases by name) and what was found and expected."""
    path = _named_path(row["loc"], data)
    if row["type"] == "extra_forbidden":
        known = _fields_at(row["loc"][:-1])
        close = difflib.get_close_matches(str(row["loc"][-1]), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(known)}"
        return Problem(path=path, message=f"unknown key {row['loc'][-1]!r}; {hint}")
    message = row["msg"].removeprefix("Value error, ")
    if row["type"] == "missing":
        return Problem(path=path, message="missing; expected a value")
    if row["type"] == "value_error":
        return Problem(path=path, message=message)
    return Problem(path=path, message=f"found {row['input']!r}; {message}")


def _named_path(location: tuple[Any, ...], data: Any) -> str:
    parts: list[str] = []
    node = data
    for part in location:
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            node = None
        label = part
        if isinstance(part, int) and isinstance(node, Mapping):
            label = node.get("name") or node.get("id") or part
        parts.append(str(label))
    return ".".join(parts)


def _fields_at(location: tuple[Any, ...]) -> list[str]:
    """Return the known keys of the model at a place in a plan."""
    model: Any = Plan
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        if field is None:
            return []
        model = _model_in(field.annotation)
    return sorted(model.model_fields) if hasattr(model, "model_fields") else []


def _model_in(annotation: Any) -> Any:
    if hasattr(annotation, "model_fields"):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def with_overrides(data: Mapping[str, Any], sets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan data with dotted overrides applied; phases and criteria go by name.

    Args:
        data: a plan as read from YAML.
        sets: dotted path → JSON value, such as `phases.smoke.steps` → 20.

    Raises:
        Rejected: a path that leads through something that is not there.
    """
    result = deepcopy(dict(data))
    problems = []
    for path, value in sets.items():
        problem = _set_at(result, path, value)
        if problem:
            problems.append(Problem(path=path, message=problem))
    if problems:
        raise Rejected(f"set {problems[0].path}: {problems[0].message}", problems=tuple(problems))
    return result


def _set_at(root: dict[str, Any], path: str, value: Any) -> str | None:
    parts = path.split(".")
    node: Any = root
    for part in parts[:-1]:
        if isinstance(node, list):
            named = {row.get("name", row.get("id")): row for row in node if isinstance(row, dict)}
            if part not in named:
                return f"found {part!r}; expected one of {', '.join(map(str, named))}"
            node = named[part]
        elif isinstance(node, dict):
            if node.get(part) is None:
                node[part] = {}
            node = node[part]
        else:
            return f"{part!r} lies inside a value that has no parts"
    if not isinstance(node, dict):
        return "expected a path to a key"
    node[parts[-1]] = value
    return None
