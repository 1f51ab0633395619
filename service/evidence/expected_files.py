"""The files of a run that are here, and those that its end promised."""

import re

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.agent import STREAM_NAME
from gonogo.contract.tick import parse_rank
from service.db.schema import OffsetRow, RecordRow, RunRow
from service.evidence.files import heartbeat_name

_STREAM = re.compile(STREAM_NAME)


def load_records(session: Session, run: str) -> dict[str, bytes]:
    """Return path → bytes of the small records of a run."""
    rows = session.scalars(select(RecordRow).where(RecordRow.run == run))
    return {row.path: row.content for row in rows}


def load_digests(session: Session, run: str) -> dict[str, str]:
    """Return path → SHA-256 of the small records of a run."""
    query = select(RecordRow.path, RecordRow.sha256).where(RecordRow.run == run)
    return {path: sha256 for path, sha256 in session.execute(query)}


def promised_files(run: RunRow) -> dict[str, int]:
    """Return growing file → bytes that the end promised, the ranks' heartbeats among them.

    Names that no such file has are none: files are written under these, and a run that promised
    them (before messages were held against the list) keeps no other from being judged.
    """
    ranks = {parse_rank(name): size for name, size in run.sizes.items()}
    heartbeats = {heartbeat_name(rank): size for rank, size in ranks.items() if rank is not None}
    streams = run.promised.files if run.promised is not None else {}
    known = {name: size for name, size in streams.items() if _STREAM.fullmatch(name)}
    return {**heartbeats, **known}


def promised_records(run: RunRow) -> dict[str, str]:
    """Return path → SHA-256 of the small records that the end promised."""
    return dict(run.promised.records) if run.promised is not None else {}


def has_records(session: Session, run: RunRow) -> bool:
    """Say whether every promised record is here with the promised bytes."""
    have = load_digests(session, run.id)
    return all(have.get(path) == sha256 for path, sha256 in promised_records(run).items())


def stored_bytes(session: Session, run: str) -> dict[str, int]:
    """Return growing file → bytes of it that are in the database."""
    rows = session.scalars(select(OffsetRow).where(OffsetRow.run == run))
    return {
        row.file if "." in row.file else f"heartbeat_{row.file}.jsonl": row.bytes for row in rows
    }
