"""How sure is the ratio of a variant to the baseline? An interval on the log scale.

Several runs each: runs are the units, as steps of one run share its host, its caches and its clock.
Runs of the same repeat are paired (Student's t of the differences); otherwise Welch's t. Of what is
learnt, runs of one seed are one run told again: kernels that round anew each time are no spread.

One run each says nothing of the spread between runs. Then blocks of steps are the units, counted by
how much they really tell (lag-1 autocorrelation), and the interval is made wider on either side by
`ONE_RUN_RATIO`: with a spread of 3 % between runs, the worst of our table in docs/compare.md, two
equal single runs differ by more than 10 % in 2.5 % of cases (0.0953 / (0.03 · √2) = 2.25 sigma).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from gonogo.contract.comparison import Basis
from gonogo.judge.compare.paths import ordered_alike
from gonogo.judge.compare.unit import Unit

ONE_RUN_RATIO = 0.10
"""What two runs of the same thing may differ by, where nobody has repeated any."""
LEAST_BLOCKS = 8
"""Of one run; fewer say nothing of their own spread."""
LIKELY = 0.8
"""Chance of a decision by the repeats that are advised, if the ratio is what it looks like now."""
_TINY = 1e-300
_CLOSE = 1e-15
_ROUNDS = 500
Units = Sequence[Unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The log of a ratio, and how far from it the truth may lie."""

    centre: float
    reach: float | None
    """Half its width; None where nothing is known of the spread."""
    basis: Basis | None
    runs: int = 1
    """Repeats that it rests on, of the variant that has fewer."""
    spread: float | None = None
    """Standard deviation of the difference of one repeat; None with one run each."""


def interval_of(
    baseline: Units, variant: Units, level: float, *, learned: bool = False
) -> Interval | None:
    """Return the interval of variant over baseline, or None where one of them has no run.

    Args:
        baseline: runs of the first variant.
        variant: runs of another one.
        level: confidence of this one interval, 0 < level < 1.
        learned: whether the values are of what the runs learn, which another seed changes.
    """
    if not baseline or not variant:
        return None
    p = 1.0 - (1.0 - level) / 2.0
    pairs = pairs_of(baseline, variant)
    spreads = _spreads(baseline, variant, learned)
    if pairs and spreads:
        return _of_pairs(pairs, p)
    if min(len(baseline), len(variant)) > 1 and spreads:
        return _of_runs(baseline, variant, p)
    return _of_blocks(baseline, variant, p)


def no_spread(units: Units) -> bool:
    """Say whether several runs are the same to the last digit: copies, or one seed again."""
    return len(units) > 1 and len({unit.value for unit in units}) == 1


def pairs_of(baseline: Units, variant: Units) -> list[tuple[Unit, Unit]]:
    """Return the runs of the same repeat, by its number; none if fewer than two match."""
    base, mine = _by_repeat(baseline), _by_repeat(variant)
    found = [(base[number], mine[number]) for number in sorted(base.keys() & mine.keys())]
    return found if len(found) > 1 else []


def _by_repeat(units: Units) -> dict[int, Unit]:
    """Return runs by the number of their repeat; none where one is said twice."""
    found = {unit.repeat: unit for unit in units if unit.repeat is not None}
    return found if len(found) == sum(unit.repeat is not None for unit in units) else {}


def of_one_seed(units: Units) -> bool:
    """Say whether nothing that was ordered tells several runs apart: a seed would."""
    return ordered_alike([unit.ran for unit in units])


def _spreads(baseline: Units, variant: Units, learned: bool) -> bool:
    if learned and (of_one_seed(baseline) or of_one_seed(variant)):
        return False
    return not (no_spread(baseline) and no_spread(variant))


def _logs(units: Units) -> list[float]:
    return sorted(math.log(unit.value) for unit in units)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _of_pairs(pairs: Sequence[tuple[Unit, Unit]], p: float) -> Interval:
    differences = [math.log(mine.value) - math.log(base.value) for base, mine in pairs]
    spread = statistics.stdev(differences)
    error = spread / math.sqrt(len(pairs))
    return Interval(
        centre=_mean(differences),
        reach=t_quantile(p, len(pairs) - 1) * error,
        basis=Basis.PAIRED_RUNS,
        runs=len(pairs),
        spread=spread,
    )


def _of_runs(baseline: Units, variant: Units, p: float) -> Interval:
    base, mine = _logs(baseline), _logs(variant)
    error, df = _welch(
        (statistics.variance(base), len(base) - 1, len(base)),
        (statistics.variance(mine), len(mine) - 1, len(mine)),
    )
    return Interval(
        centre=_mean(mine) - _mean(base),
        reach=t_quantile(p, df) * error if error else 0.0,
        basis=Basis.RUNS,
        runs=min(len(base), len(mine)),
        spread=math.sqrt(statistics.variance(base) + statistics.variance(mine)),
    )


