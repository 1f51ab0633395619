"""Places of the ranks when a run was halted, from the evidence of the finding."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from gonogo.contract.errors import Rejected
from gonogo.contract.finding import Finding, Severity
from gonogo.evidence_round import by_relevance, describe_round, is_described, stack_rank
from service.db.schema import RunRow
from service.evidence.artifacts import load_artifact

MAX_FILES = 130
"""The stacks of 128 ranks, and the collectives."""
_MAX_BYTES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A part of a file."""

    name: str
    text: str


def load_stack(session: Session, run: RunRow, findings: Sequence[Finding]) -> Excerpt | None:
    """Return the collectives and the stacks of the first halt; equal stacks are one group.

    The excerpt bears the name of the clearest stack.
    """
    halt = next((row for row in findings if row.severity is Severity.HALT), None)
    if halt is None:
        return None
    wanted = [path for path in by_relevance(halt.evidence, halt.rank) if is_described(path)]
    texts = {path: _load_text(session, run, path) for path in wanted[:MAX_FILES]}
    text = describe_round(texts, halt.rank)
    if not text:
        return None
    telling = [path for path, said in texts.items() if said.strip()]
    stacks = [path for path in telling if stack_rank(path) is not None]
    return Excerpt(name=(stacks or telling)[0], text=text)


def _load_text(session: Session, run: RunRow, path: str) -> str:
    try:
        with load_artifact(session, run, path) as stream:
            return stream.read(_MAX_BYTES).decode(errors="replace")
    except (Rejected, OSError):
        return ""
