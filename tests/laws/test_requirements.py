"""Does every requirement stand in the table once, with files that exist?"""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/requirements.md").read_text()
NUMBERS = chain(range(1, 8), range(10, 19), range(20, 33), range(40, 49), range(60, 64))
REQUIREMENTS = [f"R{number}" for number in chain(NUMBERS, range(70, 83))]
PLACE = re.compile(r"`([a-z]+/[\w./-]*)`")


def rows() -> list[list[str]]:
    """The cells of every requirement's row: number, requirement, where, state."""
    lines = [line for line in PAGE.splitlines() if re.match(r"\|R\d", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_requirement_stands_there_once_and_in_order() -> None:
    assert [row[0] for row in rows()] == REQUIREMENTS
    assert {len(row) for row in rows()} == {4}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_its_files_exist_and_its_state_says_what_lacks(row: list[str]) -> None:
    _, _, where, state = row
    assert [path for path in PLACE.findall(where) if not (ROOT / path).exists()] == []
    assert re.fullmatch(r"yes(; .+)?|(partly|not yet): .+", state)


def test_a_requirement_that_the_code_cites_is_one_of_them() -> None:
    cited: set[str] = set()
    for package in ("gonogo", "service", "worker", "nsa", "tests"):
        for source in (ROOT / package).rglob("*.py"):
            cited.update(re.findall(r"\bR\d{1,2}\b", source.read_text()))
    assert cited <= set(REQUIREMENTS)
