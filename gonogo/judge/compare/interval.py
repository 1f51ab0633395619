"""The interval of the ratio of a variant to the baseline, on the log scale.

Several runs each: runs are the units, because the steps of one run share its host, its caches and
its clock. Runs of the same repeat are paired (Student's t of the differences). Other runs are
compared by Welch's t.

One run each says nothing about the spread between runs. Then blocks of steps are the units, and
the interval is made wider on either side by `ONE_RUN_RATIO`. With a spread of 3 % between runs,
two equal runs differ by more than 10 % in 2.5 % of cases (0.0953 / (0.03 · √2) = 2.25 sigma).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from gonogo.contract.campaign import Basis
from gonogo.judge.compare.paths import ordered_alike
from gonogo.judge.compare.unit import Unit

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
    """Say whether the runs of a variant are worth only one: equal values, or one seed.

    Kernels that round differently each time are no spread of what a model learns.
    """
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
