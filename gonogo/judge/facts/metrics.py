"""What a criterion can look at: one row per metric, which says where its samples come from.

A new metric is a name in `gonogo.contract.criterion.Metric` and a row here. Another package
provides one by an entry point of the group `gonogo.criteria`: its name is the metric's, its value a
`MetricRow`. Samples are step → value of one rank. A step without a sample is missing, and is not
made up. A number for the whole run stands at the last step. Speeds and step times are computed from
the rank's own clock, never taken from what the trainer reports about itself (R16, R70).
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from itertools import pairwise

from gonogo.contract.canonical import mean_of, rounded
from gonogo.contract.criterion import Aggregate, Criterion, Metric, own_name
from gonogo.contract.errors import Rejected
from gonogo.contract.facts import Measure, MeasureRow
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.contract.heartbeat import Msg
from gonogo.contract.order import Rules
from gonogo.timeline.rank_steps import RankSteps
from gonogo.watch.registry import ERRORS, PLUGINS, failure, load_plugins

Samples = Mapping[int, float]
Source = Callable[[RankSteps, Rules], Samples]
Statistic = Callable[[Sequence[tuple[int, float]], Rules], float]
FEWEST_LINES = 4
"""With fewer lines, the numbers of tokens may rise by chance."""
RISING_SHARE = 0.75
"""Share of the lines of a sum that rise; a sum may restart with each epoch."""


class Owed(StrEnum):
    """Which samples must be there."""

    EVERY_STEP = "every_step"
    EVERY_EVAL = "every_eval"
    ONCE = "once"
    AS_TOLD = "as_told"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """How one metric is measured."""

    samples: Source
    owed: Owed = Owed.EVERY_STEP
    statistic: Statistic | None = None
    """When set, the metric is one number over the window, and the aggregate is ignored."""
    fewest: int = 1
    excused: Callable[[RankSteps, Rules], frozenset[int]] = lambda steps, rules: frozenset()
    """Steps whose samples do not count, and need not be there."""
    unit: str = ""
    meaning: str = ""
    """What the metric is, and which lines report it, for docs/reference/metrics.md."""


def slope(pairs: Sequence[tuple[int, float]]) -> float:
    """Return the least-squares slope of value over step; 0 for one step, NaN on overflow."""
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
    if math.isinf(widest * widest):  # `pstdev` sums squares, which would overflow
        return math.nan
    return statistics.pstdev(values, mean) / mean


def _rest_s(pairs: Sequence[tuple[int, float]], rules: Rules) -> float:
    """Seconds that the phases after this one take at this run's median step (R18)."""
    steps = rules.steps_after or rules.last_step
    return statistics.median(value for _, value in pairs) * steps


def _of_lines(name: str) -> Source:
    """Return a source that reads one field of the progress lines."""
    return lambda steps, rules: steps.samples(name)


def _of_devices(metric: Metric) -> Source:
    """Return a source that reads what the device samples say of each step."""
    return lambda steps, rules: steps.told_by_devices.get(metric.value, {})


def _whole_step_times(steps: RankSteps, rules: Rules) -> Samples:
    """Seconds that a step costs the run: its own, and what usually lies between two steps."""
    between_s = steps.between_steps_s()
    return {step: dt_s + between_s for step, dt_s in steps.mean_step_times().items()}


def _toks_per_s(steps: RankSteps, rules: Rules) -> Samples:
    """Tokens of a step over all ranks, over its seconds; see `may_be_sums`."""
    if may_be_sums(steps, rules):
        return {}
    told, times = steps.steps.tokens_told(), _whole_step_times(steps, rules)
    tokens = {step: rules.tokens_per_step or told.get(step) for step in times}
    return {step: count / times[step] for step, count in tokens.items() if count is not None}


def may_be_sums(steps: RankSteps, rules: Rules) -> bool:
    """Say whether the reported tokens may be those of the whole run or epoch: they rise."""
    if rules.tokens_per_step:
        return False
    told = (list(boot.steps.tokens_told().values()) for boot in steps.boots)
    return any(
        len(row) >= FEWEST_LINES
        and sum(one < other for one, other in pairwise(row)) >= RISING_SHARE * (len(row) - 1)
        for row in told
    )


def _fetch_share(steps: RankSteps, rules: Rules) -> Samples:
    """Share of each step that its rank waited for data."""
    times, fetch_s = steps.steps.step_times(), steps.samples("dt_fetch_s")
    return {step: fetch_s[step] / dt_s for step, dt_s in times.items() if step in fetch_s}


