"""What does one run bring to a comparison? One value, its block means, and what it ran.

A run that did not complete, whose records contradict each other, or that does not tell the metric
on every rank is no unit: `build_unit` says why, and never fills in what is missing.
"""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gonogo.contract.canonical import rounded
from gonogo.contract.criterion import LEARNED, Metric
from gonogo.contract.doubt import Effect
from gonogo.contract.facts import Facts, Measure, MeasureRow
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.rules import Rules
from gonogo.judge.compare.paths import Ran, build_ran
from gonogo.judge.compare.question import Question
from gonogo.judge.facts.measure import MAX_BLOCKS, PARTIAL_SHARE
from gonogo.judge.facts.metrics import metric_row
from gonogo.judge.words import sentence
from gonogo.watch.mean import mean_of

SMALLEST, LARGEST = 1e-100, 1e100
"""Of a value that is compared: nothing of a training run lies beyond, and ratios stay finite."""
_WINDOW = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One run that counts."""

    name: str
    """As it was named by who asked."""
    run: str
    """Id and attempt: the same run is never two units."""
    value: float
    """Mean over steps and ranks, in the metric's unit."""
    blocks: tuple[float, ...] = ()
    """Means of blocks of consecutive steps, over the ranks; empty where ranks differ in them."""
    window: str = ""
    samples: int = 0
    repeat: int | None = None
    host: str | None = None
    """Where it ran, as far as who asks knows it."""
    ran: Ran = field(default_factory=Ran)
    shown: Mapping[str, float] = field(default_factory=dict)
    """Means of the other metrics that are asked for, as far as every rank tells them."""

    def as_repeat(self, repeat: int | None) -> "Unit":
        """Return it under the number of its repeat."""
        return replace(self, repeat=repeat)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoUnit:
    """One run that does not count, and why: one sentence."""

    name: str
    why: str
    repeat: int | None = None

    def as_repeat(self, repeat: int | None) -> "NoUnit":
        """Return it under the number of its repeat."""
        return replace(self, repeat=repeat)


def build_unit(
    name: str,
    facts: Facts,
    rules: Rules,
    measures: Mapping[str, Measure],
    question: Question,
    *,
    order: Order | None = None,
    warmed_steps: int | None = None,
) -> Unit | NoUnit:
    """Return what a run brings.

    Args:
        name: as it was named by who asked.
        facts: of the run, as the judge made them.
        rules: by which they were made.
        measures: of the metrics that are asked for, by their names; the facts may hold none.
        question: what is asked.
        order: the run's order, where it is at hand; without it, what was ordered is known by its
            digest alone.
        warmed_steps: steps that the metric's measure has left out already; default: all that are
            asked for. Of the rest, whole blocks are left out.
    """
    measure = measures.get(question.metric)
    why = _unfit(facts, rules) or _began_late(rules, question)
    why = why or _unmeasured(measure, rules, question)
    if why is not None or measure is None:
        return NoUnit(name=name, why=why or "")
    more = 0 if warmed_steps is None else max(0, question.warmup_steps - warmed_steps)
    if more and _is_statistic(question.metric):
        why = f"its recorded facts hold {question.metric} with {more} steps of the warm-up"
        return NoUnit(name=name, why=why)
    rows = [measure.ranks[str(rank)] for rank in rules.ranks()]
    series = [_series(row, more) for row in rows]
    value = _mean(rows, series, question.metric)
    if value is None:
        return NoUnit(name=name, why=_too_short(question))
    if question.per_device:
        value /= len(rows)
    if not SMALLEST <= value <= LARGEST:
        return NoUnit(name=name, why=f"{question.metric} is {value:g}, of which no ratio is made")
    return Unit(
        name=name,
        run=f"{rules.run or facts.ranks['0'].digest}/{rules.attempt or 1}",
        value=rounded(value),
        blocks=_over_ranks([ours.blocks for ours in series]),
        window=_later(measure.window, more, rows[0]),
        samples=min(sum(ours.weights) for ours in series),
        ran=build_ran(facts, rules, order),
        shown={
            metric: rounded(mean)
            for metric in question.told
            if metric in measures and (mean := _shown(measures[metric], rules, metric)) is not None
        },
    )


def _shown(measure: Measure, rules: Rules, metric: str) -> float | None:
    """Return a metric's mean over steps and ranks; None if a rank does not report all of it."""
    rows = [measure.ranks.get(str(rank), MeasureRow()) for rank in rules.ranks()]
    if any(row.non_finite or row.samples < PARTIAL_SHARE * row.owed for row in rows):
        return None
    mean = _mean(rows, [_series(row, 0) for row in rows], metric)
    return mean if mean is not None and abs(mean) <= LARGEST else None


def _unfit(facts: Facts, rules: Rules) -> str | None:
    """Return why a run is no unit, whatever it measured."""
    if facts.outcome is not None and facts.outcome.code is not OutcomeCode.COMPLETED:
        return f"it did not complete: {facts.outcome.code.value}"
    if not rules.known:
        return "there is no order.json, so nobody knows what it ran"
    if facts.outcome is None:
        return "nothing says that it has ended"
    halt = facts.latched()
    if halt is not None:
        return f"it was halted: {halt.detector}"
    doubts = facts.doubts_of(Effect.COVERAGE)
    if doubts:
        return f"its records contradict each other: {sentence(doubts[0])}"
    return _other_tokens(facts, rules)


