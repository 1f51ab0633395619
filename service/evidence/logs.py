"""The logs of a run: the tail that telemetry sent, by byte offset or by lines."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import LogView
from service.db.schema import LogRow

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
    chunks = _newest_chunks(session, run, name) if tail else _chunks(session, run, name, offset)
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


def _chunks(session: Session, run: str, name: str, offset: int) -> list[LogRow]:
    query = select(LogRow).where(LogRow.run == run, LogRow.file == name, LogRow.end > offset)
    found: list[LogRow] = []
    size = 0
    for chunk in session.scalars(query.order_by(LogRow.start).limit(1000)):
        found.append(chunk)
        size += chunk.end - chunk.start
        if size >= MAX_TEXT_BYTES:
            break
    return found


def _newest_chunks(session: Session, run: str, name: str) -> list[LogRow]:
    query = select(LogRow).where(LogRow.run == run, LogRow.file == name)
    found: list[LogRow] = []
    size = 0
    for chunk in session.scalars(query.order_by(LogRow.start.desc()).limit(1000)):
        found.append(chunk)
        size += chunk.end - chunk.start
        if size >= MAX_TEXT_BYTES:
            break
    return found[::-1]


def _from(chunk: LogRow, offset: int) -> str:
    """Return the text of a chunk from a byte of the file on."""
    if offset <= chunk.start:
        return chunk.text
    return chunk.text.encode()[offset - chunk.start :].decode(errors="replace")