def skipped(steps: RankSteps, rules: Rules) -> frozenset[int]:
    """Steps whose update was skipped; only fp16 excuses that."""
    return steps.steps.skipped() if rules.identity.dtype == "fp16" else frozenset()


def _once(rules: Rules, value: float) -> Samples:
    """A number for the whole run stands at its last step."""
    return {rules.last_step: float(value)}


def _device_hours(steps: RankSteps, rules: Rules) -> Samples:
    """Hours from the first step's start to the last one's end, times ranks; none if resumed."""
    if rules.first_step > 1:
        return {}
    tables = [boot.steps for boot in steps.boots]
    starts = [row.start_mono[at] for row in tables for _, at in row.steps_of(Msg.STEP_START)]
    ends = [row.end_mono[at] for row in tables for _, at in row.steps_of(Msg.STEP_END)]
    if not starts or not ends:
        return {}
    seconds = max(ends) - min(starts)
    return {rules.last_step: seconds / 3600 * len(rules.ranks())}


def _device_memory(steps: RankSteps, rules: Rules) -> Samples:
    """What the lines call reserved; otherwise what the rank's device says is in use."""
    said = steps.samples("gpu_mem_reserved")
    if any(said.values()):
        return said
    return steps.told_by_devices.get(Metric.GPU_MEM_RESERVED_MB.value, {})


METRICS: Mapping[str, MetricRow] = {
    Metric.STEPS_COMPLETED: MetricRow(
        samples=lambda steps, rules: _once(rules, max(steps.last_step, rules.first_step - 1)),
        owed=Owed.ONCE,
        unit="steps",
        meaning="The last step that the rank has ended.",
    ),
    Metric.LOSS: MetricRow(
        samples=_of_lines("loss"),
        meaning="`loss` of the `progress` lines; of several of one step the last one, as of their"
        " other numbers.",
    ),
    Metric.LOSS_FIRST: MetricRow(
        samples=lambda steps, rules: (
            {rules.last_step: steps.samples("loss")[1]} if 1 in steps.samples("loss") else {}
        ),
        owed=Owed.ONCE,
        meaning="`loss` of step 1; an attempt that resumes has none.",
    ),
    Metric.VAL_LOSS: MetricRow(
        samples=lambda steps, rules: steps.evals,
        owed=Owed.EVERY_EVAL,
        meaning="`val_loss` of the `eval` lines; of several of one step the last one. Required are"
        " those that `train.eval.every_steps` of the plan names; where it names none, those that"
        " were reported, and the last one may be of an early step (a window asks for a late one).",
    ),
    Metric.EVAL_S: MetricRow(
        samples=lambda steps, rules: {
            step: line.dt for step, line in steps.evaluations.items() if line.dt is not None
        },
        owed=Owed.EVERY_EVAL,
        unit="s",
        meaning="`dt` of the `eval` lines: how long the evaluation took.",
    ),
    Metric.TOKS_PER_S: MetricRow(
        samples=_toks_per_s,
        unit="tokens/s",
        meaning="The ordered tokens of a step, over all ranks, over the seconds of the step and"
        " the usual time between two steps. Without ordered tokens, `tokens` of the `step_end`"
        " line count, unless they rise with every step, as a sum over the run does. The usual time"
        " is a mean without evaluations, checkpoints and the longest twentieth. What the trainer"
        " reports as its speed never counts.",
    ),
    Metric.DT_STEP_S: MetricRow(
        samples=lambda steps, rules: steps.steps.step_times(),
        unit="s",
        meaning="From the last `step_start` of a step to its `step_end`, by `mono` of the rank; a"
        " step restarts after an evaluation or a checkpoint in it.",
    ),
    Metric.STEP_CV: MetricRow(
        samples=lambda steps, rules: steps.steps.step_times(),
        statistic=_variation,
        fewest=2,
        meaning="Standard deviation of the step times over their mean; of two steps at least.",
    ),
    Metric.FETCH_SHARE: MetricRow(
        samples=_fetch_share,
        meaning="`dt_fetch_s` of the `progress` line over the seconds of the step.",
    ),
    Metric.GPU_MEM_RESERVED_MB: MetricRow(
        samples=_device_memory,
        unit="MB",
        meaning="`gpu_mem_reserved` of the `progress` lines; where they never say, what the"
        " device line says is in use.",
    ),
    Metric.GPU_MEM_SLOPE: MetricRow(
        samples=_device_memory,
        statistic=lambda pairs, rules: slope(pairs),
        fewest=2,
        unit="MB/step",
        meaning="Least-squares slope of the same; of two steps at least.",
    ),
    Metric.GPU_UTIL: MetricRow(
        samples=_of_devices(Metric.GPU_UTIL),
        unit="%",
        meaning="Utilisation of the rank's device during the step, from the device lines.",
    ),
    Metric.GPU_UTIL_RATIO: MetricRow(
        samples=_of_devices(Metric.GPU_UTIL_RATIO),
        meaning="Lowest utilisation of the step over the highest, of all ranks: 1 is balanced.",
    ),
    Metric.GRAD_NORM: MetricRow(
        samples=_of_lines("grad_norm"),
        excused=skipped,
        meaning="`grad_norm` of the `progress` lines; steps that fp16 skipped need none.",
    ),
    Metric.HEARTBEAT_GAPS: MetricRow(
        samples=lambda steps, rules: _once(rules, steps.gaps) if steps.boots else {},
        owed=Owed.ONCE,
        unit="lines",
        meaning="Numbers that `seq` leaves out.",
    ),
    Metric.FORECAST_S: MetricRow(
        samples=_whole_step_times,
        statistic=_rest_s,
        unit="s",
        meaning="Median step time, with what lies between two steps, times the steps of the"
        " phases after this one (in the last phase: its own).",
    ),
    Metric.COST: MetricRow(
        samples=_device_hours,
        owed=Owed.ONCE,
        unit="device-hours",
        meaning="From the first `step_start` to the last `step_end`, times the ranks; an attempt"
        " that resumes has none.",
    ),
    **{
        name: MetricRow(
            samples=_of_lines(name), unit=unit, meaning=f"`{name}` of the `progress` lines{what}."
        )
        for name, unit, what in (
            (Metric.HOST_RSS_MB, "MB", ""),
            (Metric.GATE_ENTROPY, "", ""),
            (Metric.COMM_MB, "MB", ": gradients given to collectives in the step, as on the wire"),
            (Metric.FLASH_SHARE, "", ": dense attention calls that a flash kernel served"),
        )
    },
}


