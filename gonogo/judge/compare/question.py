"""The question of a comparison: a metric, which way is better, and what difference matters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gonogo.contract.criterion import Aggregate, Compared, Criterion, Metric, own_name
from gonogo.contract.errors import Rejected, hint
from gonogo.judge.facts.metrics import metric_names, metric_row

MARGIN = 0.02
CONFIDENCE = 0.95
WARMUP_STEPS = 5
"""Allocator, caches and clocks settle in the first steps; the bundled plans leave out as many."""
ANY_NUMBER = -1e100
MOST_CONFIDENCE = 0.9999
"""Beyond it an interval says nothing any more."""

_HIGHER_IS_BETTER: Mapping[str, bool] = {
    **dict.fromkeys((Metric.TOKS_PER_S, Metric.GPU_UTIL), True),
    **dict.fromkeys((Metric.LOSS, Metric.VAL_LOSS, Metric.EVAL_S, Metric.DT_STEP_S), False),
    **dict.fromkeys((Metric.STEP_CV, Metric.FETCH_SHARE, Metric.GPU_MEM_RESERVED_MB), False),
    **dict.fromkeys((Metric.GPU_MEM_SLOPE, Metric.HOST_RSS_MB, Metric.FORECAST_S), False),
    **dict.fromkeys((Metric.COST, Metric.COMM_MB), False),
}
"""Metrics whose better direction is known; for another one the user has to name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question; build it with `ask`."""

    metric: str
    higher_is_better: bool
    aggregate: Compared = Compared.MEAN
    """How a run's samples become one number."""
    margin: float = MARGIN
    """Ratio beyond which a difference matters, 0 ≤ margin < 1."""
    confidence: float = CONFIDENCE
    """Confidence of all intervals together, 0.5 to MOST_CONFIDENCE."""
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
        """Return criteria that every number passes, by which the judge measures the metrics."""
        row = partial(Criterion, aggregate=Aggregate.ALL_FINITE, warmup_steps=self.warmup_steps)
        best = Aggregate.MAX if self.higher_is_better else Aggregate.MIN
        how = {Compared.LAST: Aggregate.LAST, Compared.BEST: best}.get(self.aggregate)
        asked = {} if how is None else {"aggregate": how, "pass_above": ANY_NUMBER}
        rows = [row(id="compared", metric=self.metric, **asked)]
        for place, name in enumerate(row for row in self.told if row != self.metric):
            rows.append(row(id=f"shown-{place if own_name(name) else name}", metric=name))
        return rows

    @property
    def told(self) -> tuple[str, ...]:
        """Metrics besides the one that is compared."""
        return tuple(dict.fromkeys([*self.shown_by, *self.alike_in]))


def ask(
    metric: str = Metric.TOKS_PER_S,
    *,
    higher_is_better: bool | None = None,
    aggregate: Compared | None = None,
    shown_by: Sequence[str] = (),
    alike_in: Mapping[str, float] | None = None,
    **options: Any,
) -> Question:
    """Return a question that can be answered.

    Args:
        metric: as gates name it.
        higher_is_better: None: what everybody wants of this metric.
        aggregate: None: the last value of a program's own metric, and the mean of another.
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
        aggregate=aggregate or (Compared.LAST if own_name(metric) else Compared.MEAN),
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
