"""Numbers that were computed and written exactly, not rounded or in half precision."""

import math

SMALL = 0.05
"""Below it, few decimals are few digits."""
_HALF_BITS = 11
"""Significant bits of a half-precision number (bfloat16 has fewer)."""
_FEW_DECIMALS = 6


def is_exact(value: float) -> bool:
    """Return whether a number was neither rounded nor computed in half precision, nor is zero."""
    return bool(value) and _is_unrounded(value) and not _fits_half(value)


def _is_unrounded(value: float) -> bool:
    """Return whether a number has over six decimals, and as many digits: `1.05e-05` has three."""
    if round(value, _FEW_DECIMALS) == value:
        return False
    return float(f"{value:.{_FEW_DECIMALS - 1}e}") != value


def _fits_half(value: float) -> bool:
    mantissa, _ = math.frexp(value)
    return math.ldexp(mantissa, _HALF_BITS).is_integer()
