"""What did a run save, by what its watcher and its ranks told? Nothing else is a checkpoint of it.

The watcher reads each checkpoint and tells its step and the digest of its manifest; a rank that
saves one may tell so. Lines and ticks are here as they were shipped, whatever lies on the disk by
now.
"""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import PurePosixPath

from sqlalchemy.orm import Session

from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import Msg
from gonogo.contract.observation import CheckpointSeen, Kind
from service.db.schema import RunRow
from service.evidence.files import load_bytes_backwards
from service.evidence.heartbeats import load_newest_beats, load_ranks
from service.evidence.promised import promised_files, stored_bytes
from service.queries.runs import load_progress

_TICKS = "watch.jsonl"
_FOLDER = "checkpoints"
_SAID = f'"{Kind.CHECKPOINTS}"'.encode()
_SEALED = b'"exit.json"'


def reached_step(session: Session, run: RunRow) -> int | None:
    """Return the last step that a run may have ended; None where nobody knows.

    More may have been told than is here, or there is no line of it. A program that tells of every
    tenth step may have ended nine more.
    """
    promised = promised_files(run)
    have = stored_bytes(session, run.id)
    if not promised or any(have.get(name, 0) < size for name, size in promised.items()):
        return None
    ranks = load_ranks(session, run.id)
    if not ranks:
        return None
    told = [rows for rank in ranks if (rows := _last_steps(session, run.id, rank))]
    if not told:
        return 0
    began_at = run.resume_from.step if run.resume_from else 0
    strides = [last - (began_at if before is None else before) for last, before in told]
    most = max(load_progress(session, run.id).step or 0, *(last for last, _ in told))
    return most + max(1, min(strides)) - 1


def _last_steps(session: Session, run: str, rank: int) -> tuple[int, int | None] | None:
    """Return the last step of which a rank told, and the one before; None where it told of none."""
    last = None
    for beat in load_newest_beats(session, run, rank, (Msg.STEP_END, Msg.PROGRESS)):
        if last is None:
            last = beat.step
        elif beat.step < last:
            return last, beat.step
    return None if last is None else (last, None)


def load_told(session: Session, run: RunRow) -> Iterator[CheckpointSeen]:
    """Yield what the run's watcher said of its checkpoints, the newest first."""
    for line in _ticks(session, run, _SAID):
        yield from sorted(_seen(line), key=lambda row: row.step or 0, reverse=True)


def _ticks(session: Session, run: RunRow, holding: bytes) -> Iterator[bytes]:
    """Yield the watcher's ticks that hold a text, the newest first."""
    for piece in load_bytes_backwards(session, run.id, _TICKS):
        if holding in piece:
            yield from (line for line in reversed(piece.splitlines()) if holding in line)


def _seen(line: bytes) -> list[CheckpointSeen]:
    """Return what a tick says of checkpoints; what cannot be read says nothing."""
    try:
        rows = json.loads(line)["observations"][Kind.CHECKPOINTS]
        return [CheckpointSeen.model_validate(row) for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


class Saved:
    """Which checkpoints are a run's own, by what its watcher and its ranks told of them."""

    def __init__(self, session: Session, run: RunRow) -> None:
        self._session, self._run = session, run

    def check(self, step: int, sha256: str) -> None:
        """Refuse what the run cannot have saved.

        Args:
            step: of the checkpoint.
            sha256: of its manifest.

        Raises:
            Corrupt: another was verified, or nobody told of one.
        """
        verified = self._verified.get(step)
        if verified is None:
            looked = step < max(self._verified, default=0) or self._looked_to_the_end
            if looked and not self._is_told(step):
                raise Corrupt(f"neither watcher nor rank told of a checkpoint of step {step}")
        elif not verified & {None, sha256}:  # None: by a watcher that told no digest
            raise Corrupt(f"it is not the checkpoint of step {step} that was verified")

    def is_followed(self, path: PurePosixPath | None, step: int, reached: int | None) -> bool:
        """Say whether the run saved a later checkpoint than one, well or not.

        Args:
            path: of that one; None: there is none.
            step: of that one.
            reached: the last step that the run may have ended; None: nobody knows.
        """
        looked = (row.step or 0 for row in self._seen)
        if any(step < row and (reached is None or row <= reached) for row in looked):
            return True
        if self._last_told is None:
            return False
        told, at = self._last_told
        read = next((row for row in self._seen if PurePosixPath(row.path) == told), None)
        is_this = path is not None and path.parts[-len(told.parts) :] == told.parts
        return at > step and not is_this and not (read is not None and read.verified)

    @cached_property
    def _seen(self) -> list[CheckpointSeen]:
        """What the watcher said of the run's checkpoints, the newest first."""
        return list(load_told(self._session, self._run))

    @cached_property
    def _last_told(self) -> tuple[PurePosixPath, int] | None:
        """Return the last checkpoint that a rank told of, and at which step; None: of none here.

        The line may come steps after what was saved: its path says which step that is of.
        """
        run = self._run
        for rank in load_ranks(self._session, run.id):
            for beat in load_newest_beats(self._session, run.id, rank, (Msg.CHECKPOINT,)):
                path = PurePosixPath(beat.path or "")
                if run.dir is not None and path.is_relative_to(run.dir):
                    path = path.relative_to(run.dir)
                return (path, beat.step) if path.parts[:1] == (_FOLDER,) else None
        return None

    @cached_property
    def _verified(self) -> dict[int, set[str | None]]:
        """Step → digests of the manifests that the watcher verified; None: it told none."""
        found: dict[int, set[str | None]] = {}
        for seen in self._seen:
            if seen.verified and seen.step is not None:
                found.setdefault(seen.step, set()).add(seen.manifest_sha256)
        return found

    @cached_property
    def _looked_to_the_end(self) -> bool:
        """Whether all ticks are here, the last of which has seen how the run ended."""
        promised = promised_files(self._run).get(_TICKS)
        if promised is None or stored_bytes(self._session, self._run.id).get(_TICKS, 0) < promised:
            return False
        if not any(True for _ in _ticks(self._session, self._run, _SAID)):
            return False
        return any(_sealed_exit(line) for line in _ticks(self._session, self._run, _SEALED))

    def _is_told(self, step: int) -> bool:
        run = self._run.id
        return any(
            beat.step == step
            for rank in load_ranks(self._session, run)
            for beat in load_newest_beats(self._session, run, rank, (Msg.CHECKPOINT,))
        )


def _sealed_exit(line: bytes) -> bool:
    """Say whether a tick has sealed the record of how its run ended."""
    try:
        return "exit.json" in json.loads(line)["files"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
