"""Account for the time of one rank, by the timeline of its lines. It can be stored and continued.

Each second since the line before belongs to the rank's place then, by its monotonic clock. All
seconds sum to the time from the first line to the last. A step that was made before is repeated.
Missing lines (`seq` jumps) leave unknown time. One rank stands for all.

A checkpoint that was written beside later steps holds the steps up to the one in its path.
"""

import re

from pydantic import BaseModel, Field

from gonogo.contract.goodput import Part
from gonogo.contract.heartbeat import Heartbeat, Section
from gonogo.timeline.advance import absorb
from gonogo.timeline.rank import RankStream

_STEP = re.compile(r"step_([0-9]{1,16})/?$")
MAX_MARKS = 64
"""Newest checkpoints that are remembered."""
STEP = Part.PRODUCTIVE
"""The part of a step that is not over."""
_PAUSES: dict[str, Part] = {
    Section.EVAL.value: Part.EVALUATION,
    Section.CHECKPOINT.value: Part.CHECKPOINT,
}
"""Sections and messages outside of training."""


class Mark(BaseModel):
    """A checkpoint, and the time of the steps that it holds."""

    step: int
    step_s: float


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
    marks: list[Mark] = []

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
        _add(account, Part.RESTART, passed_s)
    elif beat.seq > account.stream.heard_seq + 1:
        if account.part is STEP:  # its end may be missing
            account.part = Part.UNKNOWN
        _close(account, beat.ts)
        _add(account, Part.UNKNOWN, passed_s)
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
            _add(account, Part.REPEATED, account.pending_s)
        account.pending_s = 0.0
    account.step = max(account.step, stream.completed)


def _take_pause(account: RankAccount, beat: Heartbeat) -> None:
    """Count the seconds (`dt`) of an evaluation or a checkpoint without a section."""
    pause = _PAUSES[beat.msg]
    if pause is Part.CHECKPOINT and _keep_mark(account, beat) < account.step:
        return  # written beside later steps
    account.moved_ts = beat.ts
    if account.part is not pause:
        dt = beat.dt if beat.dt is not None and beat.dt >= 0 else 0.0
        took_s = min(dt, account.pending_s)
        _add(account, pause, took_s)
        account.pending_s -= took_s


def _keep_mark(account: RankAccount, beat: Heartbeat) -> int:
    """Remember what a checkpoint holds; return its step."""
    named = _STEP.search(beat.path or "")
    step = min(int(named.group(1)), account.step) if named else account.step
    base = account.step if account.base_step is None else account.base_step
    if step > base:
        step_s = account.step_s * (step - base) / (account.step - base)
        account.marks = [*account.marks, Mark(step=step, step_s=step_s)][-MAX_MARKS:]
    return step


def _close(account: RankAccount, ts: float) -> None:
    """End the present part; a step that has not ended is repeated later."""
    _add(account, Part.REPEATED if account.part is STEP else account.part, account.pending_s)
    account.pending_s, account.moved_ts = 0.0, ts


def _add(account: RankAccount, part: Part, seconds: float) -> None:
    if seconds > 0:
        account.seconds[part] = account.seconds.get(part, 0.0) + seconds
