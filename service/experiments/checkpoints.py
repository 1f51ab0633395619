"""Durable checkpoints of a run: complete, with the very bytes that their manifest names.

If the run directory can be reached from here, the files are read whole. Otherwise the ticks of the
run's watcher say which checkpoints it verified, and the preflight of a later run may have found one
missing.
"""

import hashlib
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from pydantic import ValidationError
from sqlalchemy.orm import Session

from gonogo.contract.errors import Corrupt, GonogoError
from gonogo.contract.heartbeat import Msg
from gonogo.contract.observation import CheckpointSeen, Kind
from gonogo.contract.order import ResumePoint
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import Manifest, Preflight
from gonogo.files import read_plain
from gonogo.rundir import RunDir, is_text, load_sealed
from service.db.schema import ExperimentRow, RunRow
from service.evidence.artifacts import reachable_dir
from service.evidence.files import load_bytes_backwards
from service.evidence.heartbeats import load_newest_beats, load_ranks
from service.experiments.workers import Host, host_of_run

_CHUNK_BYTES = 2**20
_TICKS = "watch.jsonl"
_SEEN = f'"{Kind.CHECKPOINTS}"'.encode()
_log = logging.getLogger(__name__)


def durable_checkpoints(
    session: Session, run: RunRow, before: int | None = None, *, since: int = 0
) -> Iterator[ResumePoint]:
    """Yield the durable checkpoints of a run, the newest first.

    Args:
        session: for reading.
        run: which run.
        before: only earlier steps; None: any.
        since: only this step and later ones.
    """
    if run.dir is None:
        return
    steps = range(since, sys.maxsize if before is None else before)
    here = reachable_dir(run)
    if here is not None:
        yield from _verified_here(here, steps)
        return
    for seen in load_seen(session, run):
        place = PurePosixPath(seen.path)
        inside = ".." not in place.parts and not place.is_absolute()
        if seen.verified and inside and seen.step is not None and seen.step in steps:
            yield ResumePoint(
                path=str(run.dir / place), step=seen.step, manifest_sha256=seen.manifest_sha256
            )


def is_followed(session: Session, run: RunRow, point: ResumePoint | None) -> bool:
    """Say whether a run saved a later checkpoint than this one, durable or not.

    Args:
        session: for reading.
        run: which run.
        point: a checkpoint of it; None: it left none.
    """
    step = 0 if point is None else point.step
    seen = list(load_seen(session, run))
    if any((row.step or 0) > step for row in seen):
        return True
    for rank in load_ranks(session, run.id):
        for beat in load_newest_beats(session, run.id, rank, (Msg.CHECKPOINT,)):
            name = PurePosixPath(beat.path or "").name
            known = {PurePosixPath(row.path).name for row in seen if row.verified}
            known |= {PurePosixPath(point.path).name} if point is not None else set()
            return beat.step > step and name not in known
    return False


def load_seen(session: Session, run: RunRow) -> Iterator[CheckpointSeen]:
    """Yield what the run's watcher reported of its checkpoints, the newest first."""
    for piece in load_bytes_backwards(session, run.id, _TICKS):
        if _SEEN not in piece:
            continue
        for line in reversed(piece.splitlines()):
            if _SEEN in line:
                yield from sorted(_parsed(line), key=lambda row: row.step or 0, reverse=True)


def _parsed(line: bytes) -> list[CheckpointSeen]:
    """Return what a tick says of checkpoints; nothing if it cannot be read."""
    try:
        rows = json.loads(line)["observations"][Kind.CHECKPOINTS]
        return [CheckpointSeen.model_validate(row) for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def is_durable(point: ResumePoint, attempts: Iterable[RunRow], before: Host | None = None) -> bool:
    """Say whether a checkpoint that was durable once still is, as far as known.

    Args:
        point: the checkpoint.
        attempts: the runs of its experiment.
        before: the host that wrote a checkpoint of another experiment.
    """
    folder = Path(point.path)
    if folder.is_dir():
        found = _manifest(folder)
        if found is None or found[0].step != point.step:
            return False
        manifest, sha256 = found
        return point.manifest_sha256 in (None, sha256) and _is_whole(folder, manifest)
    rows = list(attempts)
    holder = holder_of(point, rows)
    if holder is not None and reachable_dir(holder) is not None:
        return False
    return point.path not in found_missing(rows, before)


def found_missing(attempts: Iterable[RunRow], before: Host | None = None) -> set[str]:
    """Return the checkpoints that a preflight did not find on the host that wrote them.

    Args:
        attempts: the runs of an experiment.
        before: the host that wrote a checkpoint of another experiment; None: unknown.
    """
    rows = list(attempts)
    found = set()
    for run in rows:
        record = _preflight(run)
        if run.resume_from is None or record is None or "resume" not in record.failed():
            continue
        holder = holder_of(run.resume_from, rows)
        wrote_it, looked = before if holder is None else host_of_run(holder), host_of_run(run)
        if wrote_it is None or (looked is not None and wrote_it.is_same(looked)):
            found.add(run.resume_from.path)
    return found


def holder_of(point: ResumePoint, attempts: Iterable[RunRow]) -> RunRow | None:
    """Return the run that wrote a checkpoint, if it is one of these."""
    return next((run for run in attempts if wrote(run, point)), None)


def wrote(run: RunRow, point: ResumePoint) -> bool:
    """Say whether a run has written a checkpoint."""
    return run.dir is not None and PurePosixPath(point.path).is_relative_to(run.dir)


def host_of(point: ResumePoint, attempts: Iterable[RunRow]) -> Host | None:
    """Return the host on which one of these runs wrote a checkpoint."""
    holder = holder_of(point, attempts)
    return None if holder is None else host_of_run(holder)


def host_of_origin(experiment: ExperimentRow) -> Host | None:
    """Return the host of the checkpoint that was taken over from another experiment."""
    name = None if experiment.origin is None else experiment.origin.host
    return None if name is None else Host(name)


def is_unfit(run: RunRow) -> bool:
    """Say whether a preflight found the host of a run unfit, or a full disk ended the run."""
    if run.outcome is not None and run.outcome.code is OutcomeCode.DISK_FULL:
        return True
    record = _preflight(run)
    return record is not None and record.host_is_unfit()


def _preflight(run: RunRow) -> Preflight | None:
    try:
        return Preflight.model_validate(run.preflight)
    except ValidationError:
        return None


def _verified_here(run_dir: RunDir, steps: range) -> Iterator[ResumePoint]:
    """Yield the whole checkpoints by the steps of their manifests; folder names do not count."""
    try:
        folders = [
            path
            for path in run_dir.checkpoints.iterdir()
            if not path.name.startswith(".") and path.is_dir() and is_text(path)
        ]
    except OSError:
        return
    read = [(path, *found) for path in folders if (found := _manifest(path)) is not None]
    wanted = [row for row in read if row[1].step in steps]
    for path, manifest, sha256 in sorted(
        wanted, key=lambda row: (row[1].step, row[0]), reverse=True
    ):
        if _is_whole(path, manifest):
            yield ResumePoint(path=str(path), step=manifest.step, manifest_sha256=sha256)


def _manifest(folder: Path) -> tuple[Manifest, str] | None:
    """Return a checkpoint's manifest and its SHA-256; None if it cannot be read."""
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
