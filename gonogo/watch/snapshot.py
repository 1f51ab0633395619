"""What is a small picture of the watch? For exporters, evidence and the halt protocol.

A rank moves while it lives and its step advances within the limit of suspicion; `.HALT` can only
reach ranks that move.
"""

from dataclasses import dataclass

from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS
from gonogo.contract.tick import ProcessState
from gonogo.timeline.rank import RankStream
from gonogo.watch.progress import stay_of
from gonogo.watch.view import View
from gonogo.watch.watch_state import WatchState


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSnapshot:
    """One rank at a glance."""

    rank: int
    pid: int | None
    boot: str | None
    msg: str | None
    step: int
    completed: int
    """Highest step that ended."""
    section: str | None
    section_seq: int
    collective_seq: int
    heard_mono: float
    """Receipt of its last line, on the watcher's clock."""
    heard_ts: float
    """The last line's own time, in Unix seconds."""
    advanced_ts: float | None
    """Unix seconds of the last line that advanced the step."""
    median_step_s: float | None
    last_step_s: float | None
    loss: float | None
    grad_norm: float | None
    toks_per_s: float | None
    """As the rank says; see `Snapshot.toks_per_s` for what was recomputed."""
    lines: int
    duplicates: int
    gaps: int
    stale: int
    unreadable: int
    state: ProcessState
    done: bool
    halt_seen: bool
    moving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The run at a glance."""

    ranks: dict[int, RankSnapshot]
    """In order of rank; ranks that never spoke are missing."""
    step: int
    """Highest step that ended on every rank."""
    median_step_s: float | None
    """m: median of the last 256 training steps, the slowest rank's."""
    longest_recent_step_s: float | None
    """Longest of any rank's last five steps."""
    toks_per_s: float | None
    """Ordered tokens per step over the median step."""
    moving: bool
    """Whether every rank that has not ended moves."""
    findings: int
    latched: Finding | None


def snapshot(state: WatchState, now: float | None = None) -> Snapshot:
    """Return the picture as of `now` (watcher's clock; default: the last line's receipt)."""
    view = state.view
    if now is None:
        now = max((stream.heard_mono for stream in state.streams.values()), default=0.0)
    ranks = {rank: _rank(view, state.streams[rank], now) for rank in sorted(state.streams)}
    m = view.median_step_s()
    tokens = state.run.order.identity.tokens_per_step or max(
        (stream.tokens or 0 for stream in state.streams.values()), default=0
    )
    recent = [s for stream in state.streams.values() for s in list(stream.pace.times_s)[-5:]]
    running = [entry for entry in ranks.values() if not entry.done]
    return Snapshot(
        ranks=ranks,
        step=min((entry.completed for entry in ranks.values()), default=0),
        median_step_s=m,
        longest_recent_step_s=max(recent, default=None),
        toks_per_s=tokens / m if tokens and m else None,
        moving=bool(running) and all(entry.moving for entry in running),
        findings=len(state.said),
        latched=state.latched,
    )


def _rank(view: View, stream: RankStream, now: float) -> RankSnapshot:
    pace, record = stream.pace, view.lines[stream.rank]
    lines, unreadable = record.now, view.unreadable.get(stream.rank)
    return RankSnapshot(
        rank=stream.rank,
        pid=stream.pid,
        boot=stream.boot,
        msg=stream.msg,
        step=stream.step,
        completed=stream.completed,
        section=stream.section,
        section_seq=stream.section_seq,
        collective_seq=stream.collective_seq,
        heard_mono=stream.heard_mono,
        heard_ts=stream.heard_ts,
        advanced_ts=stream.advanced_ts,
        median_step_s=pace.median_s,
        last_step_s=pace.times_s[-1] if pace.times_s else None,
        loss=stream.loss,
        grad_norm=stream.grad_norm,
        toks_per_s=stream.toks_per_s,
        lines=lines.count,
        duplicates=record.duplicates,
        gaps=lines.gaps(),
        stale=record.stale,
        unreadable=0 if unreadable is None else unreadable.count,
        state=view.processes.of(stream.rank).state,
        done=stream.done,
        halt_seen=stream.halt_seen,
        moving=_moves(view, stream, now),
    )


def _moves(view: View, stream: RankStream, now: float) -> bool:
    """Whether the rank would read `.HALT`: it lives, and its step advanced not long ago."""
    if stream.done or view.held(stream.rank, now) or not view.fresh([stream], now):
        return False
    if stream.section in NON_TRAINING_SECTIONS:
        return True
    stay = stay_of(view, stream, view.median_step_s(), now)
    return stay is None or now - stream.advanced_mono <= (stay.suspect_s or stay.limit_s)
