"""Which checkpoint may a run go on from? The last one whose manifest holds, byte for byte.

The manifest is written last, so a checkpoint without one, or one whose sizes or digests differ, is
passed over for the one before it.
"""

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

from gonogo.contract.errors import Corrupt
from gonogo.contract.order import ResumePoint
from gonogo.contract.records import Manifest
from gonogo.rundir import RunDir, load_record

_log = logging.getLogger(__name__)
_CHUNK_BYTES = 2**20


def find_durable_checkpoint(run_dir: str | None) -> ResumePoint | None:
    """Return the newest checkpoint of a run directory on this host that verifies, or None."""
    return next(durable_checkpoints(run_dir), None)


def durable_checkpoints(run_dir: str | None, before: int | None = None) -> Iterator[ResumePoint]:
    """Yield the checkpoints of a run directory on this host that verify, the newest first.

    Those of step `before` and later are not even read.
    """
    if run_dir is None:
        return
    folder = RunDir(Path(run_dir)).checkpoints
    try:
        candidates = sorted((path for path in folder.iterdir() if path.is_dir()), reverse=True)
    except OSError:
        return
    for path in candidates:
        if before is not None and not _is_before(path, before):
            continue
        manifest = _verified(path)
        if manifest is not None:
            yield ResumePoint(path=str(path), step=manifest.step)


def _is_before(folder: Path, step: int) -> bool:
    try:
        manifest = load_record(folder / "manifest.json", Manifest)
    except (OSError, Corrupt):
        return False
    return manifest is not None and manifest.step < step


def is_durable(point: ResumePoint) -> bool:
    """Say whether a checkpoint on this host still verifies."""
    manifest = _verified(Path(point.path))
    return manifest is not None and manifest.step == point.step


def _verified(folder: Path) -> Manifest | None:
    try:
        manifest = load_record(folder / "manifest.json", Manifest)
        if manifest is None:
            return None
        for name, expected in manifest.files.items():
            path = RunDir(folder).inside(name)
            if path.stat().st_size != expected.bytes or _sha256(path) != expected.sha256:
                raise Corrupt(f"{name} is not what the manifest says")
    except (OSError, Corrupt) as error:
        _log.warning("checkpoint %s: %s", folder, error, extra={"action": "checkpoint_refused"})
        return None
    return manifest


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()
