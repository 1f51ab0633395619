"""The files of a run that are here: those of its directory on this host, and uploaded copies.

A run directory is served only if its name is the run's id and its order names the run. No path
leads out of it. While its file system hangs, a few requests wait, and others get an error at once.

Places of the ranks when a run was halted, from the evidence of the finding.
"""

import io
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import ArtifactsView, ArtifactView
from gonogo.contract.errors import Conflict, Corrupt, NotFound, Rejected, Unavailable
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.evidence_round import by_relevance, describe_round, is_described, stack_rank
from gonogo.files import read_plain
from gonogo.rundir import RunDir, is_text, load_record, pruned_text
from service.db.schema import EvidenceRow, RunRow

MAX_LISTED = 5_000
LOOKS = 4
"""Requests that may look into run directories at once: fewer than database readers (`READERS`)."""
_TURN_S = 0.2
"""How long a request waits for its turn: most looks take milliseconds."""
_turns = threading.BoundedSemaphore(LOOKS)


class ArtifactNotHere(Conflict):
    """The artifact lies on another host."""

    code = "artifact_not_here"
    title = "The artifact is not here"

    def __init__(self, host: str | None, path: str) -> None:
        super().__init__(f"it lies on host {host or 'unknown'} at {path}")
        self.host = host
        self.path = path


@contextmanager
def _turn() -> Iterator[None]:
    """Look into a run directory, as one of a few.

    Raises:
        Unavailable: they do not come back.
    """
    if not _turns.acquire(timeout=_TURN_S):
        raise Unavailable("run directories do not answer: their file system hangs, or is very busy")
    try:
        yield
    finally:
        _turns.release()


def reachable_dir(run: RunRow) -> RunDir | None:
    """Return a run's directory when it can be read here, else None."""
    if run.dir is None:
        return None
    run_dir = RunDir(Path(run.dir))
    return run_dir if run_dir.path.name == run.id and _is_of(run_dir, run.id) else None


def _is_of(run_dir: RunDir, run: str) -> bool:
    """Say whether the order in a directory names the run."""
    try:
        order = load_record(run_dir.order, Order)
    except (OSError, ValueError, Corrupt):  # a NUL character in a path is a ValueError
        return False
    return order is not None and order.run == run


def list_artifacts(session: Session, run: RunRow) -> ArtifactsView:
    """Return every file of a run that can be had.

    Raises:
        Unavailable: too many look into run directories already.
    """
    with _turn():
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
    """Yield the plain files, `MAX_LISTED` at most."""
    for path in islice(_paths(run_dir.path), MAX_LISTED):
        try:
            found = path.lstat()
        except OSError:  # a draft that has its name by now
            continue
        if stat.S_ISREG(found.st_mode) and is_text(path):
            relative = str(path.relative_to(run_dir.path))
            yield ArtifactView(path=relative, bytes=found.st_size, here=True)


def _paths(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        yield from (Path(folder) / name for name in names)


def load_artifact(session: Session, run: RunRow, path: str) -> IO[bytes]:
    """Return a file of a run, open for reading, or its uploaded copy.

    Raises:
        Rejected: the path leads out of the run directory.
        NotFound: the directory is here and has no such file, or was pruned.
        ArtifactNotHere: the directory is on another host and the file was not uploaded.
        Unavailable: too many look into run directories already.
    """
    if "\x00" in path:
        raise Rejected("path: a NUL character")
    with _turn():
        run_dir = reachable_dir(run)
        found = None if run_dir is None else _open_inside(run_dir, path)
    if found is not None:
        return found
    copy = session.get(EvidenceRow, (run.id, path))
    if copy is not None:
        return io.BytesIO(copy.content)
    if run_dir is not None or run.dir is None:
        raise NotFound(f"run {run.id} has no file {path}")
    gone = pruned_text(Path(run.dir))
    if gone is not None:
        raise NotFound(f"run {run.id} has no file {path}: {gone}")
    raise ArtifactNotHere(run.host, f"{run.dir}/{path}")


def _open_inside(run_dir: RunDir, path: str) -> IO[bytes] | None:
    """Return a file of a run directory, open; None where there is no such plain file.

    A trainer may put a link in the way between look and opening, so the opened file is checked.

    Raises:
        Rejected: the path leads out of the run directory.
    """
    root = run_dir.path.resolve()
    try:
        stream = read_plain(RunDir(root).inside(path))
    except (OSError, RuntimeError):  # links that lead to each other are a RuntimeError
        return None
    if Path(os.readlink(f"/proc/self/fd/{stream.fileno()}")).is_relative_to(root):
        return stream
    stream.close()
    raise Rejected(f"{path!r} leads out of the run directory")


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
