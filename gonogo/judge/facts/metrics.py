"""What can a criterion look at? One row per metric: where its samples come from.

A new metric is a name in `gonogo.contract.criterion.Metric` and a row here. Another package brings
one by an entry point of the group `gonogo.criteria`: its name is the metric's, its value a
`MetricRow`. Samples are step → value of one rank; speeds and step times are recomputed from the
rank's own clock, never taken from what the trainer reports about itself (R16, R70).
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from gonogo.contract.criterion import Metric
from gonogo.contract.errors import Rejected
from gonogo.contract.rules import Rules
from gonogo.judge.facts import samples
from gonogo.judge.facts.samples import Samples
from gonogo.judge.facts.steps import RankSteps, Span
from gonogo.watch.mean import mean_of
from gonogo.watch.packages import load_points

Statistic = Callable[[Sequence[tuple[int, float]], Rules], float]


class Owed(StrEnum):
    """Which samples must be there."""

    EVERY_STEP = "every_step"
    EVERY_EVAL = "every_eval"
    ONCE = "once"


class Early(StrEnum):
    """What a metric that is owed once says of a whole run before that has come to its end."""

    NOTHING = "nothing"
    AT_LEAST = "at_least"
    """It only grows."""
    ALL = "all"
    """It is what it will be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """How one metric is measured."""

    samples: Callable[[RankSteps, Rules], Samples]
    owed: Owed = Owed.EVERY_STEP
    early: Early = Early.NOTHING
    """Of one that is owed once."""
    statistic: Statistic | None = None
    """When set, the metric is one number over the window and the criterion's aggregate is moot."""
    excused: Callable[[RankSteps, Rules], frozenset[int]] = lambda steps, rules: frozenset()
    """Steps that rightly have no sample."""
    spans: Callable[[RankSteps, Rules], Mapping[int, Span]] = lambda steps, rules: {}
    """Lowest and highest of the steps of which several numbers were told: the worse one counts."""
    averaged: bool = False
    """Whether each sample holds a mean over the whole run."""
    least: float = -math.inf
    """No sample is below it: what a mean can come to, whatever the steps are that are not there."""
    most: float = math.inf
    """No sample is above it."""
    unit: str = ""
    """Of its samples; empty: a plain number."""
    meaning: str = ""
    """What it is, and which lines say it: a sentence for docs/metric-reference.md."""


def slope(pairs: Sequence[tuple[int, float]]) -> float:
    """Return the least-squares slope of value over step; 0 for fewer than two steps.

    NaN where no double holds what it is made of.
    """
    if len(pairs) < 2:
        return 0.0
    mean_x = math.fsum(x for x, _ in pairs) / len(pairs)
    mean_y = mean_of([y for _, y in pairs])
    try:
        over = math.fsum((x - mean_x) * (y - mean_y) for x, y in pairs)
    except (OverflowError, ValueError):  # the latter of infinities of both signs
        return math.nan
    if not math.isfinite(over):
        return math.nan
    return over / math.fsum((x - mean_x) ** 2 for x, _ in pairs)


def _variation(pairs: Sequence[tuple[int, float]], rules: Rules) -> float:
    values = [value for _, value in pairs]
    mean = mean_of(values)
    widest = max(abs(value - mean) for value in values)
    if math.isinf(widest * widest):  # `pstdev` sums squares, and fails where no double holds one
        return math.nan
    return statistics.pstdev(values, mean) / mean


def _slope(pairs: Sequence[tuple[int, float]], rules: Rules) -> float:
    return slope(pairs)


def _rest_s(pairs: Sequence[tuple[int, float]], rules: Rules) -> float:
    """Seconds that the phases after this one take at this run's median step (R18)."""
    steps = rules.steps_after or rules.last_step
    return statistics.median(value for _, value in pairs) * steps


