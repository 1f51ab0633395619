"""The RFC 8785 (JCS) bytes of a JSON value, as a digest needs them.

Our own, so that the trainer needs Python, PyTorch, numpy and PyYAML alone.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

# ECMAScript writes numbers from 1e-6 below 1e21 without an exponent.
_LEAST_PLAIN, _LEAST_WITH_EXPONENT = 1e-6, 1e21


def canonical_bytes(value: Any) -> bytes:
    """The RFC 8785 bytes of a JSON value.

    Raises:
        ValueError: something that JSON has no form for.
    """
    return _text(value).encode()


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, Mapping):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{_text(name)}:{_text(value[name])}" for name in names) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(_text, value)) + "]"
    raise ValueError(f"a {type(value).__name__} has no JSON form")


def _number(value: float) -> str:
    if isinstance(value, int):
        if float(value) != value:
            raise ValueError(f"no double holds {value}")
        value = float(value)
    if not math.isfinite(value):
        raise ValueError(f"JSON has no {value}")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    point = len(whole) + int(exponent or 0)  # digits before the decimal point
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    if not _LEAST_PLAIN <= abs(value) < _LEAST_WITH_EXPONENT:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{rest}e{point - 1:+d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    return f"{sign}{digits[:point]}.{digits[point:]}"
