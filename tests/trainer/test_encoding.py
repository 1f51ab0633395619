"""Values are encoded by the rules of all of gonogo."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract import canonical
from gonogo.trainer.encoding import digest, plain

NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats() | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_the_digest_of_a_configuration_is_the_one_that_an_order_tells(
    config: dict[str, Any],
) -> None:
    assert digest(config) == canonical.digest(config)


@given(st.floats())
def test_a_float_is_a_number_or_its_name(value: float) -> None:
    assert plain(value) == canonical.wire_number(value)


class Scalar:
    """What tensors and NumPy scalars have in common."""

    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Scalar(0.5), 0.5), (Scalar(math.nan), "NaN"),
        ({"a": [Scalar(1.0), (True, None)]}, {"a": [1.0, [True, None]]}),
        ("half a pair: \ud800", "half a pair: ?"), (-math.inf, "-Infinity"),
    ],
    ids=["scalar", "scalar that is not finite", "nested", "no UTF-8", "infinite"],
)  # fmt: skip
def test_what_scripts_pass_becomes_plain(value: object, expected: object) -> None:
    assert plain(value) == expected
    json.dumps(plain(value), allow_nan=False).encode()


def test_what_is_no_number_is_refused_and_named() -> None:
    with pytest.raises(TypeError, match=r"'/data'.*PosixPath.*str\(\)"):
        plain({"lr": 0.1, "data": Path("/data")})
