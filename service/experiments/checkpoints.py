"""Which checkpoint may a run go on from? The last one that was found whole, byte for byte.

Whether one is whole is looked at where it lies. Where the run's directory is at hand (this host, or
a file system that its host shares), here: the manifest is written last, so a checkpoint without
one, or one whose sizes or digests differ, is passed over for the one before it. Of a run on another
host its watcher has said which checkpoints it verified, in the ticks that were shipped; that such a
one is there no more is found by the preflight of the run that should have gone on from it, and told
by `found_missing`.

A checkpoint of a later step than its run may have ended, by what it told, is another run's, or
nobody's: whoever went on from it would pass without the steps between. So is one whose manifest is
not what the watcher read when it verified that step, or which neither the watcher, who looked until
the run had ended, nor a rank told of. Only where the last lines of a run never came (a lost host)
nobody knows how far it had got, and what it saved last.
"""

import hashlib
import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from pydantic import ValidationError
from sqlalchemy.orm import Session

from gonogo.contract.errors import Corrupt, GonogoError
from gonogo.contract.order import ResumePoint
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import Manifest, Preflight
from gonogo.files import read_plain
from gonogo.rundir import RunDir, is_text, load_sealed
from service.db.schema import ExperimentRow, RunRow
from service.evidence.artifacts import reachable_dir
from service.experiments.saved import Saved, load_told, reached_step
from service.experiments.workers import Host, host_of_run

_log = logging.getLogger(__name__)
_CHUNK_BYTES = 2**20


def durable_checkpoints(
    session: Session, run: RunRow, before: int | None = None, *, since: int = 0
) -> Iterator[ResumePoint]:
    """Yield the checkpoints of a run that were found whole, the newest first.

    Those of step `before` and later, before step `since`, or of a step that the run cannot
    have ended, are not even read.
    """
    if run.dir is None:
        return
    reached = reached_step(session, run)
    behind = sys.maxsize if reached is None else reached + 1
    steps = range(since, behind if before is None else min(before, behind))
    here = reachable_dir(run)
    if here is not None:
        yield from _verified_here(session, run, here, steps)
        return
    for seen in load_told(session, run):
        place = PurePosixPath(seen.path)
        if not seen.verified or seen.step is None or ".." in place.parts or place.is_absolute():
            continue
        if seen.step in steps:
            yield ResumePoint(
                path=str(run.dir / place), step=seen.step, manifest_sha256=seen.manifest_sha256
            )


def is_followed(session: Session, run: RunRow, point: ResumePoint | None) -> bool:
    """Say whether a run saved a later checkpoint than a durable one of it (None: it left none).

    That is one that the watcher verified or refused, or that a rank told of. One of a step that the
    run cannot have ended is another's.
    """
    path = None if point is None else PurePosixPath(point.path)
    step = 0 if point is None else point.step
    return Saved(session, run).is_followed(path, step, reached_step(session, run))


def is_durable(point: ResumePoint, attempts: Iterable[RunRow], before: Host | None = None) -> bool:
    """Say whether a checkpoint that was found whole once still is, as far as anybody knows.

    Args:
        point: the checkpoint.
        attempts: the runs of its experiment, which may have tried to go on from it.
        before: the host that wrote what was taken over from another experiment.
    """
    folder = Path(point.path)
    if folder.is_dir():
        found = _manifest(folder)
        if found is None or found[0].step != point.step:
            return False
        manifest, sha256 = found
        return point.manifest_sha256 in (None, sha256) and _is_whole(folder, manifest)
    rows = list(attempts)
    holder = next((run for run in rows if _holds(run, point.path)), None)
    if holder is not None and reachable_dir(holder) is not None:
        return False
    return point.path not in found_missing(rows, before)


