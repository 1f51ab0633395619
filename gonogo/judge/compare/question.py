"""The question of a comparison: a metric, which way is better, and what difference matters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.criterion import Aggregate, Criterion, Metric
from gonogo.contract.errors import Rejected
from gonogo.contract.near_miss import hint
from gonogo.judge.facts.metrics import metric_names, metric_row

MARGIN = 0.02
CONFIDENCE = 0.95
WARMUP_STEPS = 5
"""Allocator, caches and clocks settle in the first steps; the bundled plans leave out as many."""
MOST_CONFIDENCE = 0.9999
"""Beyond it an interval says nothing any more."""

_HIGHER_IS_BETTER: Mapping[str, bool] = {
    Metric.TOKS_PER_S: True,
    Metric.GPU_UTIL: True,
    Metric.LOSS: False,
    Metric.VAL_LOSS: False,
    Metric.EVAL_S: False,
    Metric.DT_STEP_S: False,
    Metric.STEP_CV: False,
    Metric.FETCH_SHARE: False,
    Metric.GPU_MEM_RESERVED_MB: False,
    Metric.GPU_MEM_SLOPE: False,
    Metric.HOST_RSS_MB: False,
    Metric.FORECAST_S: False,
    Metric.COST: False,
    Metric.COMM_MB: False,
}
"""Metrics whose better direction is known; for another one the user has to name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question; build it with `ask`."""

    metric: str
    higher_is_better: bool
    margin: float = MARGIN
    """Ratio beyond which a difference matters, 0 ≤ margin < 1."""
    confidence: float = CONFIDENCE
    """Of all intervals together, 0.5 to MOST_CONFIDENCE."""
    warmup_steps: int = WARMUP_STEPS
    """First steps of each run that are left out."""
    per_device: bool = False
    """Whether a run's value is divided by the number of its ranks."""
    shown_by: tuple[str, ...] = ()
    """Metrics that show that a variant did something else than the baseline."""
    in_campaign: bool = False
    """Whether the runs belong to a campaign. Then every run of a variant must differ in what was
    ordered, and the runs of one repeat must have used one host."""
    alike_in: Mapping[str, float] = field(default_factory=dict)
    """Metrics that show that a variant computed the same → share by which two runs of one repeat
    may differ."""

    def criteria(self) -> list[Criterion]:
        """Return criteria without thresholds, by which the judge measures the metrics."""
        rows = {"compared": self.metric} | {f"shown-{row}": row for row in self.told}
        return [
            Criterion(
                id=name,
                metric=metric,
                aggregate=Aggregate.ALL_FINITE,
                warmup_steps=self.warmup_steps,
            )
            for name, metric in rows.items()
        ]

    @property
    def told(self) -> tuple[str, ...]:
        """Metrics besides the one that is compared."""
        return tuple(dict.fromkeys([*self.shown_by, *self.alike_in]))


def ask(
    metric: str = Metric.TOKS_PER_S,
    *,
    higher_is_better: bool | None = None,
    shown_by: Sequence[str] = (),
    alike_in: Mapping[str, float] | None = None,
    **options: Any,
) -> Question:
    """Return a question that can be answered.

    Args:
        metric: as gates name it.
        higher_is_better: None: what everybody wants of this metric.
        shown_by: metrics in which every variant must differ from the baseline.
        alike_in: metrics in which it must not → share by which runs of one repeat may differ.
        options: other fields of a question.

    Raises:
        Rejected: no such metric; the better direction is unknown; a number out of its range.
    """
    for name in (metric, *shown_by, *(alike_in or {})):
        if metric_row(name) is None:
            raise Rejected(f"there is no metric {name!r}; {hint(name, metric_names())}")
    if higher_is_better is None:
        higher_is_better = _HIGHER_IS_BETTER.get(metric)
    if higher_is_better is None:
        raise Rejected(f"which is better of {metric}? Say lower or higher (--lower, --higher)")
    asked = Question(
        metric=str(metric),
        higher_is_better=higher_is_better,
        shown_by=tuple(map(str, shown_by)),
        alike_in={str(name): share for name, share in (alike_in or {}).items()},
        **options,
    )
    if not 0.0 <= asked.margin < 1.0:
        raise Rejected(f"margin: found {asked.margin:g}; expected 0 to 1 (0.02 is 2 %)")
    if not 0.5 <= asked.confidence <= MOST_CONFIDENCE:
        raise Rejected(
            f"confidence: found {asked.confidence!r};"
            f" expected 0.5 to {MOST_CONFIDENCE} (0.95 is 95 %)"
        )
    if asked.warmup_steps < 0:
        raise Rejected(f"warmup: found {asked.warmup_steps}; expected a number of steps")
    return asked
