"""Writing a run's directory from the database, file by file, with the bytes that were shipped.

An end that no worker reported is written from the run's row. Logs and evidence files, on which no
verdict rests, are left out.
"""

import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.agent import STREAM_NAME
from gonogo.contract.canonical import canonical_bytes, wire_line
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord, ModelRecord, Preflight
from gonogo.rundir import RunDir, save_json
from service.db.documents import is_by_service
from service.db.schema import OffsetRow, PieceRow, RunRow
from service.evidence.files import load_bytes, load_records, promised_files
from service.queries.runs import count_findings, load_findings

_STREAM = re.compile(STREAM_NAME)
_log = logging.getLogger(__name__)


def save_run(session: Session, run: RunRow, folder: Path) -> None:
    """Write the directory of a run as far as the database holds it.

    Raises:
        Corrupt: a piece of a file is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    promised = promised_files(run)
    for name in sorted({*promised, *_known_files(session, run.id)}):
        _save_file(folder / name, _bytes_of(session, run, name, promised.get(name)))
    records = load_records(session, run.id)
    for path, content in records.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    _fill_in(run, records, RunDir(folder))


def _known_files(session: Session, run: str) -> Iterator[str]:
    """Yield the growing files of which anything is here."""
    query = select(OffsetRow.file).where(OffsetRow.run == run)
    for name in session.scalars(query).all():
        if _STREAM.fullmatch(name):
            yield name
        elif "." not in name:
            yield f"heartbeat_{name}.jsonl"
    if count_findings(session, run):
        yield "findings.jsonl"


def _bytes_of(session: Session, run: RunRow, name: str, most: int | None) -> Iterable[bytes]:
    query = select(PieceRow.start).where(PieceRow.run == run.id, PieceRow.file == name)
    first = session.scalars(query.order_by(PieceRow.start).limit(1)).first()
    if first == 0:
        return load_bytes(session, run.id, name, most)
    return _findings_of(session, run.id) if name == "findings.jsonl" else ()


def _findings_of(session: Session, run: str) -> Iterator[bytes]:
    for finding in load_findings(session, run):
        yield wire_line(finding.wire())


def _save_file(path: Path, pieces: Iterable[bytes]) -> None:
    with path.open("wb") as stream:
        for piece in pieces:
            stream.write(piece)


def _fill_in(run: RunRow, records: dict[str, bytes], run_dir: RunDir) -> None:
    """Write what was not shipped from what the control plane holds of it.

    An order that is not the one that was given out is no evidence: the one that was stands in its
    place, and everything that names the other by its digest does not fit it. So it is with an exit
    record that is none.
    """
    if run.order is not None:
        given = Order.model_validate(run.order)
        if not _is_order(records.get("order.json"), given):
            save_json(run_dir.order, given.document())
    if run.exit is not None and (is_by_service(run.exit) or not _is_exit(records.get("exit.json"))):
        save_json(run_dir.exit, ExitRecord.model_validate(run.exit).wire())
    if run.preflight is not None and "preflight/preflight.json" not in records:
        save_json(run_dir.preflight, Preflight.model_validate(run.preflight).wire())
    if run.model is not None and "model.json" not in records:
        save_json(run_dir.model, ModelRecord.model_validate(run.model).wire())


def _is_exit(content: bytes | None) -> bool:
    if content is None:
        return False
    try:
        ExitRecord.model_validate_json(content)
    except ValidationError:
        return False
    return True


def _is_order(content: bytes | None, given: Order) -> bool:
    if content is None:
        return False
    try:
        found = Order.model_validate_json(content)
    except ValidationError:
        found = None
    same = found is not None and (
        canonical_bytes(found.document()) == canonical_bytes(given.document())
    )
    if not same:
        _log.error("%s: order.json is not what was ordered", given.run, extra={"action": "order"})
    return same
