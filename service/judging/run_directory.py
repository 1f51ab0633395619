"""Writing a run's directory from the database, file by file, with the bytes that were shipped.

An end that no worker reported is written from the run's row. Logs and evidence files, on which no
verdict rests, are left out.
"""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.canonical import canonical_bytes, wire_line
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord, ModelRecord, Preflight
from gonogo.rundir import RunDir, save_json
from service.db.columns import is_by_service
from service.db.schema import PieceRow, RunRow
from service.evidence.files import load_bytes, load_records, promised_files, stored_bytes
from service.queries.runs import count_findings, load_findings

_log = logging.getLogger(__name__)


def save_run(session: Session, run: RunRow, folder: Path) -> None:
    """Write the directory of a run as far as the database holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    promised = promised_files(run)
    names = {
        *promised,
        *(name for name in stored_bytes(session, run.id) if name.endswith(".jsonl")),
    }
    if count_findings(session, run.id):
        names.add("findings.jsonl")
    for name in sorted(names):
        with (folder / name).open("wb") as stream:
            stream.writelines(_bytes_of(session, run, name, promised.get(name)))
    records = load_records(session, run.id)
    for path, content in records.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    _fill_in(run, records, RunDir(folder))


def _bytes_of(session: Session, run: RunRow, name: str, most: int | None) -> Iterable[bytes]:
    query = select(PieceRow.start).where(PieceRow.run == run.id, PieceRow.file == name)
    first = session.scalars(query.order_by(PieceRow.start).limit(1)).first()
    if first == 0:
        return load_bytes(session, run.id, name, most)
    return _findings_of(session, run.id) if name == "findings.jsonl" else ()


def _findings_of(session: Session, run: str) -> Iterator[bytes]:
    return (wire_line(finding.wire()) for finding in load_findings(session, run))


def _fill_in(run: RunRow, records: dict[str, bytes], run_dir: RunDir) -> None:
    """Write what was not shipped from what the control plane holds of it.

    An order that is not the one that was given out is no evidence: the one that was stands in its
    place. So it is with an exit record that is none.
    """
    if run.order is not None:
        given = Order.model_validate(run.order)
        shipped = _parsed(Order, records.get("order.json"))
        if shipped is None or _digestible(shipped) != _digestible(given):
            _log.error("%s: order.json is not what was ordered", run.id, extra={"action": "order"})
            save_json(run_dir.order, given.document())
    unread = _parsed(ExitRecord, records.get("exit.json")) is None
    if run.exit is not None and (is_by_service(run.exit) or unread):
        save_json(run_dir.exit, ExitRecord.model_validate(run.exit).wire())
    if run.preflight is not None and "preflight/preflight.json" not in records:
        save_json(run_dir.preflight, Preflight.model_validate(run.preflight).wire())
    if run.model is not None and "model.json" not in records:
        save_json(run_dir.model, ModelRecord.model_validate(run.model).wire())


def _digestible(order: Order) -> bytes:
    return canonical_bytes(order.document())


_Model = TypeVar("_Model", bound=BaseModel)


def _parsed(kind: type[_Model], content: bytes | None) -> _Model | None:
    try:
        return None if content is None else kind.model_validate_json(content)
    except ValidationError:
        return None
