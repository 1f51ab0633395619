"""The files of a run that are here: those of its directory on this host, and uploaded copies.

A run directory is served only if its name is the run's id and its order names the run. No path
leads out of it.
"""

import io
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import ArtifactsView, ArtifactView
from gonogo.contract.errors import Conflict, Corrupt, NotFound, Rejected
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.evidence_round import by_relevance, describe_round, is_described, stack_rank
from gonogo.files import read_plain
from gonogo.rundir import RunDir, is_text, load_record, pruned_text
from service.db.schema import EvidenceRow, RunRow

MAX_LISTED = 5_000


class ArtifactNotHere(Conflict):
    """The artifact lies on another host."""

    code = "artifact_not_here"
    title = "The artifact is not here"

    def __init__(self, host: str | None, path: str) -> None:
        super().__init__(f"it lies on host {host or 'unknown'} at {path}")
        self.host = host
        self.path = path


def reachable_dir(run: RunRow) -> RunDir | None:
    """Return a run's directory when it can be read here, else None."""
    if run.dir is None:
        return None
    run_dir = RunDir(Path(run.dir))
    return run_dir if run_dir.path.name == run.id and _is_of(run_dir, run.id) else None


def _is_of(run_dir: RunDir, run: str) -> bool:
    try:
        order = load_record(run_dir.order, Order)
    except (OSError, ValueError, Corrupt):  # a NUL character in a path is a ValueError
        return False
    return order is not None and order.run == run


def list_artifacts(session: Session, run: RunRow) -> ArtifactsView:
    """Return every file of a run that can be had."""
    run_dir = reachable_dir(run)
    found = {row.path: row for row in _walk(run_dir)} if run_dir else {}
    query = select(EvidenceRow.path, EvidenceRow.size, EvidenceRow.truncated)
    for path, size, truncated in session.execute(query.where(EvidenceRow.run == run.id)):
        if path not in found:
            found[path] = ArtifactView(path=path, bytes=size, here=False, truncated=truncated)
    return ArtifactsView(
        run=run.id,
        host=run.host,
        dir=run.dir,
        reachable=run_dir is not None,
        items=[found[path] for path in sorted(found)],
    )


def _walk(run_dir: RunDir) -> Iterator[ArtifactView]:
    paths = (Path(folder) / name for folder, _, names in os.walk(run_dir.path) for name in names)
    for path in islice(paths, MAX_LISTED):
        try:
            found = path.lstat()
        except OSError:  # a draft that has its name by now
            continue
        if stat.S_ISREG(found.st_mode) and is_text(path):
            relative = str(path.relative_to(run_dir.path))
            yield ArtifactView(path=relative, bytes=found.st_size, here=True)


def load_artifact(session: Session, run: RunRow, path: str) -> IO[bytes]:
    """Return a file of a run, open for reading, or its uploaded copy."""
    if "\x00" in path:
        raise Rejected("path: a NUL character")
    run_dir = reachable_dir(run)
    if run_dir is not None:
        with suppress(OSError, RuntimeError):  # links that lead to each other are a RuntimeError
            return read_plain(RunDir(run_dir.path.resolve()).inside(path))
    copy = session.get(EvidenceRow, (run.id, path))
    if copy is not None:
        return io.BytesIO(copy.content)
    if run_dir is not None or run.dir is None:
        raise NotFound(f"run {run.id} has no file {path}")
    gone = pruned_text(Path(run.dir))
    if gone is not None:
        raise NotFound(f"run {run.id} has no file {path}: {gone}")
    raise ArtifactNotHere(run.host, f"{run.dir}/{path}")


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
