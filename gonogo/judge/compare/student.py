"""How many standard errors does an interval reach? Quantiles of Student's t, without scipy.

The distribution is the regularised incomplete beta function (continued fraction by Lentz, as in
Numerical Recipes 6.4); the quantile is found by bisection. Tested against tables to six digits.
"""

import math
from functools import lru_cache

_TINY = 1e-300
_CLOSE = 1e-15
_ROUNDS = 500


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
    """Return the regularised incomplete beta function I_x(a, b) for 0 ≤ x ≤ 1."""
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
