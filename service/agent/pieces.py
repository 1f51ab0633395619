"""Which bytes of a run are here? Pieces of its growing files, and its small records.

A growing file is kept as the stretches in which it arrived, each byte exactly once, so that the
file can be had again as it stands on its host; what detectors say depends on byte offsets, and
what a verdict rests on is in the facts by digest. Nothing here reads what the bytes say.
"""

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.agent import (
    MAX_RECORD_BYTES,
    MAX_STREAM_BYTES,
    RankTelemetry,
    RecordReport,
    StreamTelemetry,
)
from gonogo.contract.errors import Corrupt, Rejected
from gonogo.contract.lifecycle import RunState
from service.agent.fence import Bearer, check_bearer
from service.db.schema import PieceRow, RecordRow, RunRow
from service.experiments.lifecycle import Deed, lock_run

_AT_ONCE = 64
_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of a growing file, compressed."""

    file: str
    start: int
    end: int
    packed: bytes


def heartbeat_name(rank: int) -> str:
    """Return the name of a rank's heartbeat file."""
    return f"heartbeat_rank{rank}.jsonl"


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
    return _packed(heartbeat_name(part.rank), part.start, part.end, raw)


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


def store_piece(session: Session, run: str, piece: Piece) -> None:
    """Keep a piece that follows what is there."""
    session.add(
        PieceRow(run=run, file=piece.file, start=piece.start, end=piece.end, packed=piece.packed)
    )


def load_bytes(session: Session, run: str, file: str, most: int | None) -> Iterator[bytes]:
    """Yield a file piece by piece, up to byte `most`.

    Raises:
        Corrupt: a piece is missing.
    """
    query = (
        select(PieceRow.start, PieceRow.packed)
        .where(PieceRow.run == run, PieceRow.file == file)
        .order_by(PieceRow.start)
        .execution_options(yield_per=_AT_ONCE)
    )
    offset = 0
    with session.execute(query) as rows:  # closed too when only a part is read
        for start, packed in rows:
            if most is not None and offset >= most:
                return
            if start != offset:
                raise Corrupt(f"{run}: {file}: bytes {offset} to {start} are not in the database")
            raw = zlib.decompress(packed)
            offset += len(raw)
            yield raw if most is None or offset <= most else raw[: most - offset]


def take_record(deed: Deed, run_id: str, report: RecordReport, bearer: Bearer) -> None:
    """Keep a small record; the same bytes again change nothing.

    After the end only what the end promised is taken.

    Raises:
        NotFound: no such run.
        NotAllowed, StaleToken: see `check_bearer`.
        Rejected: bad base64, or too large.
    """
    content = _decoded(report.content_b64, "content_b64")
    if len(content) > MAX_RECORD_BYTES:
        raise Rejected(f"content_b64: a record has at most {MAX_RECORD_BYTES} bytes")
    _, run = lock_run(deed, run_id)
    check_bearer(run, bearer)
    sha256 = hashlib.sha256(content).hexdigest()
    if run.state == RunState.ENDED and promised_records(run).get(report.path) != sha256:
        return
    row = deed.session.get(RecordRow, (run_id, report.path))
    if row is None:
        row = RecordRow(run=run_id, path=report.path, sha256="", content=b"")
        deed.session.add(row)
    if row.sha256 != sha256:
        row.sha256, row.content = sha256, content


def load_records(session: Session, run: str) -> dict[str, bytes]:
    """Return path → bytes of the small records of a run."""
    rows = session.scalars(select(RecordRow).where(RecordRow.run == run))
    return {row.path: row.content for row in rows}


def promised_files(run: RunRow) -> dict[str, int]:
    """Return growing file → bytes that the end promised, the ranks' heartbeats among them."""
    heartbeats = {heartbeat_name(int(rank)): int(size) for rank, size in run.sizes.items()}
    return {**heartbeats, **(run.promised or {}).get("files", {})}


def promised_records(run: RunRow) -> dict[str, str]:
    """Return path → SHA-256 of the small records that the end promised."""
    return dict((run.promised or {}).get("records", {}))


def has_records(session: Session, run: RunRow) -> bool:
    """Say whether every promised record is here with the promised bytes."""
    query = select(RecordRow.path, RecordRow.sha256).where(RecordRow.run == run.id)
    have = {path: sha256 for path, sha256 in session.execute(query)}
    return all(have.get(path) == sha256 for path, sha256 in promised_records(run).items())


def _decoded(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Rejected(f"{where}: not base64") from error


def _packed(file: str, start: int, end: int, raw: bytes) -> Piece:
    return Piece(file=file, start=start, end=end, packed=zlib.compress(raw, _LEVEL))
