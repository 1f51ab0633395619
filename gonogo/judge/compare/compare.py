"""Which variant is better than the baseline? One interval, one answer and one sentence for each.

The margin counts equally in both directions on the log scale (2 % faster, or 1/1.02 as fast), so
swapping baseline and variant mirrors the answer. The best of the better variants wins; a tie keeps
the baseline. Missing evidence is inconclusive and never wins.

Runs are the units, because the steps of one run share its host, its caches and its clock. One run
each says nothing about the spread between runs. Then blocks of steps are the units, and the
interval is wider on either side by `ONE_RUN_RATIO`. With a spread of 3 % between runs, two equal
runs differ by more than 10 % in 2.5 % of cases (0.0953 / (0.03 · √2) = 2.25 sigma).
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from pydantic import JsonValue

from gonogo.contract.campaign import (
    Answer,
    Basis,
    ComparedRun,
    ComparedVariant,
    Comparison,
    DifferingPath,
    PathEvidence,
    Result,
    RunLeftOut,
)
from gonogo.contract.canonical import canonical_bytes, rounded
from gonogo.contract.criterion import is_learned
from gonogo.contract.errors import Rejected
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.judge.compare.unit import NoUnit, Question, Unit, find_paths, ordered_alike

ONE_RUN_RATIO = 0.10
"""By how much two runs of the same thing may differ when nobody has repeated either."""
LEAST_BLOCKS = 8
"""Blocks of one run; fewer do not show their own spread."""
Units = Sequence[Unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The log of a ratio, and how far from it the truth may lie."""

    centre: float
    reach: float | None = None
    """Half of its width; None when the spread is unknown."""
    basis: Basis | None = None


def interval_of(baseline: Units, variant: Units, level: float, *, learned: bool) -> Interval | None:
    """Return the interval of variant over baseline, or None if one of them has no run.

    Args:
        level: confidence of this one interval, 0 < level < 1.
        learned: whether the metric is one that a seed changes, such as a loss.
    """
    if not baseline or not variant:
        return None
    p = 1.0 - (1.0 - level) / 2.0
    if any(is_one_run(units, learned=learned) for units in (baseline, variant)):
        return _of_blocks(baseline, variant, p)
    base, mine = ({unit.repeat: unit for unit in units} for units in (baseline, variant))
    repeats = sorted((base.keys() & mine.keys()) - {None}, key=lambda repeat: repeat or 0)
    if len(repeats) > 1:
        return _of_pairs([(base[repeat].value, mine[repeat].value) for repeat in repeats], p)
    return _of_runs(baseline, variant, p)


def is_one_run(units: Units, *, learned: bool) -> bool:
    """Say whether the runs of a variant are worth only one: equal values, or one seed."""
    if len({unit.value for unit in units}) == 1:
        return True
    return learned and ordered_alike([unit.ran for unit in units])


def _mean_log(units: Units) -> float:
    return statistics.fmean(sorted(math.log(unit.value) for unit in units))


def _of_pairs(pairs: Sequence[tuple[float, float]], p: float) -> Interval:
    differences = [math.log(mine) - math.log(base) for base, mine in pairs]
    error = statistics.stdev(differences) / math.sqrt(len(pairs))
    return Interval(
        centre=statistics.fmean(differences),
        reach=t_quantile(p, len(pairs) - 1) * error,
        basis=Basis.PAIRED_RUNS,
    )


def _of_runs(baseline: Units, variant: Units, p: float) -> Interval:
    """Return the interval of unpaired runs; its degrees of freedom are rounded down (Welch, 1947).

    ν = (Σ s²/n)² / Σ (s²/n)² / (n - 1)
    """
    counts = [len(baseline), len(variant)]
    logs = [sorted(math.log(unit.value) for unit in units) for units in (baseline, variant)]
    parts = [statistics.variance(row) / len(row) for row in logs]
    below = math.fsum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    df = math.fsum(parts) ** 2 / below if below else 1.0
    return Interval(
        centre=statistics.fmean(logs[1]) - statistics.fmean(logs[0]),
        reach=t_quantile(p, int(df + 1e-9)) * math.sqrt(math.fsum(parts)),
        basis=Basis.RUNS,
    )


