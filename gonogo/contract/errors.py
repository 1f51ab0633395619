"""Errors, and hints about unknown words.

`Rejected` is the caller's fault: REST 4xx, exit code 2. `Unavailable` may be retried: REST 503,
exit code 5. `Corrupt` means wrong bytes in a record: exit code 1. A sick run is no exception.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

MOST_PROBLEMS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem of an input, in RFC 9457 `errors` form."""

    path: str
    message: str
    line: int | None = None
    source: str | None = None  # The file or the argument.


class GonogoError(Exception):
    """Something went wrong."""

    code = "error"
    title = "Error"

    def __init__(self, detail: str | None = None, *, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(detail or self.__class__.__doc__ or self.title)
        self.problems = problems

    @property
    def detail(self) -> str:
        """One sentence that says what to do."""
        return str(self.args[0])


class Rejected(GonogoError):
    """The request is not valid."""

    code = "rejected"
    title = "The request is not valid"


class NotFound(Rejected):
    """There is no such thing."""

    code = "not_found"
    title = "Not found"


class NotAllowed(Rejected):
    """The key does not allow this."""

    code = "not_allowed"
    title = "Not allowed"


class Conflict(Rejected):
    """The request does not fit the present state."""

    code = "conflict"
    title = "Conflict"

    def __init__(
        self, detail: str | None = None, *, state: str | None = None, allowed: tuple[str, ...] = ()
    ) -> None:
        super().__init__(detail)
        self.state = state
        self.allowed = allowed


class StaleToken(Conflict):
    """A newer claim owns the run."""

    code = "stale_token"
    title = "The token is stale"

    def __init__(self, detail: str | None = None, *, newer: int) -> None:
        super().__init__(detail)
        self.newer = newer
        """The token that the run has now."""


class NameTaken(Conflict):
    """Another machine works under this name."""

    code = "name_taken"
    title = "The name is taken"


class Unavailable(GonogoError):
    """A part that is needed does not answer; the call may be repeated."""

    code = "unavailable"
    title = "Temporarily unavailable"


class Corrupt(GonogoError):
    """Recorded bytes cannot be read as what they should be."""

    code = "corrupt"
    title = "Corrupt record"


def near(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words that begin with an unknown one, else the one that looks like it."""
    words = sorted(known)
    begun = [row for row in words if word and row.startswith(word)]
    return begun[:3] or get_close_matches(word, words, n=1)


def hint(word: str, known: Iterable[str]) -> str:
    """Return `did you mean X?` if a known word is near, else all of them."""
    words = sorted(known)
    meant = near(word, words)
    if meant:
        return f"did you mean {' or '.join(meant)}?"
    return f"expected one of {', '.join(words)}" if words else "expected nothing here"


def choices(word: str, known: Iterable[str]) -> str:
    """Return all known words if they are few, else a hint."""
    words = sorted(known)
    return hint(word, words) if len(words) > 4 else f"expected one of {', '.join(words)}"
