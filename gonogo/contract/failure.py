"""What is a known failure? Its name, the text by which it is recognised, its cause and its remedy.

A plan adds rows with `failures`. The rows travel in the order and are tried before the library
(`gonogo/judge/failures.yaml`).
"""

import re
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from gonogo.contract.wire import Submitted

MOST_REPEATS = 2
"""Long repeats in one pattern. A line of 600 characters takes at most 0.8 s to search with two of
them, and 11 s with three (measured)."""

_LITERAL = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_UNBOUNDED = re.compile(r"[*+]|\{\d*,(?:\d{2,})?\}")
_GROUP_REPEATED = re.compile(r"\)(?:[*+]|\{)")


def bounded_pattern(text: str) -> str:
    """Return a regular expression whose search takes a bounded time.

    Raises:
        ValueError: it is malformed, repeats a group, or has more than `MOST_REPEATS` long repeats:
            `*`, `+`, or `{0,10}` and longer.
    """
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{text[:80]!r} is no regular expression: {error}") from error
    plain = _LITERAL.sub("x", text)
    if _GROUP_REPEATED.search(plain):
        raise ValueError(f"{text[:80]!r} repeats a group: the search could take too long")
    if len(_UNBOUNDED.findall(plain)) > MOST_REPEATS:
        raise ValueError(f"{text[:80]!r} has too many long repeats; at most {MOST_REPEATS}")
    return text


Pattern = Annotated[str, Field(min_length=3, max_length=400), AfterValidator(bounded_pattern)]
FailureName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{1,63}$")]


class FailureRow(Submitted):
    """A failure that gonogo recognises by the text of the error."""

    name: FailureName
    """What the failure is called: the `diagnosis` of a decision, and a key of `remedies`."""
    pattern: Pattern
    """Regular expression that is searched in each line of the error, without regard to case; no
    repeated groups, at most two of `*` and `+`."""
    cause: Annotated[str, Field(min_length=1, max_length=400)]
    """Why such a run fails."""
    remedy: Annotated[str, Field(min_length=1, max_length=600)]
    """What to do or to type."""


class RecordedFailure(FailureRow):
    """A row of a plan as an order holds it: what is unknown today is ignored."""

    model_config = ConfigDict(extra="ignore")