def _of_blocks(baseline: Units, variant: Units, p: float) -> Interval:
    """Return the interval of one run each, block by block over the same steps.

    Consecutive blocks are alike. n blocks are worth n (1 - r) / (1 + r) independent ones. r is the
    lag-1 autocorrelation, corrected for its bias of about -(1 + 4 r) / n (Kendall, 1954).
    """
    centre = _mean_log(variant) - _mean_log(baseline)
    base, mine = _series(baseline), _series(variant)
    count = len(base)
    same_steps = len({unit.window for unit in (*baseline, *variant)}) == 1
    if not same_steps or count != len(mine) or count < LEAST_BLOCKS:
        return Interval(centre=centre)
    differences = [after - before for before, after in zip(base, mine, strict=True)]
    mean = statistics.fmean(differences)
    off = [value - mean for value in differences]
    total = math.fsum(value * value for value in off)
    lagged = math.fsum(a * b for a, b in pairwise(off)) / total if total else 0.0
    r = min(max(lagged + (1.0 + 4.0 * lagged) / count, 0.0), 1.0)
    worth = count * (1.0 - r) / (1.0 + r)
    if worth < 2.0:
        return Interval(centre=centre)
    error = math.sqrt(total / (count - 1) / worth)
    reach = t_quantile(p, int(worth - 1.0)) * error + math.log1p(ONE_RUN_RATIO)
    return Interval(centre=centre, reach=reach, basis=Basis.BLOCKS)


def _series(units: Units) -> list[float]:
    """Return the mean logs of a variant's blocks over its runs; none if runs differ in them."""
    rows = [unit.blocks for unit in units]
    if len(set(map(len, rows))) != 1 or any(value <= 0.0 for row in rows for value in row):
        return []
    return [statistics.fmean(sorted(map(math.log, row))) for row in zip(*rows, strict=True)]


def t_within(t: float, df: int) -> float:
    """Return the probability that Student's t lies between -t and t.

    The finite sums for whole degrees of freedom: Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(df))
    odd = df % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for k in range(1 + odd, df, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    inside = math.sin(angle) * total
    return (angle + inside) * 2.0 / math.pi if odd else inside


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: int) -> float:
    """Return t such that a share `p` of Student's t lies below it, 0.5 ≤ p < 1 and df ≥ 1."""
    if not 0.5 <= p < 1.0 or df < 1:
        raise ValueError(f"no quantile for p {p} and {df} degrees of freedom")
    low, high = 0.0, 1.0
    while t_within(high, df) < 2.0 * p - 1.0:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if t_within(middle, df) < 2.0 * p - 1.0 else (low, middle)
    return 0.5 * (low + high)


SAME = "the variants ran the same thing"
SHOWN_RATIO = 0.01
"""By how much a metric of `shown_by` must differ at least."""

Variants = Mapping[str, Sequence[Unit | NoUnit]]
Counted = Mapping[str, Sequence[Unit]]


def compare(variants: Variants, question: Question) -> Comparison:
    """Return the comparison of variants, the first of which is the baseline.

    Raises:
        Rejected: fewer than two variants, or a variant without runs.
    """
    if len(variants) < 2:
        raise Rejected("nothing to compare: expected a baseline and at least one more variant")
    for name, asked in variants.items():
        if not asked:
            raise Rejected(f"{name}: no run is named")
    units, left_out = _sorted_out(variants)
    baseline, *others = variants
    # Bonferroni: all intervals together hold with the confidence that was asked for
    level = 1.0 - (1.0 - question.confidence) / len(others)
    rows = [_row(baseline, units[baseline]).model_copy(update={"text": "the baseline"})]
    rows += [_answered(name, units[baseline], units[name], question, level) for name in others]
    result, winner = _result(rows, question)
    paths = _paths(units)
    return Comparison(
        metric=question.metric,
        higher_is_better=question.higher_is_better,
        aggregate=question.aggregate,
        margin=question.margin,
        confidence=question.confidence,
        warmup_steps=question.warmup_steps,
        baseline=baseline,
        variants=rows,
        paths=paths,
        left_out=left_out,
        notes=list(_notes(units, rows, question)),
        result=result,
        winner=winner,
        kept=winner or baseline,
        text=_result_text(rows, winner, question),
    )


def _sorted_out(variants: Variants) -> tuple[Counted, list[RunLeftOut]]:
    """Return the runs that count, each once, and the others."""
    seen: dict[str, str] = {}
    units: dict[str, list[Unit]] = {name: [] for name in variants}
    left_out = []
    for name, rows in variants.items():
        for row in rows:
            if isinstance(row, NoUnit):
                left_out.append(RunLeftOut(variant=name, name=row.name, why=row.why))
            elif row.run in seen:
                why = f"it is the same run as {seen[row.run]}"
                left_out.append(RunLeftOut(variant=name, name=row.name, why=why))
            else:
                seen[row.run] = row.name
                units[name].append(row)
    return units, left_out


