"""Criteria of a gate: metrics, how they become one number, and thresholds."""

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
    """Metrics; plug-ins add more."""

    STEPS_COMPLETED = "steps_completed"
    LOSS = "loss"
    LOSS_FIRST = "loss_first"
    VAL_LOSS = "val_loss"
    EVAL_S = "eval_s"
    TOKS_PER_S = "toks_per_s"
    DT_STEP_S = "dt_step_s"
    STEP_CV = "step_cv"
    FETCH_SHARE = "fetch_share"
    GPU_MEM_RESERVED_MB = "gpu_mem_reserved_mb"
    GPU_MEM_SLOPE = "gpu_mem_slope_mb_per_step"
    GPU_UTIL = "gpu_util"
    GPU_UTIL_RATIO = "gpu_util_ratio"
    GRAD_NORM = "grad_norm"
    HEARTBEAT_GAPS = "heartbeat_gaps"
    FORECAST_S = "forecast_s"
    COST = "cost"
    HOST_RSS_MB = "host_rss_mb"
    GATE_ENTROPY = "gate_entropy"
    COMM_MB = "comm_mb"
    FLASH_SHARE = "flash_share"


OWN_PREFIX = "user/"  # Prefix of the program's own metrics: `acc` is `user/acc`.

MetricName = Annotated[
    Metric | Annotated[str, Field(min_length=1, max_length=128)],
    Field(union_mode="left_to_right"),
]
"""A metric of ours, of the program, or of a plug-in."""

DEVICE_METRICS = frozenset(
    {Metric.GPU_MEM_RESERVED_MB, Metric.GPU_MEM_SLOPE, Metric.GPU_UTIL, Metric.GPU_UTIL_RATIO}
)
LEARNED = frozenset({Metric.LOSS, Metric.VAL_LOSS, Metric.GRAD_NORM, Metric.GATE_ENTROPY})
"""Metrics of what a run learns; they depend on the seed."""


def own_name(metric: str) -> str | None:
    """Return the program's name of a metric: `acc` of `user/acc`; None for others."""
    return metric.removeprefix(OWN_PREFIX) or None if metric.startswith(OWN_PREFIX) else None


def is_learned(metric: str) -> bool:
    """Say whether a metric may show what a run learns."""
    return metric in LEARNED or own_name(metric) is not None


class Compared(StrEnum):
    """How a run's samples become the compared number."""

    LAST = "last"
    BEST = "best"  # The largest or the smallest, whichever is better.
    MEAN = "mean"


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
ADDED_CRITERIA = (
    *("identity_drift", "watch_ceiling", "warned"),
    *("reproduced", "remedied", "remedy_carried", "unpassed", "failed_before"),
)
"""Ids that the judge may add to a gate; a plan cannot use them."""

Threshold = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Bound = Threshold | Literal["profile"] | None


class Criterion(Submitted):
    """A predicate over facts; `pass_*` is inclusive, `fail_*` exclusive."""

    id: Name  # Name of the criterion.
    metric: MetricName  # What is measured.
    aggregate: Aggregate = Aggregate.MEDIAN  # How a rank's samples become one number.
    over_ranks: Literal["min", "max", "mean", "sum"] = "min"
    """How the numbers of the ranks become one; by default `max` for an upper bound."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0  # Steps left out at the start of each attempt.
    window: Annotated[int, Field(ge=0)] = 0  # The last so many steps after warm-up; 0 = all.
    pass_above: Bound = None  # It passes at this value and above; `profile`: at the floor.
    pass_below: Bound = None  # It passes at this value and below.
    fail_above: Threshold | None = None  # It fails above this value; null: above `pass_below`.
    fail_below: Threshold | None = None  # It fails below this value; null: below `pass_above`.
    grey: Grey = Grey.INCONCLUSIVE  # Meaning of a value between the pass and the fail threshold.
    min_samples: Annotated[int, Field(ge=1)] = 1  # A rank with fewer samples cannot pass.
    on_missing: Literal["inconclusive", "error", "fail"] = "inconclusive"  # Meaning of no sample.
    on_nan: Literal["fail", "error"] = "fail"
    """Meaning of a sample that is not finite; `all_finite` always fails."""
    severity: GateSeverity = GateSeverity.REQUIRED
    """It must pass, it leaves a condition, or it is shown."""
    evidence_from: str | None = None  # Later phase that can meet its condition; null: the next one.
    due: str | None = None  # Phase before which it must be met, or `end`; null: the one after.
    on_miss: Literal["no_go", "conditional_go", "inconclusive"] = "no_go"
    """Verdict of the experiment if the condition is missed."""

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
        if self.id in (*BUILT_IN_CRITERIA, *ADDED_CRITERIA):
            raise ValueError(f"{self.id} is a built-in criterion; expected another name")
        for low, high in ((self.fail_below, self.pass_above), (self.pass_below, self.fail_above)):
            if isinstance(low, float) and isinstance(high, float) and low > high:
                raise ValueError("the fail threshold lies on the pass side of the pass threshold")
        return self
