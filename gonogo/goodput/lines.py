"""What did a rank spend its time on? A fold over its heartbeats that can be put down and taken up.

Time is the rank's monotonic clock, so a stepped wall clock moves nothing. Guarantees: what has been
told sums to the time from the first line to the last one; nothing is negative; a step that was done
before is repeated, once. Lines that are missing (`seq` jumps) leave unknown time. One rank stands
for all: steps of a synchronous run end together.

A checkpoint whose line comes steps later was written beside them: it takes the time of its section,
and holds the steps up to the one that its path names.
"""

import re
from enum import StrEnum

from pydantic import BaseModel

from gonogo.contract.goodput import Part
from gonogo.contract.heartbeat import Heartbeat, Msg, Section

MAX_RECENT = 32
"""Steps that a checkpoint's line may be late."""
_STEP = re.compile(r"step_([0-9]{1,16})/?$")
MAX_MARKS = 64
"""Checkpoints that are remembered; a run goes on from one of the newest."""


class Mode(StrEnum):
    """What the rank does since the line that said so."""

    PREPARING = "preparing"
    STEP = "step"
    BETWEEN = "between"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    ENDING = "ending"
    UNTOLD = "untold"


class Mark(BaseModel):
    """A checkpoint, and the time of the steps that it holds."""

    step: int
    step_s: float


class Told(BaseModel):
    """What a rank has told so far; `tell` takes it further."""

    boot: str = ""
    seq: int = 0
    mono: float = 0.0
    first_ts: float | None = None
    """Unix seconds of the first line; None: no line yet."""
    moved_ts: float = 0.0
    """Unix seconds of the last line that said that something went on or had ended."""
    mode: Mode = Mode.PREPARING
    pending_s: float = 0.0
    """Seconds of the present mode, which is not over."""
    boots: int = 0
    base_step: int | None = None
    """The step after which the first step of this run was done."""
    step: int = 0
    """The last step that has ended."""
    step_s: float = 0.0
    """Seconds of steps, each step once."""
    seconds: dict[Part, float] = {}
    """Seconds of everything else that is over; `start` stands for any preparation at first."""
    marks: list[Mark] = []
    recent: list[Mark] = []
    """The newest steps that have ended, each with the time of those up to it."""
    halting: bool = False

    @property
    def total_s(self) -> float:
        """Seconds from the first line to the last."""
        return self.step_s + sum(self.seconds.values()) + self.pending_s


_PART = {
    Mode.BETWEEN: Part.BETWEEN_STEPS,
    Mode.EVALUATION: Part.EVALUATION,
    Mode.CHECKPOINT: Part.CHECKPOINT,
    Mode.ENDING: Part.HALT,
    Mode.UNTOLD: Part.UNKNOWN,
    Mode.STEP: Part.REPEATED,  # one that was broken off
}
_PAUSES = {
    Msg.EVAL.value: Part.EVALUATION,
    Msg.CHECKPOINT.value: Part.CHECKPOINT,
}
_SECTIONS = {
    Section.EVAL.value: Mode.EVALUATION,
    Section.CHECKPOINT.value: Mode.CHECKPOINT,
}


def part_of(told: Told) -> Part:
    """Return what the pending seconds are, should the mode end now."""
    if told.mode is Mode.PREPARING:
        return Part.START if told.boots <= 1 else Part.RESTART
    if told.mode is Mode.BETWEEN and told.halting:
        return Part.HALT
    return _PART[told.mode]


def tell(told: Told, beat: Heartbeat) -> None:
    """Take one distinct line of the rank, in the order in which it was written."""
    if beat.boot == told.boot and beat.seq <= told.seq:
        return
    if told.first_ts is None:
        told.first_ts = told.moved_ts = beat.ts
    else:
        _pass_time(told, beat)
    if beat.boot != told.boot:
        told.boots += 1
        told.mode = Mode.PREPARING
    told.boot, told.seq, told.mono = beat.boot, beat.seq, beat.mono
    _hear(told, beat)