def _paths(units: Counted) -> list[DifferingPath]:
    return find_paths({name: [row.ran for row in rows] for name, rows in units.items() if rows})


def _row(name: str, units: Sequence[Unit]) -> ComparedVariant:
    """Return a variant's runs and their geometric mean, without an answer."""
    runs = [
        ComparedRun(
            name=unit.name,
            run=unit.run.partition("/")[0],
            repeat=unit.repeat,
            value=unit.value,
            window=unit.window,
            samples=unit.samples,
            blocks=len(unit.blocks),
        )
        for unit in units
    ]
    logs = sorted(math.log(unit.value) for unit in units)
    return ComparedVariant(
        name=name,
        runs=sorted(runs, key=lambda row: (row.repeat or 0, row.run)),
        value=rounded(math.exp(math.fsum(logs) / len(logs))) if logs else None,
    )


def _answered(
    name: str, baseline: Sequence[Unit], units: Sequence[Unit], question: Question, level: float
) -> ComparedVariant:
    """Return a variant's row with its answer; `level` is the confidence of this one interval."""
    row = _row(name, units).model_copy(update={"answer": Answer.INCONCLUSIVE})
    found = interval_of(baseline, units, level, learned=is_learned(question.metric))
    if found is None:
        missing = "the baseline" if not baseline else name
        return row.model_copy(update={"text": f"{missing} has no run that counts"})
    row = row.model_copy(update={"ratio": rounded(_exp(found.centre))})
    unshown = (
        _same(_paths({"baseline": baseline, "variant": units}), question)
        or _elsewhere(baseline, units, question)
        or _unshown(baseline, units, question)
    )
    if unshown is not None:
        return row.model_copy(update={"text": unshown})
    if found.reach is None:
        words = better_words(_exp(found.centre), question.higher_is_better)
        text = f"{words}; nothing shows how sure that is: repeat both"
        return row.model_copy(update={"text": text})
    answer = _answer(found.centre, found.reach, question)
    return row.model_copy(
        update={
            "low": rounded(_exp(found.centre - found.reach)),
            "high": rounded(_exp(found.centre + found.reach)),
            "basis": found.basis,
            "answer": answer,
            "text": _text(found, answer, question),
        }
    )


def _answer(centre: float, reach: float, question: Question) -> Answer:
    margin = math.log1p(question.margin)
    good = centre if question.higher_is_better else -centre
    if good - reach > margin:
        return Answer.BETTER
    if good + reach < -margin:
        return Answer.WORSE
    return Answer.TIE if abs(good) + reach <= margin else Answer.INCONCLUSIVE


def _exp(value: float) -> float:
    """Return e to a power; infinity beyond what a double holds."""
    return math.exp(value) if value < 700.0 else math.inf


def _same(paths: Sequence[DifferingPath], question: Question) -> str | None:
    """Return why the variant is no other thing than the baseline; None if it is."""
    if any(_counts(path, question) for path in paths):
        return None
    ordered = [row.path for row in paths if row.ordered]
    if ordered:
        return f"{SAME}: what was ordered to differ ({', '.join(ordered)}) did not"
    return f"{SAME}: nothing that was ordered differs" if paths else SAME


def _counts(path: DifferingPath, question: Question) -> bool:
    """Say whether a difference makes the variant another thing than the baseline.

    In a campaign only what was ordered counts, and only if it differs in every run.
    """
    if path.evidence is PathEvidence.DENIED or not question.in_campaign:
        return path.evidence is not PathEvidence.DENIED
    base, mine = ({canonical_bytes(value) for value in row} for row in path.values.values())
    return path.ordered and not base & mine


def _elsewhere(baseline: Sequence[Unit], units: Sequence[Unit], question: Question) -> str | None:
    """Return which runs of one repeat used two hosts; None if none did."""
    hosts = {unit.repeat: unit.host for unit in baseline} if question.in_campaign else {}
    for unit in units:
        there = hosts.get(unit.repeat)
        if None not in (there, unit.host) and there != unit.host:
            return (
                f"its run of repeat {unit.repeat} was made on host {unit.host}, the baseline's on"
                f" {there}: hosts are no variants"
            )
    return None


