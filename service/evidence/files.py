"""What has arrived of a run: its growing files piece by piece, heartbeats, small records and logs.

A piece holds whole lines, compressed. Lines that are no heartbeat are passed over.
"""

import re
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import LogView
from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.timeline.lines import read_line
from gonogo.timeline.rank_steps import RankSteps
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
    text = "".join(
        chunk.text
        if offset <= chunk.start
        else chunk.text.encode()[offset - chunk.start :].decode(errors="replace")
        for chunk in chunks
    )
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


MAX_BOOT_CHARS = 256
_MSG = re.compile(r'"msg"\s*:\s*"(\w+)"')
_AT_ONCE = 64
STEP_LINES = frozenset(
    {Msg.BOOT, Msg.LOADER_READY, Msg.STEP_START, Msg.PROGRESS, Msg.STEP_END, Msg.EVAL, Msg.DONE}
)


def msg_on(text: str) -> str:
    """Return the message that a line seems to carry, without reading the rest of it."""
    found = _MSG.search(text)
    return found.group(1) if found else ""


def beat_on(text: str, rank: int) -> Heartbeat | None:
    """Return the heartbeat of this rank on a line, or None."""
    line = read_line(text.encode("utf-8", "replace"), rank)
    if line is None or not 0 < len(line.beat.boot) <= MAX_BOOT_CHARS or "\x00" in line.beat.boot:
        return None
    return line.beat


def load_ranks(session: Session, run: str) -> list[int]:
    """Return the ranks of which anything is here."""
    names = load_names(session, run)
    return sorted(rank for name in names if (rank := rank_of(name)) is not None)


def load_lines(session: Session, run: str, rank: int) -> Iterator[str]:
    """Yield a rank's lines."""
    return (text for text, _ in load_lines_after(session, run, rank, 0))


def load_newest_lines(session: Session, run: str, rank: int) -> Iterator[str]:
    """Yield a rank's lines, newest first; only as many pieces are read as are needed."""
    for piece in load_bytes_backwards(session, run, heartbeat_name(rank)):
        yield from reversed(piece.decode(errors="replace").split("\n")[:-1])


def load_steps(
    session: Session,
    run: str,
    rank: int,
    msgs: Collection[Msg] = STEP_LINES,
    having: str = "",
) -> RankSteps:
    """Return a rank's steps from its lines of these messages that hold the text `having`."""
    lines = (text for text in load_lines(session, run, rank) if having in text)
    return RankSteps(_beats(lines, rank, msgs))


def load_run_steps(session: Session, run: str) -> dict[int, RankSteps]:
    """Return rank → its steps, of every rank of which anything is here."""
    ranks = {rank: load_steps(session, run, rank) for rank in load_ranks(session, run)}
    return {rank: steps for rank, steps in ranks.items() if steps.boots}


def load_lines_after(
    session: Session, run: str, rank: int, after: int
) -> Iterator[tuple[str, int]]:
    """Yield a rank's lines from a byte of its file on, each with the byte at which it ends."""
    query = (
        select(PieceRow.start, PieceRow.packed)
        .where(PieceRow.run == run, PieceRow.file == heartbeat_name(rank), PieceRow.end > after)
        .order_by(PieceRow.start)
        .execution_options(yield_per=_AT_ONCE)
    )
    with session.execute(query) as rows:
        for start, packed in rows:
            raw, place = unpack(packed)[max(0, after - start) :], max(start, after)
            for line in raw.split(b"\n")[:-1]:
                place += len(line) + 1
                yield line.decode(errors="replace"), place


def _beats(lines: Iterable[str], rank: int, msgs: Collection[Msg]) -> Iterator[Heartbeat]:
    for text in lines:
        beat = beat_on(text, rank) if msg_on(text) in msgs else None
        if beat is not None and beat.msg in msgs:
            yield beat


def load_heartbeats(
    session: Session, run: str, rank: int | None, after: int, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return lines that came after number `after`, and the number to continue from; None: no more.

    `n` numbers a run's lines as they arrived.
    """
    query = (
        select(PieceRow.file, PieceRow.start, PieceRow.n, PieceRow.packed)
        .where(PieceRow.run == run, PieceRow.n + PieceRow.lines > after + 1)
        .order_by(PieceRow.n)
        .execution_options(yield_per=_AT_ONCE)
    )
    if rank is not None:
        query = query.where(PieceRow.file == heartbeat_name(rank))
    found: list[dict[str, Any]] = []
    seen: set[tuple[int, str, int]] = set()
    with session.execute(query) as pieces:
        for file, start, n, packed in pieces:
            first = n or 0
            lines = unpack(packed).decode(errors="replace").split("\n")[:-1]
            for place, text in enumerate(lines):
                row = _view(text, rank_of(file) or 0, first + place, start + place)
                key = (row["rank"], row["boot"], row["seq"])
                if row["n"] <= after or key in seen:
                    seen.add(key)
                    continue
                if len(found) == limit:
                    return found, str(found[-1]["n"])
                seen.add(key)
                found.append(row)
    return found, None


def _view(text: str, rank: int, n: int, place: int) -> dict[str, Any]:
    """Return a line as REST shows it; one that is no heartbeat has boot ''."""
    beat = beat_on(text, rank)
    return {
        "n": n,
        "rank": rank,
        "boot": beat.boot if beat else "",
        "seq": beat.seq if beat else place,
        "step": beat.step if beat else 0,
        "msg": beat.msg[:64] if beat else "",
        "line": text.replace("\x00", "\ufffd"),
    }
