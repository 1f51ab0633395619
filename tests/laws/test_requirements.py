"""Does every requirement stand in the table once, with tests that exist?"""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/requirements.md").read_text()
NUMBERS = chain(range(1, 8), range(10, 19), range(20, 33), range(40, 49), range(60, 64))
REQUIREMENTS = [f"R{number}" for number in chain(NUMBERS, range(70, 83))]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[list[str]]:
    """The cells of every requirement's row: number, requirement, where, shown by, state."""
    lines = [line for line in PAGE.splitlines() if re.match(r"\|R\d", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names of the test functions of a file."""
    found = ast.walk(ast.parse(path.read_text()))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = (node.name for node in found if isinstance(node, kinds))
    return frozenset(name for name in names if name.startswith("test_"))


def test_every_requirement_stands_there_once_and_in_order() -> None:
    assert [row[0] for row in rows()] == REQUIREMENTS
    assert {len(row) for row in rows()} == {5}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_test_that_is_named_exists(row: list[str]) -> None:
    _, _, _, shown_by, _ = row
    for path, name in TEST.findall(shown_by):
        assert (ROOT / path).is_file(), path
        assert name in names_in(ROOT / path), (path, name)
    assert TEST.sub("", shown_by).strip(", –") == "", "nothing but tests stands there"


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_state_is_one_of_three_and_says_what_lacks(row: list[str]) -> None:
    _, _, _, shown_by, state = row
    word = re.split(r"[:;]", state)[0]
    assert word in ("yes", "partly", "not yet")
    if word == "yes":
        assert TEST.search(shown_by)
    if word == "partly":
        assert state.removeprefix("partly").strip(": "), "what lacks is not said"
    assert (word == "not yet") is not bool(TEST.search(shown_by))


def test_a_requirement_that_the_code_cites_is_one_of_them() -> None:
    cited: set[str] = set()
    for package in ("gonogo", "service", "worker", "nsa", "tests"):
        for source in (ROOT / package).rglob("*.py"):
            cited.update(re.findall(r"\bR\d{1,2}\b", source.read_text()))
    assert cited <= set(REQUIREMENTS)
