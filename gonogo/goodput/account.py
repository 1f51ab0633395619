"""Split the wall time of a run into parts, by its lifecycle and the lines of a rank.

The parts sum to the wall time and none is negative. If a rank reports more time than there was, all
of it is unknown. A step counts as lost in the attempt whose work was thrown away.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, Field

from gonogo.contract.goodput import Part
from gonogo.contract.heartbeat import Heartbeat, Section
from gonogo.timeline.advance import absorb
from gonogo.timeline.rank import RankStream

_STEP = re.compile(r"step_([0-9]{1,16})/?$")
STEP = Part.PRODUCTIVE
"""The part of a step that is not over."""
_PAUSES: dict[str, Part] = {
    Section.EVAL.value: Part.EVALUATION,
    Section.CHECKPOINT.value: Part.CHECKPOINT,
}
"""Sections and messages outside of training."""


class End(BaseModel):
    """The end of a step, in seconds since the first line."""

    step: int
    at_s: float


class RankAccount(BaseModel):
    """What a rank has spent so far; `add_line` continues it."""

    stream: RankStream = Field(default_factory=lambda: RankStream(rank=0))
    """Where the rank is."""
    mono: float = 0.0
    """The rank's clock on its last line."""
    first_ts: float | None = None
    """Unix seconds of the first line; None: no line yet."""
    moved_ts: float = 0.0
    """Unix seconds of the last line that changed the part."""
    part: Part = Part.START
    """What the rank does now."""
    pending_s: float = 0.0
    """Seconds of it so far."""
    boots: int = 0
    base_step: int | None = None
    """The step before the first one; None: no step has ended."""
    step: int = 0
    """The last step that has ended."""
    first: End | None = None
    last: End | None = None
    """The first step that ended, and the newest."""
    step_s: float = 0.0
    """Seconds of steps, each step once."""
    seconds: dict[Part, float] = {}
    """Seconds of all other parts."""
    saved_step: int = 0
    """The last step that a checkpoint holds."""

    @property
    def total_s(self) -> float:
        """Seconds from the first line to the last."""
        return self.step_s + sum(self.seconds.values()) + self.pending_s


def add_line(account: RankAccount, beat: Heartbeat) -> None:
    """Take the next line of the rank."""
    before = account.stream
    restarts, steps = beat.boot != before.boot, before.completed_steps
    if not restarts and beat.seq <= before.heard_seq:
        return
    if account.first_ts is None:
        account.first_ts, account.moved_ts, account.mono = beat.ts, beat.ts, beat.mono
    _pass_time(account, beat, restarts=restarts)
    stream = account.stream = absorb(before, beat, beat.mono)
    stream.ready = []  # the numbers of the steps
    account.boots += restarts
    ends = stream.completed_steps > (0 if restarts else steps)
    if ends:
        _end_step(account)
    if beat.msg in _PAUSES:
        _take_pause(account, beat)
    part = _part_of(account)
    if ends or part is not account.part:
        _close(account, beat.ts)
        account.part = part


def _pass_time(account: RankAccount, beat: Heartbeat, *, restarts: bool) -> None:
    """Count the time since the line before."""
    passed_s, account.mono = max(0.0, beat.mono - account.mono), beat.mono
    if restarts:
        _close(account, beat.ts)
        _spend(account, Part.RESTART, passed_s)
    elif beat.seq > account.stream.heard_seq + 1:
        if account.part is STEP:  # its end may be missing
            account.part = Part.UNKNOWN
        _close(account, beat.ts)
        _spend(account, Part.UNKNOWN, passed_s)
    else:
        account.pending_s += passed_s


def _part_of(account: RankAccount) -> Part:
    """Return what the rank does from now on."""
    stream = account.stream
    pause = _PAUSES.get(stream.section or "")
    steps_alone = stream.completed_steps > 0 and not stream.opened  # no `step_start` is written
    if stream.done:
        return Part.HALT
    if pause is not None:
        return pause
    if stream.step > stream.completed or steps_alone:
        return STEP
    if not stream.completed_steps:
        return Part.START if account.boots <= 1 else Part.RESTART
    return Part.HALT if stream.halt_seen else Part.BETWEEN_STEPS


def _end_step(account: RankAccount) -> None:
    """Count a step that has ended, or as repeated."""
    stream = account.stream
    account.last = End(step=stream.completed, at_s=account.total_s)
    account.first = account.first or account.last
    if account.base_step is None:
        account.base_step = stream.from_step
    if account.part is STEP:
        if stream.completed > max(account.step, account.base_step):
            account.step_s += account.pending_s
        else:
            _spend(account, Part.REPEATED, account.pending_s)
        account.pending_s = 0.0
    account.step = max(account.step, stream.completed)


def _take_pause(account: RankAccount, beat: Heartbeat) -> None:
    """Count the seconds (`dt`) of an evaluation or a checkpoint without a section."""
    pause = _PAUSES[beat.msg]
    if pause is Part.CHECKPOINT:
        named = _STEP.search(beat.path or "")
        step = min(int(named.group(1)), account.step) if named else account.step
        account.saved_step = max(account.saved_step, step)
        if step < account.step:
            return  # written beside later steps
    account.moved_ts = beat.ts
    if account.part is not pause:
        dt = beat.dt if beat.dt is not None and beat.dt >= 0 else 0.0
        took_s = min(dt, account.pending_s)
        _spend(account, pause, took_s)
        account.pending_s -= took_s


