"""Which bytes stand for a value? The one encoder for the wire and for digests.

Digests are SHA-256 over RFC 8785 JSON (JCS). JSON has no non-finite numbers, so these become the
strings "NaN", "Infinity" and "-Infinity" first, on the wire as well as under a digest.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import rfc8785

from gonogo.contract.errors import Corrupt

SIGNIFICANT_DIGITS = 9


def wire_number(value: float) -> float | str:
    """Return a JSON-safe form of a float: itself, or its name when it is not finite."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def wire_value(value: Any) -> Any:
    """Return `value` with every float in it JSON-safe; mappings and sequences are copied.

    Raises:
        Corrupt: a value that JSON cannot hold.
    """
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return wire_number(value)
    if isinstance(value, Mapping):
        return {str(key): wire_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [wire_value(item) for item in value]
    raise Corrupt(f"a {type(value).__name__} has no JSON form")


def canonical_bytes(value: Any) -> bytes:
    """Return the RFC 8785 bytes of a JSON value.

    Raises:
        Corrupt: a value that JSON cannot hold (an integer beyond 2**53 - 1 included).
    """
    try:
        return rfc8785.dumps(wire_value(value))
    except rfc8785.CanonicalizationError as error:
        raise Corrupt(f"no canonical form: {error}") from error


def digest(value: Any) -> str:
    """Return the lower-case hex SHA-256 of the canonical bytes of `value`."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def wire_line(value: Any) -> bytes:
    """Return one JSON line (with its newline) in the order of the keys given."""
    text = json.dumps(wire_value(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def rounded(value: float, digits: int = SIGNIFICANT_DIGITS) -> float:
    """Return `value` rounded to `digits` significant digits, so that facts are equal anywhere."""
    if value == 0 or not math.isfinite(value):
        return value
    return float(f"{value:.{digits}g}")
