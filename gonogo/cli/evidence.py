"""What does the evidence of a halt say, on a terminal? The collectives, and each group of stacks.

From a run directory (`gonogo judge`) or from the control plane (`gonogo show`); the words are those
of the report and the pages. Evidence that is not there, or cannot be read, has nothing to say.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gonogo.cli.client import Client
from gonogo.contract.errors import GonogoError
from gonogo.evidence_round import is_described, summarise_round
from gonogo.rundir import RunDir

MAX_FILES = 130
"""The stacks of 128 ranks, and the collectives."""
MAX_BYTES = 2**16


def describe_directory(directory: Path, findings: Iterable[dict[str, Any]]) -> list[str]:
    """Return what the last round of evidence in a run directory says, a line for each group."""
    run_dir = RunDir(directory)
    rounds = sorted(path for path in run_dir.evidence.glob("[0-9]*_*") if path.is_dir())
    if not rounds:
        return []
    texts = {}
    try:
        told = sorted(path for path in rounds[-1].iterdir() if is_described(path.name))
    except OSError:
        return []
    for path in told[:MAX_FILES]:
        if path.is_symlink() or not path.is_file():
            continue
        try:
            with path.open("rb") as stream:
                texts[path.name] = stream.read(MAX_BYTES).decode(errors="replace")
        except OSError:
            continue
    return summarise_round(texts, _culprit(findings))


def describe_run(client: Client, run: str) -> list[str]:
    """Return what the evidence of a run's halt says, as far as the control plane has it."""
    findings = list(client.pages(f"/runs/{run}/findings"))
    halt = next((row for row in findings if row["severity"] == "halt"), None)
    texts = {}
    for path in [path for path in (halt or {}).get("evidence", ()) if is_described(path)][
        :MAX_FILES
    ]:
        try:
            answer = client.call("GET", f"/runs/{run}/artifacts/{path}")
        except GonogoError:
            continue  # it lies on another host, or was not kept
        texts[path] = answer.content[:MAX_BYTES].decode(errors="replace")
    return summarise_round(texts, _culprit(findings))


def _culprit(findings: Iterable[dict[str, Any]]) -> int | None:
    """Return the rank that the first halt names."""
    halt = next((row for row in findings if row["severity"] == "halt"), {})
    rank = halt.get("rank")
    return rank if isinstance(rank, int) else None