def _close(account: RankAccount, ts: float) -> None:
    """End the present part; a step that has not ended is repeated later."""
    _spend(account, Part.REPEATED if account.part is STEP else account.part, account.pending_s)
    account.pending_s, account.moved_ts = 0.0, ts


def _spend(account: RankAccount, part: Part, seconds: float) -> None:
    if seconds > 0:
        account.seconds[part] = account.seconds.get(part, 0.0) + seconds


Seconds = dict[Part, float]
SLACK_S = 0.001
"""Tolerance for rounded stamps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """Times of a run, Unix seconds."""

    opened_at: float
    """When it was queued, or the run before it had ended."""
    placed_at: float | None
    """When a worker or its engine took it; None: it is queued."""
    ended_at: float | None
    """None: it is running."""
    found_at: float | None = None
    """Time of the first finding that halts."""
    again: bool = False
    """Whether it is a later attempt of its phase."""
    completed: bool = False
    unseen_end: bool = False
    """Whether nobody saw its end: it may have trained on after its last line."""
    resumed_steps: tuple[int, ...] = ()
    """The step after which each later attempt of its phase resumed; 0: from the start."""


def account_run(times: RunTimes, account: RankAccount | None, now: float) -> Seconds:
    """Return a run's seconds by part; their sum is its wall time.

    Args:
        times: its lifecycle.
        account: account of one of its ranks; None: no lines.
        now: Unix seconds; the end of a running run.
    """
    seconds = dict.fromkeys(Part, 0.0)
    end = now if times.ended_at is None else times.ended_at
    wall_s = max(0.0, end - times.opened_at)
    placed = end if times.placed_at is None else times.placed_at
    seconds[Part.QUEUE] = _within(placed - times.opened_at, wall_s)
    held_s = wall_s - seconds[Part.QUEUE]
    start = Part.RESTART if times.again else Part.START
    if account is None or account.first_ts is None:
        found_s = held_s if times.found_at is None else times.found_at - placed
        seconds[start] = _within(found_s, held_s)
        seconds[Part.HALT] = held_s - seconds[start]
        return seconds
    if account.total_s > held_s + SLACK_S:
        seconds[Part.UNKNOWN] = held_s
        return seconds
    spare_s = max(0.0, held_s - account.total_s)
    before_s = _within(account.first_ts - placed, spare_s)
    seconds[start] += before_s
    for part, value in account.seconds.items():
        seconds[start if part is Part.START else part] += value
    _add(seconds, _steps(times, account))
    _add(seconds, _tail(times, account, start, spare_s - before_s))
    return seconds


def _steps(times: RunTimes, account: RankAccount) -> Seconds:
    """Split the time of the steps by whether their work was kept: all steps take equally long."""
    if not times.resumed_steps and (times.ended_at is None or times.completed):
        return {Part.PRODUCTIVE: account.step_s}
    kept_step = min(times.resumed_steps, default=account.saved_step)
    base = account.base_step or 0
    share = _within((kept_step - base) / max(1, account.step - base), 1.0)
    kept_s = share * account.step_s
    return {Part.PRESERVED: kept_s, Part.REPEATED: account.step_s - kept_s}


def _tail(times: RunTimes, account: RankAccount, start: Part, after_s: float) -> Seconds:
    """Split the part that no line closed, and the time after the last line."""
    all_s = account.pending_s + after_s
    prepares = account.part in (Part.START, Part.RESTART)
    if times.ended_at is None:
        if prepares:
            return {start: all_s}
        if account.part is STEP:
            return {Part.UNKNOWN: all_s}
        return {account.part: account.pending_s, Part.UNKNOWN: after_s}
    if times.found_at is not None:
        stall_s = _within(times.found_at - account.moved_ts, all_s)
        return {Part.STALL: stall_s, Part.HALT: all_s - stall_s}
    if times.unseen_end:
        return {Part.UNKNOWN: all_s}
    if prepares:
        return {start: account.pending_s, Part.HALT: after_s}
    return {Part.HALT: all_s}


def account_experiment(
    opened_at: float,
    ended_at: float | None,
    runs: Iterable[tuple[float, float, Seconds]],
    now: float,
) -> Seconds:
    """Return an experiment's seconds by part; their sum is its wall time.

    Args:
        opened_at: when it was submitted, Unix seconds.
        ended_at: None: it is running.
        runs: (opened, ended or now, seconds by part) of each, in order and without overlap.
        now: Unix seconds.
    """
    seconds = dict.fromkeys(Part, 0.0)
    cursor, first = opened_at, True
    for opened, ended, parts in runs:
        seconds[Part.QUEUE if first else Part.DECISION] += max(0.0, opened - cursor)
        _add(seconds, parts)
        cursor, first = max(cursor, ended), False
    end = now if ended_at is None else ended_at
    seconds[Part.QUEUE if first else Part.DECISION] += max(0.0, end - cursor)
    return seconds


def _add(seconds: Seconds, more: Mapping[Part, float]) -> None:
    for part, value in more.items():
        seconds[part] += value


def _within(value: float, most: float) -> float:
    return min(max(0.0, value), most)