@cache
def _provided() -> tuple[Mapping[str, MetricRow], tuple[str, ...]]:
    """Return the metrics that installed packages provide, and what is wrong with the others."""

    def problem_of(name: str, row: object) -> str | None:
        return None if isinstance(row, MetricRow) else "is no MetricRow"

    return load_plugins(PLUGINS[1], map(str, METRICS), problem_of)


def plugins() -> Mapping[str, MetricRow]:
    """Return the metrics that installed packages provide: name → row.

    Raises:
        Rejected: an entry point that cannot be loaded, is no `MetricRow`, or takes a name that is
            taken.
    """
    found, wrong = _provided()
    if wrong:
        raise Rejected(wrong[0])
    return found


def metric_row(name: str) -> MetricRow | None:
    """Return how a metric is measured; None where no installed package provides it."""
    found, own = METRICS.get(name) or _provided()[0].get(name), own_name(name) or ""
    if found is None and own:
        return MetricRow(samples=lambda steps, rules: steps.own(own), owed=Owed.AS_TOLD)
    return found


def metric_names() -> list[str]:
    """Return every metric that a criterion may look at: ours, other packages', the program's."""
    return [*map(str, METRICS), *plugins(), "user/NAME"]


def absent_text(name: str) -> str:
    """Return the sentence about a metric that nothing here can measure."""
    return f"the metric {name!r} is of a package that is not installed here"


Pairs = Sequence[tuple[int, float]]
"""Finite samples by step, ascending."""