def _unshown(baseline: Sequence[Unit], units: Sequence[Unit], question: Question) -> str | None:
    """Return why its metrics do not show what was asked: another computation, or the same one."""
    asked = [(metric, SHOWN_RATIO, True) for metric in question.shown_by]
    asked += [(metric, share, False) for metric, share in question.alike_in.items()]
    for metric, share, must_differ in asked:
        told = {unit.repeat: unit.shown.get(metric) for unit in baseline}
        for unit in units:
            base, mine = told.get(unit.repeat), unit.shown.get(metric)
            if base is None or mine is None:
                return f"nothing shows what it computed: not every run reports {metric}"
            alike = abs(base - mine) <= share * max(abs(base), abs(mine))
            if alike and must_differ:
                return f"{SAME}: {metric} is {mine:.4g} as in the baseline"
            if not alike and not must_differ:
                return (
                    f"it computed something else: {metric} is {mine:.6g} against {base:.6g} of"
                    f" the baseline, and may differ by {percent(share)}"
                )
    return None


def _text(found: Interval, answer: Answer, question: Question) -> str:
    words = better_words(_exp(found.centre), question.higher_is_better)
    margin = percent(question.margin)
    if answer is Answer.TIE:
        return f"within {margin} of the baseline"
    if answer is not Answer.INCONCLUSIVE:
        return f"{words}, and beyond {margin} for sure"
    if found.basis is Basis.BLOCKS:
        return f"{words}, which a single run cannot show; repeat both"
    return f"{words}, and that is not sure: repeat both"


def percent(share: float) -> str:
    """Return a share as people write it: `2 %`, `0.5 %`."""
    return f"{100.0 * share:.3g} %"


def better_words(ratio: float, higher_is_better: bool) -> str:
    """Return a ratio in words: `4.2 % higher (better)`."""
    off = abs(ratio - 1.0)
    if off < 0.00005:
        return "equal"
    way = "higher" if ratio > 1.0 else "lower"
    good = (ratio > 1.0) is higher_is_better
    return f"{100.0 * off:.3g} % {way} ({'better' if good else 'worse'})"


def _result(rows: Sequence[ComparedVariant], question: Question) -> tuple[Result, str | None]:
    """Return the result, and who won."""
    better = [row for row in rows if row.answer is Answer.BETTER]
    if better:
        sign = 1.0 if question.higher_is_better else -1.0
        best = max(better, key=lambda row: sign * (row.ratio or 0.0))
        return Result.WINNER, best.name
    answers = {row.answer for row in rows[1:]}
    if Answer.INCONCLUSIVE in answers:
        return Result.INCONCLUSIVE, None
    return (Result.TIE, None) if Answer.TIE in answers else (Result.WINNER, rows[0].name)


def _notes(units: Counted, rows: Sequence[ComparedVariant], question: Question) -> Iterator[Doubt]:
    """Yield what weakens a comparison, or is easily overlooked in it."""
    if any(row.basis is Basis.BLOCKS for row in rows):
        yield Doubt(kind=DoubtKind.SINGLE_RUN)
    for name, mine in units.items():
        if len(mine) > 1 and is_one_run(mine, learned=is_learned(question.metric)):
            yield Doubt(kind=DoubtKind.RUNS_ALIKE, name=name)
    windows: list[JsonValue] = [*sorted({row.window for mine in units.values() for row in mine})]
    if len(windows) > 1:
        yield Doubt(kind=DoubtKind.STEPS_DIFFER, found=windows)


def _result_text(rows: Sequence[ComparedVariant], winner: str | None, question: Question) -> str:
    """Return the result in one sentence, and what to continue with."""
    baseline, *others = rows
    if winner == baseline.name:
        named = others[0].name if len(others) == 1 else "every other variant"
        return f"{baseline.name} wins: by {question.metric} {named} is worse than the baseline"
    if winner is not None:
        (best,) = (row for row in others if row.name == winner)
        text = f"{winner} wins: {question.metric} is {_beside(best, question)} {baseline.name}"
        also = [row.name for row in others if row.answer is Answer.BETTER and row is not best]
        if also:
            text += f"; {' and '.join(also)} beat the baseline too, and may be as good"
        return text
    still = [row for row in others if row.answer is Answer.INCONCLUSIVE]
    if not still:
        return (
            f"a tie: no variant is better by more than {percent(question.margin)};"
            f" {baseline.name} stays"
        )
    why = "; ".join(row.text if len(others) == 1 else f"{row.name}: {row.text}" for row in still)
    return f"inconclusive: {why}; {baseline.name} stays until more is known"


def _beside(row: ComparedVariant, question: Question) -> str:
    words = better_words(row.ratio or 1.0, question.higher_is_better).partition(" (")[0]
    return f"{words} (ratio {row.low:.3f} to {row.high:.3f}) than that of"
