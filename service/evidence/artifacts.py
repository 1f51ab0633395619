"""Which files of a run can be had here? Those of its directory on this host, and the uploaded ones.

A run directory is served only when its name is the run's id and the order in it names the run, so
that a worker's word alone opens no other folder; no path leads out of it, links included, also
while somebody changes them: what was opened is looked at, and that is what is read. Whether it is
the worker's host or a volume that both mount makes no difference. Where its file system hangs, a
few who look wait for it, and all others are told so at once.
"""

import io
import os
import stat
import threading
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import ArtifactsView, ArtifactView
from gonogo.contract.errors import Conflict, Corrupt, NotFound, Rejected, Unavailable
from gonogo.contract.order import Order
from gonogo.files import read_plain
from gonogo.rundir import RunDir, is_text, load_record, pruned_text
from service.db.schema import EvidenceRow, RunRow

MAX_LISTED = 5_000
_AT_ONCE = 8
LOOKS = 4
"""How many may look into run directories at once: fewer than may read the database (`READERS`)."""
_TURN_S = 0.2
"""How long a turn is waited for: most looks take milliseconds."""
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
    """Yield the plain files; no more is looked at than may be listed, whatever it is."""
    for path in islice(_paths(run_dir.path), MAX_LISTED):
        try:
            found = path.lstat()
        except OSError:  # a draft that has its name by now
            continue
        if stat.S_ISREG(found.st_mode) and is_text(path):
            relative = str(path.relative_to(run_dir.path))
            yield ArtifactView(path=relative, bytes=found.st_size, here=True)


def _paths(root: Path) -> Iterator[Path]:
    """Yield what is below a folder, name by name: a trainer may put a million into one."""
    folders = deque([root])
    while folders:
        try:
            with os.scandir(folders.popleft()) as rows:
                for row in rows:
                    if _is_folder(row):
                        folders.append(Path(row.path))
                    yield Path(row.path)
        except OSError:  # it has gone, or is not for us
            continue


def _is_folder(row: os.DirEntry[str]) -> bool:
    """Say whether a name is a folder's; one that cannot be looked at hides none beside it."""
    try:
        return row.is_dir(follow_symlinks=False)
    except OSError:  # asked of a file system that does not say what its names are
        return False


def load_copies(
    session: Session, run: str, *, but: Collection[str], limit: int
) -> Iterator[EvidenceRow]:
    """Yield the uploaded files of a run by path, a few in memory at once.

    Args:
        session: a reading transaction.
        run: which run.
        but: paths that are left out.
        limit: so many at most.
    """
    query = select(EvidenceRow).where(EvidenceRow.run == run, EvidenceRow.path.not_in(but))
    query = query.order_by(EvidenceRow.path).limit(limit)
    yield from session.scalars(query.execution_options(yield_per=_AT_ONCE))


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
        found = None if run_dir is None else _open_inside(run_dir, run.id, path)
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


def _open_inside(run_dir: RunDir, run: str, path: str) -> IO[bytes] | None:
    """Return a file of a run directory, open; None where there is no such plain file.

    Whoever writes to the directory may put a link in a file's place, or in the directory's own,
    between a look and the opening. So it is asked where the file lies that was opened.

    Raises:
        Rejected: the path leads out of the run directory.
    """
    root = run_dir.path.resolve()
    if not _is_of(RunDir(root), run):
        return None
    try:
        stream = read_plain(RunDir(root).inside(path))
    except (OSError, RuntimeError):  # links that lead to each other are a RuntimeError
        return None
    try:
        if Path(os.readlink(f"/proc/self/fd/{stream.fileno()}")).is_relative_to(root):
            return stream
    except OSError:
        pass
    stream.close()
    raise Rejected(f"{path!r} leads out of the run directory")
