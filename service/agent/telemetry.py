"""How do a run's growing files arrive? By byte offset, each line exactly once.

A stretch is taken when it begins where the last one ended; anything else changes nothing and is
answered with the offset to go on from, so a lost, doubled, late or reordered message costs nothing.
The bytes are kept as they are (`service.agent.pieces`), and heartbeats also as lines for those who
look on, keyed (run, rank, boot, seq); one that is no heartbeat is kept under the empty boot. Only
the run's progress row is locked: telemetry waits for nobody.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from gonogo.contract.agent import (
    Command,
    CommandKind,
    LogTelemetry,
    RankTelemetry,
    Telemetry,
    TelemetryAck,
)
from gonogo.contract.canonical import wire_number
from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import Heartbeat, Msg, parse_heartbeat
from gonogo.contract.lifecycle import RunState
from gonogo.planning.resolve import FROZEN
from service.agent.fence import Bearer, check_bearer
from service.agent.pieces import Piece, pack_heartbeats, store_piece
from service.agent.run_states import freeze_identity
from service.db.insert import insert_all_new
from service.db.schema import HeartbeatRow, LogRow, OffsetRow, ProgressRow, RunRow
from service.experiments.lifecycle import Deed, load_run, lock_run, record_event

MAX_BOOT_CHARS = 256
KEPT_LOG_BYTES = 4 * 2**20
"""Of each log file; what is older is dropped here (it stays on the host)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line that arrived: as it stands, and as a heartbeat when it is one."""

    rank: int
    place: int
    """Key of a line that is no heartbeat: where its stretch began, plus its number there."""
    text: str
    beat: Heartbeat | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A parsed stretch of one rank's file."""

    rank: int
    start: int
    end: int
    lines: list[Line]
    piece: Piece


def parse_stretches(ranks: Iterable[RankTelemetry]) -> list[Stretch]:
    """Return the stretches with their lines parsed (no database: do it outside a transaction).

    Raises:
        Rejected: raw bytes that are not those of their stretch.
    """
    return [
        Stretch(
            rank=part.rank,
            start=part.start,
            end=part.end,
            lines=[
                Line(rank=part.rank, place=part.start + n, text=text, beat=_beat(part.rank, text))
                for n, text in enumerate(part.lines)
            ],
            piece=pack_heartbeats(part),
        )
        for part in ranks
    ]


def _beat(rank: int, text: str) -> Heartbeat | None:
    """Return the heartbeat of this rank on a line, or None."""
    try:
        beat = parse_heartbeat(text.encode("utf-8", "replace"))
    except Corrupt:
        return None
    fits = beat.rank == rank and 0 < len(beat.boot) <= MAX_BOOT_CHARS and "\x00" not in beat.boot
    return beat if fits else None


def take_telemetry(
    deed: Deed,
    run_id: str,
    telemetry: Telemetry,
    stretches: list[Stretch],
    pieces: list[Piece],
    bearer: Bearer,
) -> TelemetryAck:
    """Store what is new and answer what is there.

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
    session = deed.session
    query = select(ProgressRow).where(ProgressRow.run == run_id).with_for_update()
    progress = session.scalars(query.execution_options(populate_existing=True)).first()
    run = load_run(session, run_id)
    check_bearer(run, bearer)
    if progress is None:
        raise Corrupt("the run has no progress row")
    offsets = {
        row.file: row for row in session.scalars(select(OffsetRow).where(OffsetRow.run == run_id))
    }
    for stretch in stretches:
        if _advance(session, offsets, run_id, f"rank{stretch.rank}", stretch.start, stretch.end):
            store_piece(session, run_id, stretch.piece)
            _store_lines(session, progress, stretch.lines)
            _note_progress(progress, stretch.lines)
            if run.state == RunState.ENDED:
                progress.late_lines += len(stretch.lines)
    for piece in pieces:
        if _advance(session, offsets, run_id, piece.file, piece.start, piece.end):
            store_piece(session, run_id, piece)
    for part in telemetry.logs:
        _store_log(session, offsets, run_id, part)
    progress.heard += 1
    progress.heard_at = deed.now
    progress.backlog_lines = telemetry.backlog_lines
    have = {name: row.bytes for name, row in offsets.items()}
    answer: dict[str, Any] = {
        "acked": {
            name.removeprefix("rank"): size
            for name, size in have.items()
            if not name.endswith((".log", ".jsonl"))
        },
        "logs": {name: size for name, size in have.items() if name.endswith(".log")},
        "command": _command_of(run),
    }
    if telemetry.files is not None:  # else the sender does not know the word
        answer["files"] = {name: size for name, size in have.items() if name.endswith(".jsonl")}
    return TelemetryAck(**answer)


def needs_flags(run: RunRow, progress: ProgressRow, telemetry: Telemetry, frozen: bool) -> bool:
    """Say whether the telemetry changes more than progress (so the experiment must be locked)."""
    if run.state == RunState.ENDED:
        return run.lost and not run.judged
    said = progress.identity or {}
    fresh = not frozen and any(said.get(name) for name in FROZEN)
    return run.lost or run.suspect != telemetry.suspect or fresh


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


def _advance(
    session: Session, offsets: dict[str, OffsetRow], run: str, file: str, start: int, end: int
) -> bool:
    """Move a file's offset from `start` to `end`; False when it does not stand at `start`."""
    row = offsets.get(file)
    if start != (row.bytes if row else 0) or end <= start:
        return False
    if row is None:
        row = offsets[file] = OffsetRow(run=run, file=file, bytes=end)
        session.add(row)
    row.bytes = end
    return True


