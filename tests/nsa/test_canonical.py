"""The digest's bytes are those of RFC 8785, without a package for it."""

import math

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa.config import canonical_bytes

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
    "value",
    [math.nan, math.inf, 2**53 + 1, {1, 2}, object()],
    ids=["nan", "inf", "beyond 2^53", "a set", "an object"],
)
def test_what_json_cannot_hold_has_no_bytes(value):
    with pytest.raises(ValueError):
        canonical_bytes({"x": value})
