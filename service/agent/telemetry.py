"""Growing files and log tails of a run, taken in by byte offset: each byte exactly once.

A stretch is taken when it begins where the last one ended. Anything else changes nothing and is
answered with the offset to continue from. So a lost, doubled, late or reordered message is
harmless. Only the newest lines are read here, and only the run's progress row is locked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from gonogo.contract.canonical import wire_number
from gonogo.contract.errors import Rejected
from gonogo.contract.heartbeat import Msg
from gonogo.contract.lifecycle import RunState
from gonogo.contract.worker_messages import (
    MAX_STREAM_BYTES,
    Command,
    CommandKind,
    LogTelemetry,
    RankTelemetry,
    StreamTelemetry,
    Telemetry,
    TelemetryAck,
)
from service.agent.claims import Bearer, check_bearer
from service.agent.reports import decoded, freeze_identity, unfrozen
from service.db.columns import is_by_service
from service.db.schema import ExperimentRow, LogRow, OffsetRow, PieceRow, ProgressRow, RunRow
from service.db.store import Topic, ring
from service.evidence.files import beat_on, heartbeat_name, msg_on, pack, rank_of
from service.experiments.lifecycle import Deed, lock_run, record_event
from service.queries.runs import load_run

KEPT_LOG_BYTES = 4 * 2**20
"""Bytes that are kept of each log file; the rest stays on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of a growing file, compressed."""

    file: str
    start: int
    end: int
    packed: bytes
    lines: int | None = None
    """Number of heartbeats; None for other files."""
    newest: dict[str, Any] = field(default_factory=dict)


def parse_telemetry(telemetry: Telemetry) -> list[Stretch]:
    """Return the stretches of a message, compressed; call it outside of transactions."""
    heartbeats = [_heartbeats(part) for part in telemetry.ranks]
    return [*heartbeats, *(_stream(part) for part in telemetry.files or ())]


def _heartbeats(part: RankTelemetry) -> Stretch:
    if part.raw_b64 is None:
        raw = "".join(f"{line}\n" for line in part.lines).encode(errors="replace")
    else:
        raw = decoded(part.raw_b64, "raw_b64")
        if len(raw) != part.end - part.start:
            raise Rejected("raw_b64: not as many bytes as the stretch has")
    return Stretch(
        file=heartbeat_name(part.rank),
        start=part.start,
        end=part.end,
        packed=pack(raw),
        lines=raw.count(b"\n"),
        newest=newest_of(part.rank, part.lines),
    )


def _stream(part: StreamTelemetry) -> Stretch:
    raw = decoded(part.content_b64, "content_b64")
    if len(raw) > MAX_STREAM_BYTES:
        raise Rejected(f"files: at most {MAX_STREAM_BYTES} bytes of a file at once")
    end = part.start + len(raw)
    return Stretch(file=part.name, start=part.start, end=end, packed=pack(raw))


def newest_of(rank: int, lines: Sequence[str]) -> dict[str, Any]:
    """Return what lines of a rank say last, by column of `ProgressRow`; most are not parsed."""
    said: dict[str, Any] = {}
    for text in reversed(lines):
        msg = msg_on(text)
        wanted = ("heartbeat_at" not in said) or (
            (msg in (Msg.STEP_END, Msg.PROGRESS) and "step" not in said)
            or (rank == 0 and msg == Msg.PROGRESS and "loss" not in said)
            or (rank == 0 and msg == Msg.BOOT and "identity" not in said)
        )
        beat = beat_on(text, rank) if wanted else None
        if beat is None:
            continue
        said["heartbeat_at"] = max(said.get("heartbeat_at", 0.0), beat.ts)
        unnamed = beat.section is None and beat.section_seq == 0  # then progress ends its step
        if beat.msg == Msg.STEP_END or (beat.msg == Msg.PROGRESS and unnamed):
            said["step"] = max(said.get("step", 0), beat.step)
        if rank == 0 and beat.msg == Msg.BOOT:
            said.setdefault("identity", beat.identity().wire())
        if rank == 0 and beat.msg == Msg.PROGRESS and beat.loss is not None and "loss" not in said:
            said |= {"loss": str(wire_number(beat.loss)), "toks_per_s": beat.toks_per_s}
    return said


def take_telemetry(
    deed: Deed, run_id: str, telemetry: Telemetry, stretches: Sequence[Stretch], bearer: Bearer
) -> tuple[TelemetryAck, bool]:
    """Store what is new; return what is there, and whether `update_flags` is due."""
    session = deed.session
    run = load_run(session, run_id)
    check_bearer(run, bearer)
    progress = session.get_one(ProgressRow, run_id, with_for_update=True, populate_existing=True)
    progress.heard += 1
    progress.heard_at = deed.now
    if telemetry.near is not None:
        progress.near = {name: row.wire() for name, row in telemetry.near.items()}
    query = select(OffsetRow).where(OffsetRow.run == run_id)
    offsets = {row.file: row for row in session.scalars(query)}
    for stretch in stretches:
        at = offsets[stretch.file].bytes if stretch.file in offsets else 0
        if stretch.start != at or stretch.end <= at:
            continue
        _move(session, offsets, run_id, stretch.file, stretch.end)
        session.add(
            PieceRow(
                run=run_id,
                file=stretch.file,
                start=stretch.start,
                end=stretch.end,
                packed=stretch.packed,
                n=None if stretch.lines is None else progress.lines + 1,
                lines=stretch.lines,
            )
        )
        progress.lines += stretch.lines or 0
        _show(progress, dict(stretch.newest))
    for part in telemetry.logs:
        _store_log(session, offsets, run_id, part)
    if run.state == RunState.ENDED:
        ring(session, Topic.ENDED)
    have = {file: row.bytes for file, row in offsets.items()}
    return _answer(run, have), _needs_flags(session, run, progress, telemetry.suspect)


def _move(session: Session, offsets: dict[str, OffsetRow], run: str, file: str, end: int) -> None:
    row = offsets.get(file)
    if row is None:
        row = offsets[file] = OffsetRow(run=run, file=file, bytes=end)
        session.add(row)
    row.bytes = end


def _show(progress: ProgressRow, said: dict[str, Any]) -> None:
    """Keep the newest step, loss, speed and identity for pages and metrics."""
    progress.heartbeat_at = max(progress.heartbeat_at or 0.0, said.pop("heartbeat_at", 0.0)) or None
    progress.step = max(progress.step, said.pop("step", 0))
    for name, value in said.items():
        setattr(progress, name, value)


def _store_log(
    session: Session, offsets: dict[str, OffsetRow], run: str, part: LogTelemetry
) -> None:
    """Store a stretch of a log; a gap before it is allowed, an overlap is not."""
    at = offsets[part.name].bytes if part.name in offsets else 0
    if part.start < at or part.end <= part.start:
        return
    _move(session, offsets, run, part.name, part.end)
    text = part.text.replace("\x00", "\ufffd")
    session.add(LogRow(run=run, file=part.name, start=part.start, end=part.end, text=text))
    old = part.end - KEPT_LOG_BYTES
    if old > 0:
        mine = (LogRow.run == run, LogRow.file == part.name, LogRow.end < old)
        session.execute(delete(LogRow).where(*mine))


def _answer(run: RunRow, have: dict[str, int]) -> TelemetryAck:
    grown = {name: size for name, size in have.items() if name.endswith(".jsonl")}
    ranks = {name: rank for name in grown if (rank := rank_of(name)) is not None}
    return TelemetryAck(
        acked={str(rank): grown[name] for name, rank in ranks.items()},
        logs={name: size for name, size in have.items() if name not in grown},
        files={name: size for name, size in grown.items() if name not in ranks},
        command=_command_of(run),
    )


def _command_of(run: RunRow) -> Command | None:
    """Return what the watcher is asked; an attempt that was declared dead must stop."""
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


def _needs_flags(session: Session, run: RunRow, progress: ProgressRow, suspect: bool) -> bool:
    if run.state == RunState.ENDED:
        return run.lost and not run.judged
    if run.lost or run.suspect != suspect:
        return True
    query = select(ExperimentRow.frozen).where(ExperimentRow.id == run.experiment)
    return bool(unfrozen(session.scalars(query).one(), progress.identity or {}))


def update_flags(deed: Deed, run_id: str, telemetry: Telemetry) -> None:
    """Show that a run is suspect, or no longer lost; freeze the code identity it reported."""
    experiment, run = lock_run(deed, run_id)
    if run.judged or run.token != telemetry.token:
        return
    if run.lost:
        run.lost = False
        record_event(deed, experiment, "run.found", run=run)
    if run.state == RunState.ENDED:
        return
    if run.suspect != telemetry.suspect:
        run.suspect = telemetry.suspect
        record_event(deed, experiment, "run.suspect", run=run, suspect=run.suspect)
    progress = deed.session.get_one(ProgressRow, run_id)
    freeze_identity(deed, experiment, run, progress.identity or {})
