"""Which plan does PLAN name, and where in it is what is wrong? A bundled one, or a YAML file.

The service answers problems by their paths; here the file is known, so each gets its line, and what
a `--set` said is told as its word.
"""

import errno
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gonogo.contract.errors import NotFound, Problem, Rejected
from gonogo.contract.near_miss import hint, near
from gonogo.contract.yaml_text import Document, parse_document
from gonogo.planning.paths import line_of
from gonogo.planning.source import bundled_campaign_names, bundled_plan, bundled_plan_names


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanArgument:
    """What was typed for a plan, read."""

    name: str
    document: Document | None = None
    """The file as read; None of a bundled plan."""

    @property
    def submitted(self) -> str | dict[str, Any]:
        """What is sent to the service: a bundled plan's name, or a file's data."""
        return self.name if self.document is None else self.data()

    def data(self) -> dict[str, Any]:
        """Return the plan's data."""
        if self.document is None:
            return bundled_plan(self.name)
        found: dict[str, Any] = self.document.data
        return found


def read_plan(plan: str) -> PlanArgument:
    """Return the plan that an argument names.

    Raises:
        NotFound: neither a bundled plan nor a file.
        Rejected: a file that cannot be read, is not YAML (the problem has its line), or no mapping.
    """
    names = [*bundled_plan_names(), *bundled_campaign_names()]
    if plan in names:
        return PlanArgument(name=plan)
    try:
        text = Path(plan).read_bytes()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            message = f"{plan}: neither a plan file nor one of {', '.join(names)}"
            meant = f"; {hint(plan, names)}" if near(plan, names) else ""
            raise NotFound(f"{message}{meant}") from error
        raise Rejected(f"{plan}: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise NotFound(f"{plan!r}: no file has this name") from error
    argument = PlanArgument(name=plan, document=Document(data={}))
    with placed(argument):
        document = parse_document(text)
        if not isinstance(document.data, dict):
            kind = "nothing" if document.data is None else f"a {type(document.data).__name__}"
            message = f"found {kind}; expected a plan (a mapping)"
            raise Rejected(message, problems=(Problem(path="", message=message, line=1),))
    return replace(argument, document=document)


@contextmanager
def placed(plan: PlanArgument, sets: Collection[str] = ()) -> Iterator[None]:
    """Give every problem of what is refused within its place: a line of the file, or `--set`."""
    try:
        yield
    except Rejected as error:
        rows = [_placed(row, plan, sets) for row in error.problems]
        error.problems = tuple(sorted(rows, key=lambda row: row.line or 0))
        raise


def _placed(row: Problem, plan: PlanArgument, sets: Collection[str]) -> Problem:
    if row.source is not None:
        return row
    if any(_covers(path, row.path) for path in sets):
        return replace(row, source="--set")
    if plan.document is None:
        return replace(row, source=plan.name) if row.path else row
    return replace(row, source=plan.name, line=row.line or line_of(plan.document, row.path))


def _covers(said: str, path: str) -> bool:
    """Say whether an override is about a place, or about something in it."""
    return said == path or path.startswith(f"{said}.") or said.startswith(f"{path}.")
