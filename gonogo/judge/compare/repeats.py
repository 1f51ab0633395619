"""How many more repeats would likely decide? From the spread of those that are there, bounded.

"Likely" is four times in five, if the ratio is what it looks like now. A spread that two or three
runs show is itself uncertain: ask again after the next repeats.
"""

import math

from gonogo.contract.comparison import Basis
from gonogo.judge.compare.interval import Interval
from gonogo.judge.compare.student import t_quantile

LIKELY = 0.8


def more_repeats(interval: Interval, log_margin: float, level: float, most: int) -> int | None:
    """Return how many more runs of each would likely decide; None where nobody can know.

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
