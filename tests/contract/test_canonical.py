"""The one encoder: equal values have equal bytes, on every machine."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.canonical import (
    added,
    canonical_bytes,
    canonical_number,
    rounded,
    wire_line,
    wire_value,
)
from gonogo.contract.errors import Corrupt

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON)
def test_a_wire_line_is_one_line_that_reads_as_the_value(value: Any) -> None:
    line = wire_line(value)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == value


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_what_is_not_finite_has_a_name(value: float, text: str) -> None:
    assert wire_value({"a": [value]}) == {"a": [text]}
    assert canonical_bytes(value) == f'"{text}"'.encode()


@pytest.mark.parametrize("value", [{1, 2}, b"x", object(), 2**53 + 1, 10**400])
def test_what_json_cannot_hold_is_corrupt(value: Any) -> None:
    with pytest.raises(Corrupt):
        canonical_bytes(value)


@given(value=st.floats(allow_nan=False, allow_infinity=False, width=64))
def test_rounding_is_stable_and_near(value: float) -> None:
    once = rounded(value)
    assert rounded(once) == once
    assert once == pytest.approx(value, rel=1e-8)


def test_rounding_leaves_what_is_not_finite() -> None:
    assert math.isnan(rounded(math.nan))
    assert rounded(-math.inf) == -math.inf


@given(value=JSON)
def test_our_encoder_says_what_the_reference_says(value: Any) -> None:
    try:
        expected = rfc8785.dumps(value)
    except rfc8785.FloatDomainError:
        return  # a library's limit: floats beyond 2**53 that are whole
    assert canonical_bytes(value) == expected


# ECMAScript, Number::toString
NUMBERS = [
    (1e20, "100000000000000000000"), (1e21, "1e+21"), (2.0**53, "9007199254740992"),
    (1.5e16, "15000000000000000"), (-1.25e300, "-1.25e+300"), (1e-6, "0.000001"),
    (-1.5e-6, "-0.0000015"), (1e-7, "1e-7"), (2.5e-7, "2.5e-7"), (5e-324, "5e-324"),
    (0.0001, "0.0001"), (0.00001, "0.00001"), (123456789.123, "123456789.123"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), NUMBERS)
def test_numbers_are_printed_as_ecmascript_prints_them(value: float, text: str) -> None:
    assert canonical_number(value) == text


def test_half_a_surrogate_pair_has_no_bytes() -> None:
    with pytest.raises(Corrupt):
        canonical_bytes({"a": "\ud800"})


def test_numbers_add_up_as_they_did_before_sums_made_up_for_rounding() -> None:
    assert added([0.1] * 10) == 0.9999999999999999
    assert added([1e308, 1e308]) == math.inf
    assert added([]) == 0.0
