"""Packing the files of judged runs, one run a pass.

Telemetry arrives in thousands of small pieces. After the judgement each file is stored again in
large compressed blocks, with the same bytes.
"""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.orm import Session

from gonogo.contract.errors import Corrupt
from gonogo.contract.lifecycle import RunState
from service.context import Context
from service.db.schema import PieceRow, RunRow
from service.evidence.files import load_bytes, load_names, pack_tight, rank_of

SETTLE_S = 60.0
"""From the end of a run, so that nobody who follows it is disturbed."""
BLOCK_BYTES = 900_000
"""Bytes that bzip2 compresses at once, and that are unpacked to read one line."""
_FREED_PAGES = 100_000

_log = logging.getLogger(__name__)


class Packing:
    """Packs the files of judged runs."""

    def __init__(self, context: Context, settle_s: float = SETTLE_S) -> None:
        self._context = context
        self._settle_s = settle_s

    def run_once(self) -> None:
        """Pack one run that is due."""
        store, before = self._context.store, self._context.now() - self._settle_s
        run = store.read(lambda session: find_unpacked(session, before))
        if run is None:
            return
        first, whole = 1, True
        for file in store.read(lambda session: load_names(session, run)):
            try:
                rows = store.read(partial(pack_file, run=run, file=file, first=first))
            except Corrupt as error:  # it stays as it is, and keeps no other run waiting
                _log.warning("not packed: %s", error, extra={"action": "unpacked"})
                whole = False
                continue
            first += sum(row["lines"] or 0 for row in rows)
            store.write(partial(_replace, rows=rows))
        store.write(lambda session: _mark(session, run, whole))


def find_unpacked(session: Session, before: float) -> str | None:
    """Return a judged run that ended before a moment (Unix seconds) and was not packed yet."""
    ended = RunRow.state == RunState.ENDED.value
    query = select(RunRow.id).where(RunRow.judged.is_(True), ended, RunRow.packed.is_(None))
    late = or_(RunRow.ended_at.is_(None), RunRow.ended_at <= before)
    return session.scalars(query.where(late).limit(1)).first()


def pack_file(session: Session, run: str, file: str, first: int) -> list[dict[str, Any]]:
    """Return the rows of a file in large blocks.

    Args:
        session: a reading transaction.
        run, file: which file.
        first: number of its first line within the run, where it is of heartbeats.

    Raises:
        Corrupt: a piece of it is missing.
    """
    rows: list[dict[str, Any]] = []
    start, n = 0, first
    beats = rank_of(file) is not None
    for block in _blocks(load_bytes(session, run, file)):
        lines = block.count(b"\n")
        rows.append(
            {
                "run": run,
                "file": file,
                "start": start,
                "end": start + len(block),
                "packed": pack_tight(block),
                "n": n if beats else None,
                "lines": lines if beats else None,
            }
        )
        start, n = start + len(block), n + lines
    return rows


def _blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks of whole pieces, each of about `BLOCK_BYTES`."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        if held and size + len(piece) > BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
        held.append(piece)
        size += len(piece)
    if held:
        yield b"".join(held)


def _replace(session: Session, rows: list[dict[str, Any]]) -> None:
    """Put blocks in the place of the pieces that they hold; pieces beyond stay."""
    if not rows:
        return
    run, file, end = rows[0]["run"], rows[0]["file"], rows[-1]["end"]
    session.execute(
        delete(PieceRow).where(PieceRow.run == run, PieceRow.file == file, PieceRow.end <= end)
    )
    session.execute(insert(PieceRow), rows)


def _mark(session: Session, run: str, whole: bool) -> None:
    session.execute(update(RunRow).where(RunRow.id == run).values(packed=whole))
    raw = session.connection().connection.dbapi_connection
    if session.get_bind().dialect.name == "sqlite" and raw is not None:
        raw.cursor().execute(f"PRAGMA incremental_vacuum({_FREED_PAGES})").fetchall()