def _other_tokens(facts: Facts, rules: Rules) -> str | None:
    """Return which rank told of steps of other tokens than were ordered, by which speed goes."""
    ordered = rules.tokens_per_step
    for rank in rules.ranks() if ordered else ():
        row = facts.ranks.get(str(rank))
        for told in row.tokens if row is not None else ():
            if told != ordered:
                return f"rank {rank} told of {told} tokens a step, {ordered} were ordered"
    return None


def _began_late(rules: Rules, question: Question) -> str | None:
    """Return what a campaign's run does not tell of the steps that another run made before it.

    A loss that begins later is lower, whatever the variant.
    """
    names = [name for name in (question.metric, *question.told) if name in LEARNED]
    if not question.in_campaign or rules.first_step == 1 or not names:
        return None
    return f"it went on after step {rules.first_step - 1}, and {names[0]} is compared of all steps"


def _unmeasured(measure: Measure | None, rules: Rules, question: Question) -> str | None:
    """Return what the run does not report; None if every rank reports the metric."""
    name = question.metric
    if rules.steps is None:
        return "nobody said how many steps it owes, so nobody knows that these are all"
    if measure is None:
        return f"its recorded facts hold no {name}, and its run directory is not here"
    if measure.window == "none":
        return _too_short(question)
    for rank in rules.ranks():
        row = measure.ranks.get(str(rank), MeasureRow())
        if row.samples == 0:
            return f"rank {rank} tells no {name}"
        if row.non_finite:
            return f"{row.non_finite} samples of {name} of rank {rank} are not finite"
        if row.samples < PARTIAL_SHARE * row.owed:
            return f"rank {rank} tells {row.samples} of {row.owed} samples of {name}"
        if not row.blocks:
            return "it made several trainings in a row, and none of them is the one to compare"
        if len(row.blocks) != math.ceil(row.samples / _block_steps(row.samples)):
            return f"its {len(row.blocks)} blocks of {name} of rank {rank} are not its samples'"
    return None


def _too_short(question: Question) -> str:
    return f"it has no step after the {question.warmup_steps} of the warm-up"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """One rank's blocks after the warm-up."""

    blocks: tuple[float, ...]
    weights: tuple[int, ...]
    """Samples of each block: all alike but the last."""


def _block_steps(samples: int) -> int:
    """Return how many samples a block has, as `facts.measure.block_means` divides them."""
    return max(1, math.ceil(samples / MAX_BLOCKS))


def _series(row: MeasureRow, more: int) -> _Series:
    """Return a rank's blocks without those that hold any of `more` first steps."""
    size = _block_steps(row.samples)
    weights = [min(size, row.samples - first) for first in range(0, row.samples, size)]
    gone = math.ceil(more / size)
    return _Series(blocks=tuple(row.blocks[gone:]), weights=tuple(weights[gone:]))


def _is_statistic(metric: str) -> bool:
    """Say whether a metric is one number of a run, and no mean over its steps."""
    known = metric_row(metric)
    return known is not None and known.statistic is not None


def _mean(rows: Sequence[MeasureRow], series: Sequence[_Series], metric: str) -> float | None:
    """Return a metric's mean over steps and ranks; None if no step is left after the warm-up.

    Speeds are averaged harmonically, so that a slow block weighs what it cost in time.
    """
    if _is_statistic(metric):
        values = [row.value for row in rows if row.value is not None]
    else:
        values = [_mean_of(ours, metric) for ours in series if ours.blocks]
    return mean_of(values) if len(values) == len(rows) else None


def _mean_of(series: _Series, metric: str) -> float:
    if metric == Metric.TOKS_PER_S and min(series.blocks) > 0.0:
        return statistics.harmonic_mean(series.blocks, weights=series.weights)
    largest = max(map(abs, series.blocks))
    if largest > LARGEST:
        return largest  # no ratio is made of it, and a double may not hold the sum
    return statistics.fmean(series.blocks, weights=series.weights)


def _over_ranks(series: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the mean of each block over the ranks; nothing where they have other blocks."""
    if len({len(blocks) for blocks in series}) != 1:
        return ()
    return tuple(rounded(mean_of(row)) for row in zip(*series, strict=True))


def _later(window: str, more: int, row: MeasureRow) -> str:
    """Return which steps are looked at once whole blocks of the first `more` are left out."""
    found = _WINDOW.fullmatch(window)
    if not more or found is None:
        return window
    size = _block_steps(row.samples)
    return f"{int(found[1]) + math.ceil(more / size) * size}..{found[2]}"


def measure_of(
    facts: Facts, rules: Rules, metric: str, warmup_steps: int
) -> tuple[Measure, int] | None:
    """Return a metric as recorded facts hold it, and the steps that it leaves out as warm-up.

    Of several criteria that look at the metric, the one that leaves out `warmup_steps` counts; else
    the one that looks at the most steps; then the first by its id.
    """
    found: Mapping[str, tuple[Measure, int]] = {
        row.id: (facts.measures[row.id], row.warmup_steps)
        for row in rules.gate
        if row.metric == metric and row.id in facts.measures and not row.window
    }
    if not found:
        return None
    return min(found.items(), key=lambda row: (row[1][1] != warmup_steps, row[1][1], row[0]))[1]
