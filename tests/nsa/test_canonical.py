"""The digest's bytes are those of RFC 8785, without a package for it."""

import math

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa.canonical import canonical_bytes

_WHOLE = 2**53 - 1
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-_WHOLE, _WHOLE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(VALUES)
def test_the_bytes_are_those_of_the_library(value):
    assert canonical_bytes(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e21, "1e+21"), (1e20, "100000000000000000000"), (123e18, "123000000000000000000"),
        (1e-6, "0.000001"), (1.5e-7, "1.5e-7"), (-0.0, "0"), (0.1, "0.1"), (10000.0, "10000"),
        (1.25, "1.25"), (-5e-324, "-5e-324"), (1.7976931348623157e308, "1.7976931348623157e+308"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_ecmascript_writes_them(number, text):
    assert canonical_bytes(number) == text.encode() == rfc8785.dumps(number)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, 2**53 + 1, {1, 2}, object()],
    ids=["nan", "inf", "beyond 2^53", "a set", "an object"],
)
def test_what_json_cannot_hold_has_no_bytes(value):
    with pytest.raises(ValueError):
        canonical_bytes({"x": value})
