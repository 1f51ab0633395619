"""Where is a rank, and since when? One rank's heartbeats folded, line by line.

Two clocks, never mixed: deadlines count on the watcher's clock at receipt (`heard_mono`,
`section_mono`, `compute_s`), step times on the rank's own (`pace`). Only an advancing step is
progress; any other line says that the rank lives and in which section it is.
"""

import math
from dataclasses import dataclass, field, replace

from gonogo.contract.heartbeat import (
    COMPUTE_SECTIONS,
    NON_TRAINING_SECTIONS,
    Heartbeat,
    Msg,
)
from gonogo.judge.watch.pace import Pace
from gonogo.judge.watch.seen import Arrival, Seen, admit

SECTION_SAMPLES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStream:
    """What one rank's lines have told. Names in `_mono` are receipts on the watcher's clock."""

    rank: int
    seen: Seen = field(default_factory=Seen)
    pid: int | None = None
    msg: str | None = None
    first_mono: float = 0.0
    heard_mono: float = 0.0
    heard_ts: float = 0.0
    own_mono: float = 0.0
    """The rank's own clock on its last line."""
    step: int = 0
    from_step: int = 0
    """Step at which this boot began (0, or where it resumed)."""
    backwards: int | None = None
    """A step lower than one before it, told without a restart."""
    section: str | None = None
    section_seq: int = 0
    section_mono: float = 0.0
    collective_seq: int = 0
    labelled: bool = False
    """Whether this rank names its sections at all."""
    advanced_mono: float = 0.0
    advanced_ts: float | None = None
    """The last line that advanced the step, in Unix seconds."""
    started_mono: float | None = None
    """The first step's first line."""
    completed: int = 0
    """Highest step that ended."""
    completed_steps: int = 0
    """Step ends of this boot."""
    compute_s: float = 0.0
    """Seconds in forward, backward or optimizer since the last step end, up to the last line."""
    pace: Pace = field(default_factory=Pace)
    section_times: tuple[tuple[str, float], ...] = ()
    """Durations of the last checkpoint and eval sections, on the rank's own clock."""
    section_began: float = 0.0
    """When the section began, on the rank's own clock."""
    done: bool = False
    halt_seen: bool = False
    loss: float | None = None
    grad_norm: float | None = None
    toks_per_s: float | None = None
    tokens: int | None = None

    @property
    def computing(self) -> bool:
        """Whether the rank stands in forward, backward or optimizer (or never says where)."""
        return self.section in COMPUTE_SECTIONS or not self.labelled

    def computed_s(self, mono: float) -> float:
        """Return seconds of computing since the last step end, as of `mono` (watcher's clock)."""
        return self.compute_s + (max(0.0, mono - self.heard_mono) if self.computing else 0.0)

    def position(self) -> tuple[int, int, int]:
        """Return how far the rank is: step, section_seq, collective_seq."""
        return self.step, self.section_seq, self.collective_seq

    def rearmed(self, mono: float) -> "RankStream":
        """Return the stream with every deadline's clock beginning at `mono`."""
        return replace(
            self,
            first_mono=mono,
            heard_mono=mono,
            section_mono=mono,
            advanced_mono=mono,
            compute_s=0.0,
            started_mono=None if self.started_mono is None else mono,
        )


def absorb(stream: RankStream, beat: Heartbeat, mono: float) -> tuple[RankStream, Arrival]:
    """Return the stream after one line, received at `mono`, and what the line was to it."""
    before = stream.seen
    seen, arrival = admit(before, beat)
    if arrival is Arrival.LATE:
        return replace(stream, seen=seen, pace=_paced_late(stream, beat)), arrival
    if arrival is not Arrival.NEW:
        return replace(stream, seen=seen), arrival
    if seen.boot != before.boot:
        return _booted(stream, seen, beat, mono), arrival
    if beat.step < stream.step:
        return replace(stream, seen=seen, backwards=beat.step, heard_mono=mono), arrival
    return _advanced(stream, seen, beat, mono), arrival


def _booted(stream: RankStream, seen: Seen, beat: Heartbeat, mono: float) -> RankStream:
    """Return a stream that begins with this line."""
    opens_step = beat.msg == Msg.STEP_START
    return RankStream(
        rank=stream.rank,
        seen=seen,
        pid=beat.pid,
        msg=beat.msg,
        first_mono=mono,
        heard_mono=mono,
        heard_ts=beat.ts,
        own_mono=beat.mono,
        step=beat.step,
        from_step=beat.step - 1 if opens_step and beat.step else beat.step,
        section=beat.section,
        section_seq=beat.section_seq,
        section_mono=mono,
        section_began=beat.mono,
        collective_seq=beat.collective_seq or 0,
        labelled=beat.section is not None or beat.section_seq > 0,
        advanced_mono=mono,
        advanced_ts=beat.ts,
        started_mono=mono if opens_step else None,
        completed=beat.step - 1 if opens_step and beat.step else beat.step,
        done=beat.msg == Msg.DONE,
    )


