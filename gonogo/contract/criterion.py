"""What does a gate ask for? Metrics, how they become one number, and thresholds on it."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gonogo.contract.wire import Name, Submitted


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
    """What a criterion may look at, besides what other packages bring."""

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
    IDENTITY_DRIFT = "identity_drift"


MetricName = Annotated[
    Metric | Annotated[str, Field(min_length=1, max_length=64)],
    Field(union_mode="left_to_right"),
]
"""A metric of ours, or what an installed package calls its own; whether it is there is checked
where a plan is read."""

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

Threshold = Annotated[float, Field(allow_inf_nan=False)]
Bound = Threshold | Literal["profile"] | None


class Criterion(Submitted):
    """A predicate over facts; `pass_*` is inclusive, `fail_*` exclusive."""

    id: Name
    metric: MetricName
    aggregate: Aggregate = Aggregate.MEDIAN
    over_ranks: Literal["min", "max", "mean", "sum"] = "min"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    window: Annotated[int, Field(ge=0)] = 0
    """The last so many steps after warm-up; 0 = all."""
    pass_above: Bound = None
    pass_below: Bound = None
    fail_above: Threshold | None = None
    fail_below: Threshold | None = None
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
        asks_profile = "profile" in (self.pass_above, self.pass_below)
        if asks_profile and self.metric is not Metric.TOKS_PER_S:
            raise ValueError("the profile has a floor for toks_per_s alone")
        if self.id in BUILT_IN_CRITERIA:
            raise ValueError(f"{self.id} is a built-in criterion")
        for low, high in ((self.fail_below, self.pass_above), (self.pass_below, self.fail_above)):
            if isinstance(low, float) and isinstance(high, float) and low > high:
                raise ValueError("the fail threshold lies on the pass side of the pass threshold")
        return self