def _store_lines(session: Session, progress: ProgressRow, lines: list[Line]) -> None:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=progress.lines + 1):
        beat = line.beat
        rows.append(
            {
                "run": progress.run,
                "rank": line.rank,
                "boot": beat.boot if beat else "",
                "seq": beat.seq if beat else line.place,
                "n": number,
                "step": beat.step if beat else 0,
                "msg": beat.msg.replace("\x00", "\ufffd")[:64] if beat else "",
                "line": line.text.replace("\x00", "\ufffd"),
            }
        )
    insert_all_new(session, HeartbeatRow, rows)
    progress.lines += len(rows)


def _note_progress(progress: ProgressRow, lines: list[Line]) -> None:
    """Keep the newest step, loss, speed and identity for those who look on."""
    for line in lines:
        beat = line.beat
        if beat is None:
            continue
        progress.heartbeat_at = max(progress.heartbeat_at or 0.0, beat.ts)
        if beat.msg == Msg.BOOT and line.rank == 0:
            progress.identity = beat.identity().wire()
        if beat.msg == Msg.PROGRESS and line.rank == 0 and beat.loss is not None:
            progress.loss = str(wire_number(beat.loss))
            progress.toks_per_s = beat.toks_per_s
        unnamed = beat.section is None and beat.section_seq == 0  # then progress ends its step
        if beat.msg == Msg.STEP_END or (beat.msg == Msg.PROGRESS and unnamed):
            progress.step = max(progress.step, beat.step)


def _store_log(
    session: Session, offsets: dict[str, OffsetRow], run: str, part: LogTelemetry
) -> None:
    """Store a stretch of a log; a gap before it (a skipped part) is allowed, an overlap is not."""
    row = offsets.get(part.name)
    have = row.bytes if row else 0
    if part.start < have or part.end <= part.start:
        return
    if row is None:
        row = offsets[part.name] = OffsetRow(run=run, file=part.name, bytes=0)
        session.add(row)
    row.bytes = part.end
    session.add(
        LogRow(
            run=run,
            file=part.name,
            start=part.start,
            end=part.end,
            text=part.text.replace("\x00", "\ufffd"),
        )
    )
    old = part.end - KEPT_LOG_BYTES
    session.execute(
        delete(LogRow).where(LogRow.run == run, LogRow.file == part.name, LogRow.end < old)
    )


def _command_of(run: RunRow) -> Command | None:
    """Return what the watcher is told; one whose attempt was declared dead must stop."""
    if run.state == RunState.ENDED:
        if (run.exit or {}).get("by_service"):
            text = str((run.outcome or {}).get("text", ""))
            return Command(kind=CommandKind.SUPERSEDE, reason=text)
        return None
    return Command.model_validate(run.command) if run.command else None


def stored_bytes(session: Session, run: str) -> dict[str, int]:
    """Return growing file → bytes of it that are in the database."""
    rows = session.scalars(select(OffsetRow).where(OffsetRow.run == run))
    return {
        row.file if "." in row.file else f"heartbeat_{row.file}.jsonl": row.bytes for row in rows
    }


def count_lines(session: Session, run: str) -> int:
    """Return how many different lines of a run are stored."""
    query = select(func.count()).select_from(HeartbeatRow).where(HeartbeatRow.run == run)
    return session.scalars(query).one()
