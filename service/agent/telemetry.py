"""How do a run's growing files arrive? By byte offset, each line exactly once.

A stretch is taken when it begins where the last one ended; anything else changes nothing and is
answered with the offset to go on from, so a lost, doubled, late or reordered message costs nothing.
The bytes are kept as they are (`service.agent.pieces`) and read again by whoever looks on
(`service.evidence.heartbeats`); of their lines only what is newest is looked at here. Only the
run's progress row is locked: telemetry waits for nobody.
"""

from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update

from gonogo.contract.agent import (
    Command,
    CommandKind,
    LogTelemetry,
    Telemetry,
    TelemetryAck,
)
from gonogo.contract.canonical import wire_number
from gonogo.contract.errors import Corrupt
from gonogo.contract.lifecycle import RunState
from gonogo.contract.outcome import Outcome
from service.agent.claims import take_up
from service.agent.fence import Bearer, check_bearer
from service.agent.offsets import Offsets
from service.agent.pieces import Piece, store_pieces
from service.agent.run_states import freeze_identity, unfrozen
from service.agent.stretches import Newest, Stretch
from service.db.documents import Stop, is_by_service
from service.db.prepared import Prepared
from service.db.schema import ExperimentRow, LogRow, ProgressRow, RunRow
from service.db.store import Topic, ring, tables_of
from service.experiments.lifecycle import Deed, lock_run, record_event
from service.queries.runs import load_run

KEPT_LOG_BYTES = 4 * 2**20
"""Of each log file; what is older is dropped here (it stays on the host)."""

