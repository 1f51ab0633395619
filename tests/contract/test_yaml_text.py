"""YAML is read by its version 1.2, and an error has its line."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gonogo.contract.errors import Rejected
from gonogo.contract.yaml_text import parse_document, parse_yaml

CORE = [
    ("", None),
    ("~", None),
    ("null", None),
    ("nul", "nul"),
    ("true", True),
    ("FALSE", False),
    ("tRue", "tRue"),
    ("on", "on"),
    ("no", "no"),
    ("12", 12),
    ("-12", -12),
    ("+12", 12),
    ("010", 10),
    ("0o17", 15),
    ("0x1F", 31),
    ("0b11", "0b11"),
    ("1_000", "1_000"),
    ("1:30", "1:30"),
    ("2001-01-01", "2001-01-01"),
    ("1e-4", 0.0001),
    ("1E5", 100_000.0),
    (".5", 0.5),
    ("5.", 5.0),
    ("-.5e+1", -5.0),
    ("1.0e+3", 1000.0),
    (".", "."),
    ("e5", "e5"),
    ("1e", "1e"),
    (".inf", math.inf),
    ("-.INF", -math.inf),
    ("+.Inf", math.inf),
    (".iNf", ".iNf"),
    ("inf", "inf"),
    ("'12'", "12"),
    ('"true"', "true"),
    ("<<", "<<"),
    ("=", "="),
]


@pytest.mark.parametrize(("text", "value"), CORE, ids=[row[0] for row in CORE])
def test_a_scalar_is_what_the_core_schema_says(text: str, value: Any) -> None:
    found = parse_yaml(f"a: {text}")["a"]
    assert (type(found), found) == (type(value), value)


def test_not_a_number_is_one() -> None:
    assert math.isnan(parse_yaml("a: .nan")["a"])


REFUSED = [
    ("a: 1\nb: 2\na: 3", 3, "second 'a'; the first is in line 1"),
    ("a: 1\n'a': 3", 2, "second 'a'"),
    ("a:\n  b: [1,\n  2", 3, "not YAML"),
    ("a:\n\t- 1", 2, "not YAML"),
    ("a: 1\n1: x", 2, "found the key 1; expected a text"),
    ("true: x", 1, "found the key True"),
    ("? [a]\n: 1", 1, "expected a text"),
    ("a: 1\nb: !!python/object:os.system x", 2, "tag"),
    ("a: !!int 1", 1, "tag"),
    ("a: !!set {x}", 1, "tag"),
    ("a: 1\n---\nb: 2", 2, "another document"),
    ("a: *b", 1, "undefined alias"),
    ("a: &a [*a]", 1, "more than 64 levels"),
    (f"a: {'9' * 5000}", 1, "5000 characters"),
    (b"a: 1\nb: \xff", 2, "no UTF-8"),
    ("[" * 100_000, 1, "more than 64 levels"),
    ("- " * 100_000, 1, "more than 64 levels"),
]


@pytest.mark.parametrize(
    ("text", "line", "said"), REFUSED, ids=[str(row[0])[:30] for row in REFUSED]
)
def test_what_is_ambiguous_or_wrong_is_refused_with_its_line(
    text: str | bytes, line: int, said: str
) -> None:
    with pytest.raises(Rejected, match=f"line {line}: ") as refused:
        parse_yaml(text)
    (problem,) = refused.value.problems
    assert problem.line == line
    assert said in problem.message


def test_text_that_no_encoding_has_is_refused() -> None:
    with pytest.raises(Rejected, match="not YAML"):
        parse_yaml("a: \udcff")


def test_an_alias_is_a_copy() -> None:
    found = parse_yaml("a: &x {k: [1]}\nb: *x\nc: &y 5\nd: *y")
    assert found == {"a": {"k": [1]}, "b": {"k": [1]}, "c": 5, "d": 5}
    found["a"]["k"].append(2)
    assert found["b"] == {"k": [1]}


def test_aliases_of_aliases_do_not_unfold_without_end() -> None:
    rows = ["a0: &a0 [1,1,1,1,1,1,1,1,1,1]"]
    rows += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(Rejected, match="more than 100000 values"):
        parse_yaml("\n".join(rows))


def test_every_key_and_item_has_its_line() -> None:
    text = "a:\n  b: 1\n  c:\n  - x\n  - {d: 2,\n     e: 3}\n"
    document = parse_document(text)
    assert document.data == {"a": {"b": 1, "c": ["x", {"d": 2, "e": 3}]}}
    assert document.lines == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 3,
        ("a", "c", 0): 4,
        ("a", "c", 1): 5,
        ("a", "c", 1, "d"): 5,
        ("a", "c", 1, "e"): 6,
    }


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cc", "Cn", "Cs", "Zl", "Zp"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc.:#- ", max_size=4), inner)
    ),
    max_leaves=12,
)


@given(value=JSON)
@example(value={"a": [1e-4, "1e-4", "~", ""]})
@pytest.mark.filterwarnings("ignore")
def test_json_is_yaml(value: Any) -> None:
    found = parse_yaml(json.dumps(value, ensure_ascii=False))
    assert json.dumps(found) == json.dumps(value)


@given(text=st.text("ab:-[]{}*&!#'\" \n\t?|>~1e.,", max_size=24))
def test_any_text_is_data_or_refused(text: str) -> None:
    try:
        found = parse_document(text)
    except Rejected:
        return
    assert found.data is None or all(line >= 1 for line in found.lines.values())
