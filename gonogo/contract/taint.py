"""What counts against a run from the start, because of whose checkpoint it resumes from."""

from enum import StrEnum

from gonogo.contract.wire import Recorded


class TaintKind(StrEnum):
    """Why an earlier run counts against whoever resumes from its checkpoint."""

    UNPASSED = "unpassed"
    """It went to its last step and is not GO."""
    FAILED = "failed"
    """Its lines, or what it measured for its gate, had not passed when it ended."""
    DRIFTED = "drifted"
    """It trained the checkpoint with other code, or on other work, than was ordered."""


class Taint(Recorded):
    """One fact about an earlier run; orders and checkpoints carry it on, and nothing removes it."""

    kind: TaintKind
    experiment: str
    run: str
    step: int
    """Last step that the run was ordered to."""
    found: str | None = None
    """Its verdict; of a run that did not complete, how it ended. None: it has no verdict."""

    def words(self) -> str:
        """Return it as a part of a sentence."""
        who = f"{self.run} of {self.experiment}"
        if self.kind is TaintKind.UNPASSED:
            verdict = "has no verdict" if self.found is None else f"is {self.found}"
            return f"{who} went to its last step, {self.step}, and {verdict}"
        if self.kind is TaintKind.FAILED:
            return f"{who} failed ({self.found})"
        return f"{who} trained the checkpoint, and was not as ordered"


def carried_on(*parts: list[Taint]) -> list[Taint]:
    """Return taints together; each run counts once, by the first that names it."""
    found: dict[tuple[str, str], Taint] = {}
    for part in parts:
        for taint in part:
            found.setdefault((taint.experiment, taint.run), taint)
    return list(found.values())
