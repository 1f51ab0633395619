"""Which bytes of a run are taken in? Stretches of its growing files, and its small records.

A growing file is kept as the stretches in which it arrived, each byte exactly once, so that the
file can be had again as it stands on its host; what detectors say depends on byte offsets, and
what a verdict rests on is in the facts by digest. Nothing here reads what the bytes say.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from sqlalchemy import Connection, Table, func, insert, select

from gonogo.contract.agent import (
    MAX_RECORD_BYTES,
    MAX_RECORDS_BYTES,
    MAX_STREAM_BYTES,
    RankTelemetry,
    RecordReport,
    StreamTelemetry,
)
from gonogo.contract.errors import Rejected
from gonogo.contract.lifecycle import RunState
from service.agent.fence import Bearer, check_bearer
from service.db.prepared import Prepared
from service.db.schema import PieceRow, RecordRow
from service.db.store import Topic, ring
from service.evidence.files import heartbeat_name, pack
from service.evidence.promised import promised_records
from service.experiments.lifecycle import Deed, lock_run

_INSERT = Prepared(insert(cast(Table, PieceRow.__table__)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of a growing file, compressed."""

    file: str
    start: int
    end: int
    packed: bytes
    lines: int | None = None
    """Of heartbeats: how many it holds."""


def pack_heartbeats(part: RankTelemetry) -> Piece:
    """Return a stretch of a rank's file as the bytes that it is.

    Raises:
        Rejected: its raw bytes are not those of the stretch.
    """
    if part.raw_b64 is None:
        raw = "".join(f"{line}\n" for line in part.lines).encode(errors="replace")
    else:
        raw = _decoded(part.raw_b64, "raw_b64")
        if len(raw) != part.end - part.start:
            raise Rejected("raw_b64: not as many bytes as the stretch has")
    return _packed(heartbeat_name(part.rank), part.start, part.end, raw, raw.count(b"\n"))


def pack_streams(parts: Iterable[StreamTelemetry]) -> list[Piece]:
    """Return stretches of other growing files.

    Raises:
        Rejected: bad base64, or more than a message may bring.
    """
    pieces = []
    for part in parts:
        raw = _decoded(part.content_b64, "content_b64")
        if len(raw) > MAX_STREAM_BYTES:
            raise Rejected(f"files: at most {MAX_STREAM_BYTES} bytes of a file at once")
        pieces.append(_packed(part.name, part.start, part.start + len(raw), raw))
    return pieces


def store_pieces(
    database: Connection, run: str, pieces: Iterable[tuple[Piece, int | None]]
) -> None:
    """Keep pieces that follow what is there, each with the number of its first heartbeat."""
    rows = [
        {
            "run": run,
            "file": piece.file,
            "start": piece.start,
            "end": piece.end,
            "packed": piece.packed,
            "n": n,
            "lines": piece.lines,
        }
        for piece, n in pieces
    ]
    if rows:
        _INSERT.run(database, *rows)


def take_record(deed: Deed, run_id: str, report: RecordReport, bearer: Bearer) -> None:
    """Keep a small record; the same bytes again change nothing.

    After the end only what the end promised is taken.

    Raises:
        NotFound: no such run.
        NotAllowed, StaleToken: see `check_bearer`.
        Rejected: bad base64, too large, or more than the records of a run may have.
    """
    content = _decoded(report.content_b64, "content_b64")
    if len(content) > MAX_RECORD_BYTES:
        raise Rejected(f"content_b64: a record has at most {MAX_RECORD_BYTES} bytes")
    _, run = lock_run(deed, run_id)
    check_bearer(run, bearer)
    sha256 = hashlib.sha256(content).hexdigest()
    if run.state == RunState.ENDED and promised_records(run).get(report.path) != sha256:
        return
    others = select(func.coalesce(func.sum(func.length(RecordRow.content)), 0)).where(
        RecordRow.run == run_id, RecordRow.path != report.path
    )
    if deed.session.scalars(others).one() + len(content) > MAX_RECORDS_BYTES:
        raise Rejected(f"records: those of a run have at most {MAX_RECORDS_BYTES} bytes")
    row = deed.session.get(RecordRow, (run_id, report.path))
    if row is None:
        row = RecordRow(run=run_id, path=report.path, sha256="", content=b"")
        deed.session.add(row)
    if row.sha256 != sha256:
        row.sha256, row.content = sha256, content
        if run.state == RunState.ENDED:
            ring(deed.session, Topic.ENDED)


def _decoded(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Rejected(f"{where}: not base64") from error


def _packed(file: str, start: int, end: int, raw: bytes, lines: int | None = None) -> Piece:
    return Piece(file=file, start=start, end=end, packed=pack(raw), lines=lines)