def _advanced(stream: RankStream, seen: Seen, beat: Heartbeat, mono: float) -> RankStream:
    """Return the stream moved on by a line of the same boot, in order."""
    moved = beat.section_seq != stream.section_seq or beat.section != stream.section
    tail_s = _tail_s(beat, mono - stream.heard_mono) if moved else 0.0
    own_tail_s = _tail_s(beat, beat.mono - stream.own_mono) if moved else 0.0
    labelled = stream.labelled or beat.section is not None or beat.section_seq > 0
    ends = _ends_step(beat, labelled) and beat.step > stream.completed
    steps_on = beat.step > stream.step
    compute_s = 0.0
    if not (ends or steps_on):
        compute_s = stream.computed_s(mono - tail_s)
        if beat.section in COMPUTE_SECTIONS:
            compute_s += tail_s
    pace = _paced(stream, beat, own_tail_s)
    started = stream.started_mono
    if started is None and beat.step > stream.from_step:
        started = mono
    return replace(
        stream,
        seen=seen,
        pid=beat.pid,
        msg=beat.msg,
        heard_mono=mono,
        heard_ts=beat.ts,
        own_mono=beat.mono,
        step=beat.step,
        section=beat.section,
        section_seq=beat.section_seq,
        section_mono=mono - tail_s if moved else stream.section_mono,
        section_began=beat.mono - own_tail_s if moved else stream.section_began,
        section_times=_section_times(stream, beat.mono - own_tail_s)
        if moved
        else stream.section_times,
        collective_seq=max(stream.collective_seq, beat.collective_seq or 0),
        labelled=labelled,
        advanced_mono=mono if steps_on or ends else stream.advanced_mono,
        advanced_ts=beat.ts if steps_on or ends else stream.advanced_ts,
        started_mono=started,
        completed=beat.step if ends else stream.completed,
        completed_steps=stream.completed_steps + ends,
        compute_s=compute_s,
        pace=pace.ended(beat.step, beat.mono) if ends else pace,
        done=stream.done or beat.msg == Msg.DONE,
        halt_seen=stream.halt_seen or beat.msg == Msg.HALT_SEEN,
        loss=stream.loss if beat.loss is None else beat.loss,
        grad_norm=stream.grad_norm if beat.grad_norm is None else beat.grad_norm,
        toks_per_s=stream.toks_per_s if beat.toks_per_s is None else beat.toks_per_s,
        tokens=stream.tokens if beat.tokens is None else beat.tokens,
    )


def _ends_step(beat: Heartbeat, labelled: bool) -> bool:
    """Whether the line says that its step is over; a rank without labels may only say progress."""
    return beat.msg == Msg.STEP_END or (beat.msg == Msg.PROGRESS and not labelled)


def _tail_s(beat: Heartbeat, since_s: float) -> float:
    """Return how much of the time since the line before belongs to the line's own section."""
    age_s = beat.section_age_s
    if age_s is None or not math.isfinite(age_s):
        return 0.0
    return max(0.0, min(age_s, since_s))


def _paced(stream: RankStream, beat: Heartbeat, tail_s: float) -> Pace:
    """Return the pace with the time since the line before taken out where it was no training."""
    pace = stream.pace
    since_s = beat.mono - stream.own_mono
    if stream.section in NON_TRAINING_SECTIONS:
        pace = pace.without(max(0.0, since_s - tail_s))
    if beat.section in NON_TRAINING_SECTIONS and tail_s:
        pace = pace.without(tail_s)
    unlabelled = beat.section not in NON_TRAINING_SECTIONS and beat.msg in (
        Msg.CHECKPOINT,
        Msg.EVAL,
    )
    if unlabelled and beat.dt is not None and math.isfinite(beat.dt) and beat.dt > 0:
        pace = pace.without(beat.dt)
    return pace


def _paced_late(stream: RankStream, beat: Heartbeat) -> Pace:
    """Return the pace after a line that came out of order: a step end tells when its step ended.

    Not where time has been taken out since the step end before: it may belong to either step.
    """
    pace = stream.pace
    known = pace.last_step is not None and not pace.excluded_s
    if not known or not _ends_step(beat, stream.labelled):
        return pace
    later = beat.step > (pace.last_step or 0) and pace.last_mono < beat.mono <= stream.own_mono
    return pace.ended(beat.step, beat.mono) if later else pace


def _section_times(stream: RankStream, ended: float) -> tuple[tuple[str, float], ...]:
    """Return the durations with that of the section which just ended."""
    if stream.section not in NON_TRAINING_SECTIONS:
        return stream.section_times
    took_s = max(0.0, ended - stream.section_began)
    return (*stream.section_times[1 - SECTION_SAMPLES :], (str(stream.section), took_s))
