"""What one run contributes to a comparison: one value, its block means, and what it ran.

A run that does not report the metric on every rank does not count. `build_unit` then returns the
reason and never fills in a value.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gonogo.contract.canonical import mean_of, rounded
from gonogo.contract.criterion import Aggregate, Compared, Criterion, Metric, is_learned
from gonogo.contract.facts import Facts, Measure, MeasureRow
from gonogo.contract.order import Order, Rules
from gonogo.judge.compare.paths import Ran, build_ran
from gonogo.judge.compare.question import Question
from gonogo.judge.facts.measure import PARTIAL_SHARE
from gonogo.judge.facts.metrics import metric_row

SMALLEST, LARGEST = 1e-100, 1e100
"""Bounds of a value that is compared; ratios of values between them stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One run that counts."""

    name: str
    """As the user named it."""
    run: str
    """Id and attempt: the same run is never two units."""
    value: float
    """Mean over blocks and ranks, in the metric's unit."""
    blocks: tuple[float, ...] = ()
    """Means of blocks of consecutive steps, over the ranks; empty if ranks differ in their number.
    """
    window: str = ""
    samples: int = 0
    repeat: int | None = None
    host: str | None = None
    """Host on which it ran, if known."""
    ran: Ran = field(default_factory=Ran)
    shown: Mapping[str, float] = field(default_factory=dict)
    """Means of the metrics of `shown_by` and `alike_in` that every rank reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoUnit:
    """One run that does not count."""

    name: str
    why: str
    """One sentence."""
    repeat: int | None = None


def build_unit(
    name: str,
    facts: Facts,
    rules: Rules,
    measures: Mapping[str, Measure],
    question: Question,
    *,
    order: Order | None = None,
) -> Unit | NoUnit:
    """Return what a run contributes."""
    measure = measures.get(question.metric)
    why = _began_late(rules, question) or _lack(question.metric, measure, rules, question)
    if why is not None or measure is None:
        return NoUnit(name=name, why=why or "")
    rows = [measure.ranks[str(rank)] for rank in rules.ranks()]
    value = _mean(question.metric, rows, question.aggregate)
    if question.per_device:
        value /= len(rows)
    if not SMALLEST <= value <= LARGEST:
        return NoUnit(name=name, why=f"{question.metric} is {value:g}, of which no ratio is made")
    alike = question.aggregate is Compared.MEAN and len({len(row.blocks) for row in rows}) == 1
    blocks = zip(*(row.blocks for row in rows), strict=True) if alike else ()
    return Unit(
        name=name,
        run=f"{rules.run or facts.ranks['0'].digest}/{rules.attempt or 1}",
        value=rounded(value),
        blocks=tuple(rounded(mean_of(row)) for row in blocks),
        window=measure.window,
        samples=min(row.samples for row in rows),
        ran=build_ran(facts, rules, order),
        shown={
            metric: rounded(_mean(metric, [found.ranks[str(rank)] for rank in rules.ranks()]))
            for metric in question.told
            if (found := measures.get(metric)) and _lack(metric, found, rules, question) is None
        },
    )


def measure_of(facts: Facts, rules: Rules, asked: Criterion) -> Measure | None:
    """Return a metric as recorded facts hold it after just this warm-up; None if they do not."""
    found = sorted(
        row.id
        for row in rules.gate
        if (row.metric, row.warmup_steps, row.window) == (asked.metric, asked.warmup_steps, 0)
        and asked.aggregate in (Aggregate.ALL_FINITE, row.aggregate)
        and row.id in facts.measures
    )
    return facts.measures[found[0]] if found else None


def _began_late(rules: Rules, question: Question) -> str | None:
    """Return why a resumed run of a campaign does not count: a loss that begins later is lower."""
    names = [name for name in (question.metric, *question.told) if is_learned(name)]
    if not question.in_campaign or rules.first_step == 1 or not names:
        return None
    return f"it resumed after step {rules.first_step - 1}, and {names[0]} is compared of all steps"


def _lack(name: str, measure: Measure | None, rules: Rules, question: Question) -> str | None:
    """Return what the run does not report of a metric; None if every rank reports it."""
    warmup = question.warmup_steps
    if measure is None:
        return (
            f"its facts do not hold {name} after {warmup} steps of warm-up, and its run directory"
            " is not here"
        )
    if measure.window == "none":
        return f"it has no step after the {warmup} of the warm-up"
    for rank in rules.ranks():
        row = measure.ranks.get(str(rank), MeasureRow())
        if row.samples == 0:
            return f"rank {rank} reports no {name}"
        if row.non_finite:
            return f"{row.non_finite} samples of {name} of rank {rank} are not finite"
        if row.samples < PARTIAL_SHARE * row.owed or not row.blocks:
            return f"rank {rank} reports {row.samples} of {row.owed} samples of {name}"
    return None


def _mean(metric: str, rows: Sequence[MeasureRow], how: Compared = Compared.MEAN) -> float:
    """Return a metric's mean over blocks and ranks; one number of the whole run has no blocks.

    Speeds are averaged harmonically, so a slow block has the weight of its time.
    """
    known = metric_row(metric)
    if how is not Compared.MEAN or (known is not None and known.statistic is not None):
        return mean_of([row.value for row in rows if row.value is not None])
    if metric == Metric.TOKS_PER_S and min(min(row.blocks) for row in rows) > 0.0:
        return mean_of([statistics.harmonic_mean(row.blocks) for row in rows])
    return mean_of([mean_of(row.blocks) for row in rows])
