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


class Told(BaseModel):
    """What a rank has spent so far; `tell` continues it."""

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


def tell(told: Told, beat: Heartbeat) -> None:
    """Take the next line of the rank."""
    before = told.stream
    restarts, steps = beat.boot != before.boot, before.completed_steps
    if not restarts and beat.seq <= before.heard_seq:
        return
    if told.first_ts is None:
        told.first_ts, told.moved_ts, told.mono = beat.ts, beat.ts, beat.mono
    _pass_time(told, beat, restarts=restarts)
    stream = told.stream = absorb(before, beat, beat.mono)
    stream.ready = []  # the numbers of the steps
    told.boots += restarts
    ends = stream.completed_steps > (0 if restarts else steps)
    if ends:
        _end_step(told)
    if beat.msg in _PAUSES:
        _take_pause(told, beat)
    part = _part_of(told)
    if ends or part is not told.part:
        _close(told, beat.ts)
        told.part = part


def _pass_time(told: Told, beat: Heartbeat, *, restarts: bool) -> None:
    """Count the time since the line before."""
    passed_s, told.mono = max(0.0, beat.mono - told.mono), beat.mono
    if restarts:
        _close(told, beat.ts)
        _add(told, Part.RESTART, passed_s)
    elif beat.seq > told.stream.heard_seq + 1:
        if told.part is STEP:  # its end may be missing
            told.part = Part.UNKNOWN
        _close(told, beat.ts)
        _add(told, Part.UNKNOWN, passed_s)
    else:
        told.pending_s += passed_s


def _part_of(told: Told) -> Part:
    """Return what the rank does from now on."""
    stream = told.stream
    pause = _PAUSES.get(stream.section or "")
    steps_alone = stream.completed_steps > 0 and not stream.opened  # no `step_start` is written
    if stream.done:
        return Part.HALT
    if pause is not None:
        return pause
    if stream.step > stream.completed or steps_alone:
        return STEP
    if not stream.completed_steps:
        return Part.START if told.boots <= 1 else Part.RESTART
    return Part.HALT if stream.halt_seen else Part.BETWEEN_STEPS


def _end_step(told: Told) -> None:
    """Count a step that has ended, or as repeated."""
    stream = told.stream
    told.last = End(step=stream.completed, at_s=told.total_s)
    told.first = told.first or told.last
    if told.base_step is None:
        told.base_step = stream.from_step
    if told.part is STEP:
        if stream.completed > max(told.step, told.base_step):
            told.step_s += told.pending_s
        else:
            _add(told, Part.REPEATED, told.pending_s)
        told.pending_s = 0.0
    told.step = max(told.step, stream.completed)


def _take_pause(told: Told, beat: Heartbeat) -> None:
    """Count the seconds (`dt`) of an evaluation or a checkpoint without a section."""
    pause = _PAUSES[beat.msg]
    if pause is Part.CHECKPOINT and _keep_mark(told, beat) < told.step:
        return  # written beside later steps
    told.moved_ts = beat.ts
    if told.part is not pause:
        dt = beat.dt if beat.dt is not None and beat.dt >= 0 else 0.0
        took_s = min(dt, told.pending_s)
        _add(told, pause, took_s)
        told.pending_s -= took_s


def _keep_mark(told: Told, beat: Heartbeat) -> int:
    """Remember what a checkpoint holds; return its step."""
    named = _STEP.search(beat.path or "")
    step = min(int(named.group(1)), told.step) if named else told.step
    base = told.step if told.base_step is None else told.base_step
    if step > base:
        step_s = told.step_s * (step - base) / (told.step - base)
        told.marks = [*told.marks, Mark(step=step, step_s=step_s)][-MAX_MARKS:]
    return step


def _close(told: Told, ts: float) -> None:
    """End the present part; a step that has not ended is repeated later."""
    _add(told, Part.REPEATED if told.part is STEP else told.part, told.pending_s)
    told.pending_s, told.moved_ts = 0.0, ts


def _add(told: Told, part: Part, seconds: float) -> None:
    if seconds > 0:
        told.seconds[part] = told.seconds.get(part, 0.0) + seconds
