"""Tables of what has arrived of a run."""

from sqlalchemy import BigInteger, Boolean, ForeignKey, Integer, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from gonogo.contract.finding import Severity
from service.db.columns import OneOf
from service.db.schema.table import Table


class OffsetRow(Table):
    """Up to which byte a file of a run is in the database: `rank0`, `torchrun.log`, …"""

    __tablename__ = "offsets"
    run: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    file: Mapped[str] = mapped_column(String(64), primary_key=True)
    bytes: Mapped[int] = mapped_column(BigInteger)


class PieceRow(Table):
    """A stretch of a growing file of a run, byte by byte, so that the file can be had again."""

    __tablename__ = "pieces"
    run: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    file: Mapped[str] = mapped_column(String(64), primary_key=True)
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    end: Mapped[int] = mapped_column(BigInteger)
    packed: Mapped[bytes] = mapped_column(LargeBinary)
    """Its bytes, compressed (`service.evidence.files`)."""
    n: Mapped[int | None] = mapped_column(BigInteger)
    """For heartbeats: number of its first line within the run, in the order of arrival, from 1."""
    lines: Mapped[int | None] = mapped_column(Integer)
    """For heartbeats: how many lines it holds."""


class RecordRow(Table):
    """A small record of a run (order.json, exit.json, …) as the bytes that it is."""

    __tablename__ = "records"
    run: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    path: Mapped[str] = mapped_column(String(64), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64))
    content: Mapped[bytes] = mapped_column(LargeBinary)


class LogRow(Table):
    """A stretch of a log file."""

    __tablename__ = "logs"
    run: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    file: Mapped[str] = mapped_column(String(64), primary_key=True)
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    end: Mapped[int] = mapped_column(BigInteger)
    text: Mapped[str] = mapped_column(Text)


class FindingRow(Table):
    """One finding of a run, in the order of its file."""

    __tablename__ = "findings"
    run: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    n: Mapped[int] = mapped_column(Integer)
    severity: Mapped[Severity] = mapped_column(OneOf(Severity, 10))
    document: Mapped[str] = mapped_column(Text)


class EvidenceRow(Table):
    """One uploaded file of evidence."""

    __tablename__ = "evidence"
    run: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    path: Mapped[str] = mapped_column(String(400), primary_key=True)
    size: Mapped[int] = mapped_column("bytes", BigInteger)
    truncated: Mapped[bool] = mapped_column(Boolean)
    content: Mapped[bytes] = mapped_column(LargeBinary)
