"""Which JSON stands for a value? Plain numbers and words, and the canonical form under a digest.

The same rules as everywhere in gonogo, written again because a trainer needs nothing else of it:
numbers that are not finite are the strings "NaN", "Infinity", "-Infinity"; a digest is SHA-256 over
the RFC 8785 form.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Return a value as a line can hold it; tensors and NumPy scalars become numbers.

    Example: `plain(torch.tensor(0.5))` is `0.5`, `plain(float("inf"))` is `"Infinity"`.

    Raises:
        TypeError, ValueError: neither a word nor a single number.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else _name(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if callable(item := getattr(value, "item", None)):
        told = item()
        if type(told) is not type(value):  # of a long double it is the same again
            return plain(told)
    try:
        return plain(float(value))
    except TypeError:
        told = f"{value!r:.200} ({type(value).__name__})"
        raise TypeError(f"{told} is neither a word nor a number: give str() of it") from None


def digest(config: Mapping[str, Any]) -> str:
    """Return the lower-case hex SHA-256 of the RFC 8785 form of a configuration.

    Raises:
        TypeError: a value that JSON cannot hold.
    """
    return hashlib.sha256(_canonical(plain(config)).encode()).hexdigest()


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _canonical(value: Any) -> str:
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return f"{{{','.join(f'{_text(name)}:{_canonical(value[name])}' for name in names)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return _number(value)
    return json.dumps(value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """Return a finite float as ECMAScript prints it (RFC 8785, 3.2.2.3)."""
    if value == 0:
        return "0"
    text = repr(value)
    if "e" not in text:
        return text.removesuffix(".0")
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).rstrip("0")
    point = int(exponent) + len(whole)
    if 0 < point <= 21:
        return f"{sign}{digits:0<{point}}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1:+d}"
