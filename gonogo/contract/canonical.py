"""The one encoder for the wire and for digests, and sums that are equal everywhere.

Digests are SHA-256 over RFC 8785 JSON. Non-finite numbers are the strings "NaN", "Infinity" and
"-Infinity".
"""

import functools
import hashlib
import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any

import rfc8785

from gonogo.contract.errors import Corrupt

SIGNIFICANT_DIGITS = 9
MAX_INTEGER = 2**53 - 1

_WORDS = {None: "null", True: "true", False: "false"}


def wire_number(value: float) -> float | str:
    """Return a float, or its name if it is not finite."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


_PLAIN = frozenset({type(None), bool, int, str})


def wire_value(value: Any) -> Any:
    """Return a copy of `value` in which every float is JSON-safe, or raise `Corrupt`."""
    if type(value) in _PLAIN or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return wire_number(value)
    if type(value) is dict or isinstance(value, Mapping):
        return {
            str(key): item if type(item) in _PLAIN else wire_value(item)  # most are: no call
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [wire_value(item) for item in value]
    raise Corrupt(f"a {type(value).__name__} has no JSON form")


def canonical_bytes(value: Any) -> bytes:
    """Return the RFC 8785 bytes of a JSON value, or raise `Corrupt`; integers end at 2**53."""
    try:
        return _canonical_text(value).encode()
    except UnicodeEncodeError as error:
        raise Corrupt(f"no canonical form: {error}") from error


def _canonical_text(value: Any) -> str:
    """Return RFC 8785 text, twice as fast as the library."""
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, float):
        return canonical_number(value)
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    if isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise Corrupt("no canonical form: an integer beyond 2**53")
        return str(int(value))
    if isinstance(value, Mapping):
        rows = {str(key): item for key, item in value.items()}
        names = sorted(rows, key=lambda key: key.encode("utf-16-be"))
        return (
            f"{{{','.join([f'{encode_basestring(k)}:{_canonical_text(rows[k])}' for k in names])}}}"
        )
    if isinstance(value, list | tuple):
        return f"[{','.join([_canonical_text(item) for item in value])}]"
    raise Corrupt(f"a {type(value).__name__} has no JSON form")


def canonical_number(value: float) -> str:
    """Return a float as ECMAScript prints it (RFC 8785, 3.2.2.3)."""
    if 1e-4 <= value < 1e16:  # most are, and neither writes an exponent there
        return repr(value).removesuffix(".0")
    if not math.isfinite(value):
        return f'"{wire_number(value)}"'
    return rfc8785.dumps(value).decode()


def digest(value: Any) -> str:
    """Return the hex SHA-256 of the canonical bytes."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def wire_line(value: Any) -> bytes:
    """Return one JSON line, newline included."""
    text = json.dumps(wire_value(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def rounded(value: float, digits: int = SIGNIFICANT_DIGITS) -> float:
    """Return `value` rounded to `digits` significant digits."""
    if value == 0 or not math.isfinite(value):
        return value
    return float(f"{value:.{digits}g}")


def added(values: Iterable[float]) -> float:
    """Return the sum, equal in every Python; the built-in compensates rounding from 3.12 on."""
    return functools.reduce(operator.add, values, 0.0)


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of finite numbers."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        mean = 2.0 * math.fsum(value / len(values) / 2.0 for value in values)
        return max(min(values), min(mean, max(values)))