def _pass_time(told: Told, beat: Heartbeat) -> None:
    passed_s = max(0.0, beat.mono - told.mono)
    again = beat.boot != told.boot
    if again:
        _close(told, beat.ts)
        _add(told, Part.RESTART, passed_s)
    elif beat.seq > told.seq + 1:
        if told.mode is Mode.STEP:  # it may have ended well among the lines that are missing
            told.mode = Mode.UNTOLD
        _close(told, beat.ts)
        _add(told, Part.UNKNOWN, passed_s)
        told.mode = Mode.UNTOLD
    else:
        told.pending_s += passed_s


def _hear(told: Told, beat: Heartbeat) -> None:
    """Let the line say what begins or has ended."""
    msg = beat.msg
    if msg == Msg.STEP_START:
        if told.mode is not Mode.STEP:
            _close(told, beat.ts)
            told.mode = Mode.STEP
        if told.base_step is None:
            told.base_step = beat.step - 1
    elif msg == Msg.STEP_END or (msg == Msg.PROGRESS and _is_nameless(beat)):
        _end_step(told, beat)
    elif msg in _PAUSES:
        _end_pause(told, beat, _PAUSES[msg])
    elif msg == Msg.SECTION and told.mode not in (Mode.STEP, Mode.PREPARING):
        _close(told, beat.ts)
        told.mode = _SECTIONS.get(beat.section or "", Mode.BETWEEN)
    elif msg == Msg.HALT_SEEN:
        told.halting = True
    elif msg == Msg.DONE:
        _close(told, beat.ts)
        told.mode = Mode.ENDING


def _is_nameless(beat: Heartbeat) -> bool:
    """Say whether the trainer names no sections; then its progress ends the step."""
    return beat.section is None and beat.section_seq == 0


def _end_step(told: Told, beat: Heartbeat) -> None:
    """Count the time since the step began, or since the last thing that ended."""
    if told.base_step is None:
        told.base_step = beat.step - 1
    if told.mode is Mode.BETWEEN and beat.step == told.step:
        return  # step_end after a progress that had ended it
    if told.mode is Mode.PREPARING or told.mode is Mode.UNTOLD:
        _close(told, beat.ts)
    elif beat.step <= max(told.step, told.base_step):
        _add(told, Part.REPEATED, told.pending_s)
    else:
        told.step_s += told.pending_s
    told.step = max(told.step, beat.step)
    told.recent = [*told.recent, Mark(step=told.step, step_s=told.step_s)][-MAX_RECENT:]
    told.pending_s, told.moved_ts, told.mode = 0.0, beat.ts, Mode.BETWEEN


def _end_pause(told: Told, beat: Heartbeat, part: Part) -> None:
    """Count what a pause says that it took, or the time since its section began."""
    if part is Part.CHECKPOINT and _keep_mark(told, beat) < told.step:
        return  # written beside later steps
    inside = told.mode in (Mode.EVALUATION, Mode.CHECKPOINT)
    dt = beat.dt if beat.dt is not None and beat.dt >= 0 else 0.0
    took_s = told.pending_s if inside else min(dt, told.pending_s)
    _add(told, part, took_s)
    told.pending_s -= took_s
    if told.mode is not Mode.STEP:
        _close(told, beat.ts)
        told.mode = Mode.BETWEEN
    told.moved_ts = beat.ts


def _keep_mark(told: Told, beat: Heartbeat) -> int:
    """Remember what a checkpoint holds; return the step that it is of."""
    named = _STEP.search(beat.path or "")
    step = min(int(named.group(1)), told.step) if named else told.step
    ended = next((mark for mark in reversed(told.recent) if mark.step == step), None)
    if ended is not None:
        told.marks = [*told.marks, ended][-MAX_MARKS:]
    return step


def _close(told: Told, ts: float) -> None:
    _add(told, part_of(told), told.pending_s)
    told.pending_s, told.moved_ts = 0.0, ts


def _add(told: Told, part: Part, seconds: float) -> None:
    if seconds > 0:
        told.seconds[part] = told.seconds.get(part, 0.0) + seconds