def _welch(*rows: tuple[float, float, float]) -> tuple[float, float]:
    """Return the standard error of a difference and its degrees of freedom (Welch, 1947).

    Args:
        rows: variance, degrees of freedom and number of samples of each mean.
    """
    parts = [variance / count for variance, _, count in rows]
    total = math.fsum(parts)
    if not total:
        return 0.0, math.fsum(df for _, df, _ in rows)
    below = math.fsum(part**2 / row[1] for part, row in zip(parts, rows, strict=True))
    return math.sqrt(total), total**2 / below


def _of_blocks(baseline: Units, variant: Units, p: float) -> Interval:
    """Return the interval where runs say nothing of their spread; at least one has no repeat."""
    centre = _mean(_logs(variant)) - _mean(_logs(baseline))
    base, mine = _series(baseline), _series(variant)
    unknown = Interval(centre=centre, reach=None, basis=None)
    if min(len(base), len(mine)) < LEAST_BLOCKS:
        return unknown
    windows = {unit.window for unit in (*baseline, *variant)}
    if len(windows) == 1 and len(base) == len(mine):
        # block by block: what both runs share (the course of a loss) drops out
        counted = [_counted([b - a for a, b in zip(base, mine, strict=True)])]
    else:
        counted = [_counted(base), _counted(mine)]
    rows = [row for row in counted if row is not None]
    if len(rows) < len(counted):
        return unknown
    error, df = _welch(*rows)
    reach = t_quantile(p, df) * error + math.log1p(ONE_RUN_RATIO)
    return Interval(centre=centre, reach=reach, basis=Basis.BLOCKS)


def _series(units: Units) -> list[float]:
    """Return the logs of a variant's blocks, in order, over its runs; none where they differ."""
    if len({len(unit.blocks) for unit in units}) != 1:
        return []
    rows = [unit.blocks for unit in units]
    if any(value <= 0.0 for row in rows for value in row):
        return []
    return [_mean(sorted(map(math.log, row))) for row in zip(*rows, strict=True)]


def _counted(series: Sequence[float]) -> tuple[float, float, float] | None:
    """Return variance, degrees of freedom and the number of blocks that a series is worth.

    Blocks that follow each other are alike; n of them are worth n (1 - r) / (1 + r), where r is the
    lag-1 autocorrelation, corrected for its bias of about -(1 + 4 r) / n in short series (Kendall,
    1954). A series that is worth fewer than two blocks shows no spread at all: None.
    """
    count, mean = len(series), _mean(series)
    off = [value - mean for value in series]
    total = math.fsum(value * value for value in off)
    if not total:
        return 0.0, count - 1, count
    lagged = math.fsum(a * b for a, b in pairwise(off)) / total
    r = min(max(lagged + (1.0 + 4.0 * lagged) / count, 0.0), 1.0)
    worth = count * (1.0 - r) / (1.0 + r)
    return (total / (count - 1), worth - 1.0, worth) if worth >= 2.0 else None


def more_repeats(interval: Interval, log_margin: float, level: float, most: int) -> int | None:
    """Return how many more runs of each would likely decide; None if nobody can know.

    The spread of two or three runs is itself uncertain: ask again after the next repeats.

    Args:
        interval: that decided nothing.
        log_margin: the margin on the log scale.
        level: confidence of the interval.
        most: runs of each that are ever advised; beyond them the answer is None, too.
    """
    if interval.spread is None:
        return None
    off = abs(interval.centre)
    for total in range(interval.runs + 1, most + 1):
        df = total - 1 if interval.basis is Basis.PAIRED_RUNS else 2 * (total - 1)
        reach = t_quantile(1.0 - (1.0 - level) / 2.0, df) + t_quantile(LIKELY, df)
        reach *= interval.spread / math.sqrt(total)
        if off - reach > log_margin or off + reach < log_margin:
            return total - interval.runs
    return None


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    found = d
    for m in range(1, _ROUNDS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 + term * d
            c = 1.0 + term / c
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = c if abs(c) > _TINY else _TINY
            found *= d * c
        if abs(d * c - 1.0) < _CLOSE:
            break
    return found


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b) for 0 ≤ x ≤ 1.

    By the continued fraction of Lentz, as in Numerical Recipes 6.4.
    """
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(scale + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1.0 - x) / b


def t_tail(t: float, df: float) -> float:
    """Return the probability above `t` ≥ 0 with `df` degrees of freedom."""
    return 0.5 * incomplete_beta(df / 2.0, 0.5, df / (df + t * t))


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """Return t such that a share `p` of Student's t lies below it.

    Args:
        p: 0 < p < 1.
        df: degrees of freedom, above 0; need not be whole.

    Raises:
        ValueError: outside of these ranges.
    """
    if not 0.0 < p < 1.0 or not df > 0.0:
        raise ValueError(f"no quantile for p {p} and {df} degrees of freedom")
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    tail = 1.0 - p
    low, high = 0.0, 1.0
    while t_tail(high, df) > tail:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if t_tail(middle, df) > tail else (low, middle)
    return 0.5 * (low + high)
