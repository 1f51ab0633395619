"""The bytes of a run's growing files, piece by piece.

A piece holds whole lines. It is compressed by zlib, and by bzip2 in large blocks once its run has
been judged (`service.conductor.run_archive`).
"""

import bz2
import zlib
from collections.abc import Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.errors import Corrupt
from service.db.schema import PieceRow

_AT_ONCE = 64
_QUICK = 1
_WINDOW_BITS = 12
_WINDOW = 2**_WINDOW_BITS
"""A stretch of so many bytes needs no larger window, and a tenth of the time that one takes."""
_SMALL_TABLES = 5
_BZIP2 = b"BZh"


def heartbeat_name(rank: int) -> str:
    """Return the name of a rank's heartbeat file."""
    return f"heartbeat_rank{rank}.jsonl"


def rank_of(name: str) -> int | None:
    """Return whose heartbeat file this is; None: none."""
    number = name.removeprefix("heartbeat_rank").removesuffix(".jsonl")
    return int(number) if number.isdigit() and heartbeat_name(int(number)) == name else None


def pack(raw: bytes) -> bytes:
    """Return bytes as a piece holds them that has just arrived: quickly compressed."""
    if len(raw) > _WINDOW:
        return zlib.compress(raw, _QUICK)
    packing = zlib.compressobj(_QUICK, wbits=_WINDOW_BITS, memLevel=_SMALL_TABLES)
    return packing.compress(raw) + packing.flush()


def pack_tight(raw: bytes) -> bytes:
    """Return bytes as a piece holds them that nothing is added to any more."""
    return bz2.compress(raw)


def unpack(packed: bytes) -> bytes:
    """Return the bytes of a piece."""
    return bz2.decompress(packed) if packed.startswith(_BZIP2) else zlib.decompress(packed)


def load_names(session: Session, run: str) -> list[str]:
    """Return the growing files of a run of which a piece is here, by name."""
    query = select(PieceRow.file).where(PieceRow.run == run).distinct()
    return list(session.scalars(query.order_by(PieceRow.file)))


def load_bytes(session: Session, run: str, file: str, most: int | None = None) -> Iterator[bytes]:
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