METRICS: Mapping[str, MetricRow] = {
    Metric.STEPS_COMPLETED: MetricRow(
        samples=samples.steps_completed,
        owed=Owed.ONCE,
        unit="steps",
        meaning="The last step that the rank has ended.",
    ),
    Metric.LOSS: MetricRow(
        samples=samples.of_lines("loss"),
        spans=samples.spans_of("loss"),
        meaning="`loss` of the `progress` lines; of several of one step the worse, as of their"
        " other numbers.",
    ),
    Metric.LOSS_FIRST: MetricRow(
        samples=samples.first_loss,
        spans=samples.first_loss_spans,
        owed=Owed.ONCE,
        early=Early.ALL,
        meaning="`loss` of step 1; an attempt that resumes has none.",
    ),
    Metric.VAL_LOSS: MetricRow(
        samples=samples.evals,
        owed=Owed.EVERY_EVAL,
        spans=samples.eval_spans,
        meaning="`val_loss` of the `eval` lines; of several of one step the worse. Owed are those"
        " that `train.eval.every_steps` of the plan names; where it names none, those that were"
        " told, and the last one may be of an early step (a window asks for a late one).",
    ),
    Metric.EVAL_S: MetricRow(
        samples=samples.eval_s,
        least=0.0,
        owed=Owed.EVERY_EVAL,
        spans=samples.eval_s_spans,
        unit="s",
        meaning="`dt` of the `eval` lines: how long the evaluation took; of several of one step"
        " the worse.",
    ),
    Metric.TOKS_PER_S: MetricRow(
        samples=samples.toks_per_s,
        least=0.0,
        averaged=True,
        unit="tokens/s",
        meaning="The ordered tokens of a step, over all ranks (`tokens` of the line where"
        " the order says none; nothing where those rise with every step, as the tokens of the whole"
        " run, or of each epoch, so far do), over its seconds and what the run spends between two"
        " steps by its way: the mean of those times without evaluations, checkpoints and the"
        " longest twentieth."
        " Never what the trainer reports.",
    ),
    Metric.DT_STEP_S: MetricRow(
        samples=samples.step_times,
        least=0.0,
        unit="s",
        meaning="From `step_start` to `step_end`, by `mono` of the rank; an evaluation or a"
        " checkpoint between them is left out, and what of the step lies before it is not. Steps"
        " that are told of at once, again and again, share the time of all.",
    ),
    Metric.STEP_CV: MetricRow(
        samples=samples.single_step_times,
        statistic=_variation,
        meaning="Standard deviation of the step times over their mean; of two steps at least.",
    ),
    Metric.FETCH_SHARE: MetricRow(
        samples=samples.fetch_share,
        least=0.0,
        spans=samples.fetch_share_spans,
        meaning="`dt_fetch_s` of the `progress` line over the seconds of the step.",
    ),
    Metric.GPU_MEM_RESERVED_MB: MetricRow(
        samples=samples.device_memory,
        least=0.0,
        spans=samples.device_memory_spans,
        unit="MB",
        meaning="`gpu_mem_reserved` of the `progress` lines; where they never say, what the"
        " device line says is in use.",
    ),
    Metric.GPU_MEM_SLOPE: MetricRow(
        samples=samples.device_memory,
        spans=samples.device_memory_spans,
        statistic=_slope,
        unit="MB/step",
        meaning="Least-squares slope of the same; of two steps at least.",
    ),
    Metric.HOST_RSS_MB: MetricRow(
        samples=samples.of_lines("host_rss_mb"),
        least=0.0,
        spans=samples.spans_of("host_rss_mb"),
        unit="MB",
        meaning="`host_rss_mb` of the `progress` lines.",
    ),
    Metric.GPU_UTIL: MetricRow(
        samples=samples.of_devices(Metric.GPU_UTIL),
        least=0.0,
        most=100.0,
        unit="%",
        meaning="Utilisation of the rank's device during the step, from the device lines.",
    ),
    Metric.GPU_UTIL_RATIO: MetricRow(
        samples=samples.of_devices(Metric.GPU_UTIL_RATIO),
        least=0.0,
        most=1.0,
        meaning="Lowest utilisation of the step over the highest, of all ranks: 1 is balanced.",
    ),
    Metric.GRAD_NORM: MetricRow(
        samples=samples.grad_norms,
        least=0.0,
        spans=samples.spans_of("grad_norm"),
        excused=samples.skipped,
        meaning="`grad_norm` of the `progress` lines; steps that fp16 skipped owe none.",
    ),
    Metric.HEARTBEAT_GAPS: MetricRow(
        samples=samples.gaps,
        owed=Owed.ONCE,
        early=Early.AT_LEAST,
        unit="lines",
        meaning="Numbers that `seq` leaves out.",
    ),
    Metric.FORECAST_S: MetricRow(
        samples=samples.whole_step_times,
        statistic=_rest_s,
        unit="s",
        meaning="Median step time, with what lies between two steps, times the steps of the"
        " phases after this one (in the last phase: its own).",
    ),
    Metric.COST: MetricRow(
        samples=samples.device_hours,
        owed=Owed.ONCE,
        early=Early.AT_LEAST,
        unit="device-hours",
        meaning="From the first `step_start` to the last `step_end`, times the ranks; an attempt"
        " that resumes has none.",
    ),
    Metric.GATE_ENTROPY: MetricRow(
        samples=samples.of_lines("gate_entropy"),
        least=0.0,
        spans=samples.spans_of("gate_entropy"),
        meaning="`gate_entropy` of the `progress` lines.",
    ),
    Metric.COMM_MB: MetricRow(
        samples=samples.of_lines("comm_mb"),
        least=0.0,
        spans=samples.spans_of("comm_mb"),
        unit="MB",
        meaning="`comm_mb` of the `progress` lines: gradients that the rank gave to its"
        " collectives in the step, as they go on the wire.",
    ),
    Metric.FLASH_SHARE: MetricRow(
        samples=samples.of_lines("flash_share"),
        least=0.0,
        most=1.0,
        spans=samples.spans_of("flash_share"),
        meaning="`flash_share` of the `progress` lines: dense attention calls that a flash"
        " kernel served.",
    ),
    Metric.IDENTITY_DRIFT: MetricRow(
        samples=samples.drifts,
        owed=Owed.ONCE,
        unit="fields",
        meaning="Fields of `allow_drift` in which the `boot` lines differ from the"
        " experiment's first run.",
    ),
}

