"""Do values stand to each other as their workload asks? Relations, as a schema exports them.

`left` is a multiple of, at least, equal to or about (within 2 %) a sum of products of whole numbers
and of values by their dotted paths. A relation about something that is not there holds.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from gonogo.contract.wire import Submitted

TOLERANCE = 0.02


class Relation(Submitted):
    """One relation; it counts where every value in `when` is as it says."""

    left: str
    relation: Literal["multiple_of", "at_least", "equal_to", "about"]
    terms: list[list[int | str]]
    text: str
    when: dict[str, Any] = Field(default_factory=dict)

    def violation(self, values: Mapping[str, Any]) -> str | None:
        """Return what is wrong among values of the right types; None where it holds."""
        if any(_at(values, path) != value for path, value in self.when.items()):
            return None
        left, right = _at(values, self.left), self._right(values)
        if left is None or right is None or self._holds(left, right):
            return None
        counted = f", which is {right}" if self.relation == "about" else ""
        return f"found {left!r}; {self.text}{counted}"

    def _right(self, values: Mapping[str, Any]) -> Any:
        terms = [
            [_at(values, factor) if isinstance(factor, str) else factor for factor in term]
            for term in self.terms
        ]
        if any(factor is None for term in terms for factor in term):
            return None
        if isinstance(terms[0][0], str):
            return terms[0][0]
        return sum(math.prod(term) for term in terms)

    def _holds(self, left: Any, right: Any) -> bool:
        if isinstance(right, str):
            return bool(left == right)
        number, wanted = float(left), float(right)
        if self.relation == "multiple_of":
            return number % wanted == 0
        if self.relation == "at_least":
            return number >= wanted
        if self.relation == "about":
            return abs(number / wanted - 1) <= TOLERANCE
        return number == wanted


def _at(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for part in path.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(part)
    return found