_RUNS, _EXPERIMENTS, _PROGRESS, _LOGS = (
    cast(Table, row.__table__) for row in (RunRow, ExperimentRow, ProgressRow, LogRow)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunColumns:
    """What is asked of a run to take its telemetry; the names are those of the columns."""

    id: str
    state: RunState
    token: int
    claim: str | None
    worker: str | None
    command: Stop | None
    exit: dict[str, Any] | None
    outcome: Outcome | None
    lost: bool
    suspect: bool
    judged: bool
    frozen: dict[str, Any]
    heard: int
    lines: int
    late_lines: int
    step: int
    heartbeat_at: float | None
    identity: dict[str, Any] | None


_OF_THE_RUN = (
    *("id", "state", "token", "claim", "worker", "command", "exit", "outcome"),
    *("lost", "suspect", "judged"),
)
_OF_PROGRESS = ("heard", "lines", "late_lines", "step", "heartbeat_at", "identity")
_NAMES = (*_OF_THE_RUN, *_OF_PROGRESS, "frozen")
_COLUMNS = Prepared(
    select(
        *(_RUNS.c[name] for name in _OF_THE_RUN),
        *(_PROGRESS.c[name] for name in _OF_PROGRESS),
        _EXPERIMENTS.c.frozen,
    )
    .select_from(_RUNS)
    .join(_PROGRESS, _PROGRESS.c.run == _RUNS.c.id)
    .join(_EXPERIMENTS, _EXPERIMENTS.c.id == _RUNS.c.experiment)
    .where(_RUNS.c.id == bindparam("run_id"))
    .with_for_update(of=_PROGRESS)
)
_NOTE = Prepared(update(_PROGRESS).where(_PROGRESS.c.run == bindparam("of_run")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What has become of a message."""

    ack: TelemetryAck
    flags: bool
    """Whether it changes more than progress: then `update_flags` is due."""


def take_telemetry(
    deed: Deed,
    run_id: str,
    telemetry: Telemetry,
    stretches: list[Stretch],
    pieces: list[Piece],
    bearer: Bearer,
) -> Taken:
    """Store what is new and answer what is there.

    A watcher says a few lines a second, so this speaks to the tables and not to mapped rows.

    Args:
        deed: the transaction.
        run_id: of which run it is.
        telemetry: the message.
        stretches: its heartbeats.
        pieces: its stretches of other growing files.
        bearer: who brings it.

    Raises:
        NotFound: no such run.
        NotAllowed, StaleToken: see `check_bearer`.
        Corrupt: the run has no progress row.
    """
    database = tables_of(deed.session)
    run = _load_columns(deed, database, run_id)
    if run.worker is None and bearer.token > run.token:
        take_up(deed, run_id, bearer)
        run = _load_columns(deed, database, run_id)
    check_bearer(run, bearer)
    ended = run.state == RunState.ENDED
    offsets = Offsets(database, run_id)
    note = _first_note(run, telemetry, deed.now)
    numbered: list[tuple[Piece, int | None]] = []
    lines = run.lines
    for stretch in stretches:
        if offsets.advance(f"rank{stretch.rank}", stretch.start, stretch.end):
            numbered.append((stretch.piece, lines + 1))
            lines += stretch.piece.lines or 0
            _note_progress(note, run, stretch.newest)
    for piece in pieces:
        if offsets.advance(piece.file, piece.start, piece.end):
            numbered.append((piece, None))
    store_pieces(database, run_id, numbered)
    for part in telemetry.logs:
        _store_log(database, offsets, run_id, part)
    offsets.store()
    if lines > run.lines:
        note["lines"] = lines
        if ended:
            note["late_lines"] = run.late_lines + lines - run.lines
    if ended:
        ring(deed.session, Topic.ENDED)
    _NOTE.run(database, {"of_run": run_id, **note})
    said = note.get("identity", run.identity) or {}
    return Taken(
        ack=_answer(run, offsets.have, names_files=telemetry.files is not None),
        flags=_needs_flags(run, said, telemetry.suspect),
    )


def _first_note(run: RunColumns, telemetry: Telemetry, now: float) -> dict[str, Any]:
    """Return what every message changes in the run's progress."""
    note: dict[str, Any] = {
        "heard": run.heard + 1,
        "heard_at": now,
        "backlog_lines": telemetry.backlog_lines,
    }
    if telemetry.near is not None:
        note["near"] = {name: row.wire() for name, row in telemetry.near.items()}
    return note


def _load_columns(deed: Deed, database: Connection, run_id: str) -> RunColumns:
    """Return a run, its progress locked.

    Raises:
        NotFound: no such run.
        Corrupt: the run has no progress row.
    """
    found = _COLUMNS.first(database, {"run_id": run_id})
    if found is None:
        load_run(deed.session, run_id)
        raise Corrupt("the run has no progress row")
    return RunColumns(**dict(zip(_NAMES, found, strict=True)))


def _answer(run: RunColumns, have: dict[str, int], *, names_files: bool) -> TelemetryAck:
    """Return what is here and what is asked; of files only to whom knows the word."""
    answer: dict[str, Any] = {
        "acked": {
            name.removeprefix("rank"): size
            for name, size in have.items()
            if not name.endswith((".log", ".jsonl"))
        },
        "logs": {name: size for name, size in have.items() if name.endswith(".log")},
        "command": _command_of(run),
    }
    if names_files:
        answer["files"] = {name: size for name, size in have.items() if name.endswith(".jsonl")}
    return TelemetryAck.model_construct(**answer)  # all of it is ours


def _needs_flags(run: RunColumns, said: dict[str, Any], suspect: bool) -> bool:
    """Say whether the telemetry changes more than progress (so the experiment must be locked)."""
    if run.state == RunState.ENDED:
        return run.lost and not run.judged
    return run.lost or run.suspect != suspect or bool(unfrozen(run.frozen, said))


def update_flags(deed: Deed, run_id: str, telemetry: Telemetry) -> None:
    """Show that a run is suspect, or no longer lost; freeze the code identity it reported."""
    experiment, run = lock_run(deed, run_id)
    if run.judged or run.token != telemetry.token:
        return
    if run.lost:
        run.lost = False
        record_event(deed, experiment, "run.found", run=run.id, phase=run.phase)
    if run.state == RunState.ENDED:
        return
    if run.suspect != telemetry.suspect:
        run.suspect = telemetry.suspect
        record_event(
            deed, experiment, "run.suspect", run=run.id, phase=run.phase, suspect=run.suspect
        )
    progress = deed.session.get_one(ProgressRow, run_id)
    freeze_identity(deed, experiment, run, progress.identity or {})


def _note_progress(note: dict[str, Any], run: RunColumns, said: Newest) -> None:
    """Keep the newest step, loss, speed and identity for those who look on."""
    if said.heartbeat_at is not None:
        before = note.get("heartbeat_at", run.heartbeat_at)
        note["heartbeat_at"] = max(before or 0.0, said.heartbeat_at)
    if said.identity is not None:
        note["identity"] = said.identity
    if said.loss is not None:
        note["loss"] = str(wire_number(said.loss))
        note["toks_per_s"] = said.toks_per_s
    if said.step is not None:
        note["step"] = max(note.get("step", run.step), said.step)


def _store_log(database: Connection, offsets: Offsets, run: str, part: LogTelemetry) -> None:
    """Store a stretch of a log; a gap before it (a skipped part) is allowed, an overlap is not."""
    if part.start < offsets.have.get(part.name, 0) or part.end <= part.start:
        return
    offsets.skip_to(part.name, part.end)
    row = {"run": run, "file": part.name, "start": part.start, "end": part.end}
    database.execute(insert(_LOGS), {**row, "text": part.text.replace("\x00", "\ufffd")})
    old = part.end - KEPT_LOG_BYTES
    if old > 0:
        logs = _LOGS.c
        database.execute(
            delete(_LOGS).where(logs.run == run, logs.file == part.name, logs.end < old)
        )


def _command_of(run: RunColumns) -> Command | None:
    """Return what the watcher is told; one whose attempt was declared dead must stop."""
    if run.state == RunState.ENDED:
        if is_by_service(run.exit):
            text = run.outcome.text if run.outcome is not None else ""
            return Command(kind=CommandKind.SUPERSEDE, reason=text)
        return None
    stop = run.command
    if stop is None:
        return None
    words = ("asked again, to end at once" if stop.again else "", stop.reason)
    return Command(
        kind=CommandKind(stop.kind),
        reason=": ".join(filter(None, words)),
        actor=stop.actor,
        again=stop.again,
    )