PLUGINS = "gonogo.criteria"


@cache
def _brought() -> tuple[Mapping[str, MetricRow], tuple[str, ...]]:
    """Return the metrics that installed packages bring, and what is wrong with the others.

    One that several bring is none of theirs: which of them an order meant nobody knows.
    """
    found: dict[str, MetricRow] = {}
    wrong: list[str] = []
    several: set[str] = set()
    for name, value, row, failed in load_points(PLUGINS):
        if failed is not None:
            wrong.append(f"{value} {failed}")
        elif not isinstance(row, MetricRow):
            wrong.append(f"{value} is no MetricRow")
        elif name in found or name in METRICS:
            wrong.append(f"there is a metric {name!r} already")
            several.add(name)
        else:
            found[name] = row
    found = {name: row for name, row in found.items() if name not in several}
    return found, tuple(f"entry point {PLUGINS}: {text}" for text in wrong)


def plugins() -> Mapping[str, MetricRow]:
    """Return the metrics that installed packages bring: name → row.

    Raises:
        Rejected: an entry point that cannot be loaded, is no `MetricRow`, or takes a name that is
            taken.
    """
    found, wrong = _brought()
    if wrong:
        raise Rejected(wrong[0])
    return found


def metric_row(name: str) -> MetricRow | None:
    """Return how a metric is measured; None where no installed package brings it."""
    return METRICS.get(name) or _brought()[0].get(name)


def metric_names() -> list[str]:
    """Return every metric that a criterion may look at here: ours, then other packages'."""
    return [*map(str, METRICS), *plugins()]


def absent_text(name: str) -> str:
    """Return the sentence about a metric that nothing here can measure."""
    return f"the metric {name!r} is of a package that is not installed here"