def found_missing(attempts: Iterable[RunRow], before: Host | None = None) -> set[str]:
    """Return the checkpoints that preflight did not find where they were written.

    Another host that lacks one proves nothing, unless nobody knows which host wrote it.

    Args:
        attempts: the runs of an experiment.
        before: the host that wrote what none of them did; None: nobody knows.
    """
    rows = list(attempts)
    found = set()
    for run in rows:
        if run.resume_from is None or not _lacked_checkpoint(run):
            continue
        path = run.resume_from.path
        holder = next((other for other in rows if _holds(other, path)), None)
        wrote, looked = before if holder is None else host_of_run(holder), host_of_run(run)
        if wrote is None or (looked is not None and wrote.is_same(looked)):
            found.add(path)
    return found


def host_of(point: ResumePoint, attempts: Iterable[RunRow]) -> Host | None:
    """Return the host on which a checkpoint was written; None when no run of these wrote it."""
    holder = holder_of(point, attempts)
    return None if holder is None else host_of_run(holder)


def host_of_origin(experiment: ExperimentRow) -> Host | None:
    """Return the host on which lies what was taken over from another experiment, if it is known."""
    name = None if experiment.origin is None else experiment.origin.host
    return None if name is None else Host(name)


def is_unfit(run: RunRow) -> bool:
    """Say whether a run's preflight found its host unfit for any run, or a full disk ended it."""
    if run.outcome is not None and run.outcome.code is OutcomeCode.DISK_FULL:
        return True
    record = _preflight(run)
    return record is not None and record.host_is_unfit()


def holder_of(point: ResumePoint, attempts: Iterable[RunRow]) -> RunRow | None:
    """Return the run that wrote a checkpoint, if it is one of these."""
    return next((run for run in attempts if _holds(run, point.path)), None)


def wrote(run: RunRow, point: ResumePoint) -> bool:
    """Say whether a checkpoint is one that a run has written."""
    return _holds(run, point.path)


def _holds(run: RunRow, path: str) -> bool:
    return run.dir is not None and PurePosixPath(path).is_relative_to(run.dir)


def _lacked_checkpoint(run: RunRow) -> bool:
    """Say whether a run was not started for want of its checkpoint."""
    record = _preflight(run)
    return record is not None and "resume" in record.failed()


def _preflight(run: RunRow) -> Preflight | None:
    """Return what the preflight of a run said; None where nobody can read it."""
    try:
        return Preflight.model_validate(run.preflight)
    except ValidationError:
        return None


def _verified_here(
    session: Session, run: RunRow, run_dir: RunDir, steps: range
) -> Iterator[ResumePoint]:
    """Yield by the steps that the manifests say: a trainer calls its folders as it likes."""
    try:
        folders = [row for row in run_dir.checkpoints.iterdir() if _claims(row)]
    except OSError:
        return
    read = [(path, *found) for path in folders if (found := _manifest(path)) is not None]
    wanted = [row for row in read if row[1].step in steps]
    wanted.sort(key=lambda row: (row[1].step, row[0]), reverse=True)
    saved = Saved(session, run)
    for path, manifest, sha256 in wanted:
        try:
            saved.check(manifest.step, sha256)
        except Corrupt as error:
            _refuse(path, error)
            continue
        if _is_whole(path, manifest):
            yield ResumePoint(path=str(path), step=manifest.step, manifest_sha256=sha256)


def _claims(path: Path) -> bool:
    """Say whether a name may be that of a checkpoint, as its watcher has it; a draft's is none."""
    return not path.name.startswith(".") and path.is_dir() and is_text(path)


def _manifest(folder: Path) -> tuple[Manifest, str] | None:
    """Return what a checkpoint says of itself, and its SHA-256; None where it cannot be read."""
    try:
        return load_sealed(folder / "manifest.json", Manifest)
    except (OSError, Corrupt) as error:
        _refuse(folder, error)
        return None


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    """Say whether a checkpoint's files are what its manifest says."""
    try:
        for name, expected in manifest.files.items():
            path = RunDir(folder).inside(name)
            if path.stat().st_size != expected.bytes or _sha256(path) != expected.sha256:
                raise Corrupt(f"{name} is not what the manifest says")
    except (OSError, GonogoError) as error:
        _refuse(folder, error)
        return False
    return True


def _refuse(folder: Path, error: Exception) -> None:
    _log.warning("checkpoint %s: %s", folder, error, extra={"action": "checkpoint_refused"})


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with read_plain(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()
