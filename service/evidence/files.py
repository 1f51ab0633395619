"""What has arrived of a run: its growing files piece by piece, small records and logs.

A piece holds whole lines, compressed.
"""

import zlib
from collections.abc import Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import LogView
from gonogo.contract.errors import Corrupt
from service.db.schema import LogRow, OffsetRow, PieceRow, RecordRow, RunRow

_AT_ONCE = 64


def heartbeat_name(rank: int) -> str:
    """Return the name of a rank's heartbeat file."""
    return f"heartbeat_rank{rank}.jsonl"


def rank_of(name: str) -> int | None:
    """Return whose heartbeat file this is; None: none."""
    number = name.removeprefix("heartbeat_rank").removesuffix(".jsonl")
    return int(number) if number.isdigit() and heartbeat_name(int(number)) == name else None


def pack(raw: bytes) -> bytes:
    """Return bytes as a piece holds them: quickly compressed."""
    return zlib.compress(raw, 1)


def unpack(packed: bytes) -> bytes:
    """Return the bytes of a piece."""
    return zlib.decompress(packed)


def load_names(session: Session, run: str) -> list[str]:
    """Return the growing files of a run of which a piece is here, by name."""
    query = select(PieceRow.file).where(PieceRow.run == run).distinct()
    return list(session.scalars(query.order_by(PieceRow.file)))


def load_bytes(session: Session, run: str, file: str, most: int | None = None) -> Iterator[bytes]:
    """Yield a file piece by piece, up to byte `most`."""
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
            raw = unpack(packed)
            offset += len(raw)
            yield raw if most is None or offset <= most else raw[: most - offset]


def load_bytes_backwards(session: Session, run: str, file: str) -> Iterator[bytes]:
    """Yield a file's pieces, whole lines each, the newest first."""
    query = (
        select(PieceRow.packed)
        .where(PieceRow.run == run, PieceRow.file == file)
        .order_by(PieceRow.start.desc())
        .execution_options(yield_per=_AT_ONCE)
    )
    with session.scalars(query) as rows:
        for packed in rows:
            yield unpack(packed)


def load_records(session: Session, run: str) -> dict[str, bytes]:
    """Return path → bytes of the small records of a run."""
    rows = session.scalars(select(RecordRow).where(RecordRow.run == run))
    return {row.path: row.content for row in rows}


def load_digests(session: Session, run: str) -> dict[str, str]:
    """Return path → SHA-256 of the small records of a run."""
    query = select(RecordRow.path, RecordRow.sha256).where(RecordRow.run == run)
    return {path: sha256 for path, sha256 in session.execute(query)}


def promised_files(run: RunRow) -> dict[str, int]:
    """Return growing file → bytes that the end promised, the ranks' heartbeats among them."""
    heartbeats = {heartbeat_name(int(rank)): size for rank, size in run.sizes.items()}
    return {**heartbeats, **(run.promised.files if run.promised is not None else {})}


def stored_bytes(session: Session, run: str) -> dict[str, int]:
    """Return growing file → bytes of it that are in the database."""
    rows = session.scalars(select(OffsetRow).where(OffsetRow.run == run))
    return {row.file: row.bytes for row in rows}


MAX_TEXT_BYTES = 2**20


def load_log_names(session: Session, run: str) -> list[str]:
    """Return the logs of a run of which anything is here, by name."""
    query = select(LogRow.file).where(LogRow.run == run).distinct()
    return list(session.scalars(query.order_by(LogRow.file)))


def load_log(
    session: Session, run: str, rank: int | None, tail: int | None, offset: int
) -> LogView:
    """Return what is stored of a log from `offset` on, or its last `tail` lines."""
    name = "torchrun.log" if rank is None else f"rank{rank}.log"
    chunks = _chunks(session, run, name, offset, newest=bool(tail))
    text = "".join(_from(chunk, offset) for chunk in chunks)
    if tail:
        text = "".join(text.splitlines(keepends=True)[-tail:])
    first = max(chunks[0].start, offset) if chunks else offset
    return LogView(
        run=run,
        name=name,
        text=text,
        offset=first,
        next_offset=chunks[-1].end if chunks else offset,
    )


def _chunks(session: Session, run: str, name: str, offset: int, *, newest: bool) -> list[LogRow]:
    query = select(LogRow).where(LogRow.run == run, LogRow.file == name)
    query = query if newest else query.where(LogRow.end > offset)
    order = LogRow.start.desc() if newest else LogRow.start
    found: list[LogRow] = []
    size = 0
    for chunk in session.scalars(query.order_by(order).limit(1000)):
        found.append(chunk)
        size += chunk.end - chunk.start
        if size >= MAX_TEXT_BYTES:
            break
    return found[::-1] if newest else found


def _from(chunk: LogRow, offset: int) -> str:
    if offset <= chunk.start:
        return chunk.text
    return chunk.text.encode()[offset - chunk.start :].decode(errors="replace")
