"""What did the guilty rank do when it was halted? The beginning of its stack, from the evidence."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from gonogo.contract.errors import Rejected
from gonogo.contract.finding import Finding, Severity
from service.artifacts import load_artifact
from service.db.schema import RunRow

STACK_LINES = 16
_MAX_BYTES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A part of a file."""

    name: str
    text: str


def load_stack(session: Session, run: RunRow, findings: Sequence[Finding]) -> Excerpt | None:
    """Return the main thread's stack of the rank that the halt finding names, where it is here."""
    halt = next((row for row in findings if row.severity is Severity.HALT), None)
    if halt is None or halt.rank is None:
        return None
    wanted = [path for path in halt.evidence if path.endswith(f"stacks_rank{halt.rank}.txt")]
    for path in wanted:
        text = _load_text(session, run, path)
        if text.strip():
            return Excerpt(name=path, text=first_thread(text))
    return None


def first_thread(stacks: str) -> str:
    """Return the first thread of a stack listing (threads begin at the margin), cut when long."""
    lines = stacks.splitlines()
    ends = [n for n, line in enumerate(lines) if n and line and not line[0].isspace()]
    thread = lines[: ends[0] if ends else len(lines)]
    more = ["    …"] if len(thread) > STACK_LINES else []
    return "\n".join(thread[:STACK_LINES] + more)


def _load_text(session: Session, run: RunRow, path: str) -> str:
    try:
        found = load_artifact(session, run, path)
        if isinstance(found, Path):
            with found.open("rb") as stream:
                found = stream.read(_MAX_BYTES)
    except (Rejected, OSError):
        return ""
    return found[:_MAX_BYTES].decode(errors="replace")