def quantile(values: Sequence[float], q: float) -> float:
    """Return the q-quantile with linear interpolation (q = 0.5: the median)."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    return low if low == high else low + (high - low) * (place - below)


def _over(aggregate: Callable[[list[float]], float], pairs: Pairs) -> float:
    return aggregate([value for _, value in pairs])


AGGREGATES: dict[Aggregate, Callable[[Pairs], float]] = {
    Aggregate.MIN: partial(_over, min),
    Aggregate.MAX: partial(_over, max),
    Aggregate.MEAN: partial(_over, mean_of),
    Aggregate.MEDIAN: partial(_over, partial(quantile, q=0.5)),
    Aggregate.P95: partial(_over, partial(quantile, q=0.95)),
    Aggregate.LAST: lambda pairs: pairs[-1][1],
    Aggregate.COUNT: len,
    Aggregate.SLOPE: slope,
    Aggregate.ALL_FINITE: lambda pairs: 1.0,
}
"""Samples that are not finite are counted separately; `all_finite` needs only that count."""

FULL_COVERAGE = frozenset(
    {Aggregate.MIN, Aggregate.MAX, Aggregate.ALL_FINITE, Aggregate.COUNT, Aggregate.LAST}
)
"""Aggregates that one missing sample could change; the others need 95 %."""

PARTIAL_SHARE = 0.95

MAX_BLOCKS = 64


def needed_share(criterion: Criterion) -> float:
    """Return the share of the required samples below which a criterion is inconclusive."""
    row = metric_row(criterion.metric)
    whole = row is None or row.statistic is None
    return 1.0 if whole and criterion.aggregate in FULL_COVERAGE else PARTIAL_SHARE


def fewest_samples(criterion: Criterion) -> int:
    """Return how many samples say anything: a slope and a spread need two."""
    row = metric_row(criterion.metric)
    if row is not None and row.statistic is not None:
        return row.fewest
    return 2 if criterion.aggregate is Aggregate.SLOPE else 1


def build_measure(
    criterion: Criterion,
    ranks: Mapping[int, RankSteps],
    rules: Rules,
    failures: list[Doubt] | None = None,
) -> Measure:
    """Return what a criterion sees, per rank that wrote anything; without its package, nothing.

    Args:
        failures: receives a doubt where another package's metric raises an error.
    """
    row = metric_row(criterion.metric)
    window = rules.window(criterion)
    said = f"{window.start}..{window.stop - 1}" if window else "none"
    if row is None:
        return Measure(window=said, ranks={})
    try:
        measured = {
            str(rank): _measure_rank(criterion, row, ranks[rank], rules, window)
            for rank in sorted(ranks)
            if rank in rules.ranks()
        }
    except ERRORS as error:
        if criterion.metric in METRICS:
            raise
        name, why = str(criterion.metric), failure(error)
        if failures is not None:
            failures.append(Doubt(kind=DoubtKind.METRIC_MISSING, name=name, found=why))
        measured = {}
    return Measure(window=said, ranks=measured)


def _measure_rank(
    criterion: Criterion, row: MetricRow, steps: RankSteps, rules: Rules, window: range
) -> MeasureRow:
    """Return what the criterion sees on one rank."""
    samples, excused = row.samples(steps, rules), row.excused(steps, rules)
    owed = _owed(row, steps, rules, window, samples)
    if excused:
        owed = frozenset(step for step in owed if step not in excused)
    pairs = sorted((step, value) for step, value in samples.items() if step in owed)
    finite = [(step, value) for step, value in pairs if math.isfinite(value)]
    counted = MeasureRow(samples=len(pairs), owed=len(owed), non_finite=len(pairs) - len(finite))
    if len(finite) < fewest_samples(criterion):
        return counted
    if row.statistic is None:
        value = AGGREGATES[criterion.aggregate](finite)
    else:
        value = row.statistic(finite, rules)
    blocks = block_means([sample for _, sample in finite])
    return counted.model_copy(update={"value": rounded(float(value)), "blocks": blocks})


def block_means(values: Sequence[float]) -> list[float]:
    """Return the means of up to `MAX_BLOCKS` blocks of consecutive samples, of equal size."""
    size = max(1, math.ceil(len(values) / MAX_BLOCKS))
    blocks = (values[first : first + size] for first in range(0, len(values), size))
    return [rounded(mean_of(block)) for block in blocks]


def _owed(
    row: MetricRow, steps: RankSteps, rules: Rules, window: range, samples: Mapping[int, float]
) -> range | frozenset[int]:
    """Return the steps that need a sample; an evaluation counts also where none was due."""
    last = range(rules.last_step, rules.last_step + 1)
    if row.owed is Owed.ONCE:
        return last
    if row.owed is Owed.AS_TOLD:
        return frozenset(step for step in samples if step in window) or last
    if row.owed is Owed.EVERY_EVAL and window:
        told = steps.evaluated_by_any.union(samples)
        return told.intersection(window).union(rules.evals(window)) or last
    return window
