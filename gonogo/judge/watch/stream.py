"""Where is a rank, and since when? One rank's heartbeats folded, line by line.

Two clocks, never mixed: deadlines count on the watcher's clock at receipt (`heard_mono`,
`section_mono`, `compute_s`), step times on the rank's own (`pace`). Only an advancing step is
progress; any other line says that the rank lives and in which section it is.
"""

import math
from dataclasses import dataclass, field
from operator import attrgetter

from gonogo.contract.heartbeat import (
    COMPUTE_SECTIONS,
    NON_TRAINING_SECTIONS,
    Heartbeat,
    Msg,
    Section,
)
from gonogo.judge.watch.lines import Arrival
from gonogo.judge.watch.pace import StepPace

SECTION_SAMPLES = 32
MOST_PLACES = 16
STEP_COUNTS = 64
"""Steps whose sections and collectives are kept."""
LONG_WAIT_S, LONG_WAITS = 10.0, 8
"""So many are kept of what peers may have waited for that took so long: who waited may be heard
when the rank has saved, evaluated or fetched again."""
NAMED_SECTIONS = frozenset(Section)
_MOVES_STEP = frozenset({Msg.STEP_START, Msg.STEP_END})
"""Messages whose step may not run backwards; a thread's `alive` line may lag by one."""
_FOLLOWS_STEP = frozenset({Msg.STEP_START, Msg.PROGRESS})
"""Messages of a step that only come when the one before is over."""
_NON_TRAINING = frozenset({Msg.CHECKPOINT, Msg.EVAL})
_STEP_START, _STEP_END, _PROGRESS = Msg.STEP_START, Msg.STEP_END, Msg.PROGRESS
_DATA, _EVAL = Section.DATA, Section.EVAL
_DONE, _HALT_SEEN, _CHECKPOINT = Msg.DONE, Msg.HALT_SEEN, Msg.CHECKPOINT
_LATE = Arrival.LATE
"""Names of our own: to ask an enum for a member is dear where it is done of each line."""
_NUMBERS = attrgetter("loss", "grad_norm", "toks_per_s", "tokens")


@dataclass(slots=True, kw_only=True)
class RankStream:
    """What one rank's lines have told. Names in `_mono` are receipts on the watcher's clock."""

    rank: int
    step_section_seq: int = 0
    """Section count at the start of the present step: sections that one rank enters alone
    (a checkpoint, an evaluation) put it ahead of nobody in the steps that follow, nor in the one
    that it opens anew after them."""
    paused_seq: int | None = None
    """Section count before the checkpoint or evaluation that it was in last in this step."""
    ends_steps: bool = False
    """Whether it has ever said `step_end`."""
    boot: str | None = None
    pid: int | None = None
    msg: str | None = None
    first_mono: float = 0.0
    heard_mono: float = 0.0
    heard_ts: float = 0.0
    heard_seq: int = 0
    own_mono: float = 0.0
    """The rank's own clock on its last line."""
    step: int = 0
    from_step: int = 0
    """Step at which this boot began (0, or where it resumed)."""
    top_step: int = 0
    """The highest step that an earlier boot of this training ended."""
    idle_boots: int = 0
    """Earlier boots of this training running that ended no higher step than those before them."""
    another: bool = False
    """Whether the boot before said `done` and this one began at a lower step: it is another
    training, the next fold or the next seed."""
    backwards: int | None = None
    """A step lower than one before it, told without a restart."""
    section: str | None = None
    section_seq: int = 0
    section_mono: float = 0.0
    left_mono: float = 0.0
    """When it last left a checkpoint or an evaluation, for which its peers may have waited; or was
    started anew, which ends whatever they waited for."""
    left_step: int = 0
    """The step at which it was in there."""
    long_waits: tuple[tuple[int, float], ...] = ()
    """Of both, the last that took longer than `LONG_WAIT_S`: step, and when it left."""
    fed_mono: float = 0.0
    """When it last came from its loader after longer than a median step: peers may have waited."""
    fed_step: int = 0
    """The step at which it was there."""
    collective_seq: int = 0
    tells_collectives: bool = False
    """Whether a line has told how many it has entered, none included."""
    labelled: bool = False
    """Whether this rank names its sections at all."""
    computes: bool = False
    """Whether it has ever named forward, backward or optimizer."""
    places: tuple[str, ...] = ()
    """Sections in which it has been, as its lines say; of more than `MOST_PLACES` the last."""
    advanced_mono: float = 0.0
    still_mono: float = 0.0
    """As `advanced_mono`, but for the time in which the watcher was away."""
    rearmed: bool = False
    """Whether its deadlines began anew on this step, since the watcher was away."""
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
    pace: StepPace = field(default_factory=StepPace)
    apart_s: float = 0.0
    """Seconds in no section, or in one that nobody knows, of the open step, on its own clock."""
    apart_times: tuple[float, ...] = ()
    """The same of the last steps that ended."""
    first_began: float = 0.0
    """When the first step began, or the process where nothing tells that; its own clock."""
    first_s: float = 0.0
    """Seconds that the first step took, of this boot or an earlier one, whichever took longer, on
    the rank's own clock; an evaluation before it is not in them. 0 before its end."""
    section_times: tuple[tuple[str, float], ...] = ()
    """Durations of the last checkpoint and eval sections, on the rank's own clock."""
    evaluated_s: float = 0.0
    """Seconds of all evaluations that have ended, on the rank's own clock; earlier boots' too."""
    saved_s: tuple[float, ...] = ()
    """What the last checkpoints took as their lines say it: writing goes on beside later steps."""
    section_began: float = 0.0
    """When the section began, on the rank's own clock."""
    done: bool = False
    done_mono: float = 0.0
    """When it said so."""
    step_counts: tuple[tuple[int, int, int], ...] = ()
    """Of the last steps told from start to end: step, sections, collectives (-1: untold)."""
    ended_at: tuple[int, int] = (0, 0)
    """The last step whose end told a number of collectives, and that number."""
    opened: int = 0
    """The step whose start it told in order."""
    between_s: float = 0.0
    """Seconds from the end of the step before to that start, on its own clock; no checkpoint or
    evaluation is in them."""
    halt_seen: bool = False
    loss: float | None = None
    grad_norm: float | None = None
    toks_per_s: float | None = None
    tokens: int | None = None
    progress: Heartbeat | None = None
    """The last progress line, for the step that it belongs to."""

    @property
    def computing(self) -> bool:
        """Whether the rank stands in forward, backward or optimizer (or never says where)."""
        return self.section in COMPUTE_SECTIONS or not self.labelled

    def computed_s(self, mono: float) -> float:
        """Return seconds of computing since the last step end, as of `mono` (watcher's clock)."""
        return self.compute_s + (max(0.0, mono - self.heard_mono) if self.computing else 0.0)

    def position(self) -> tuple[int, int, int]:
        """Return how far the rank is: step, sections of this step, collective_seq."""
        return self.step, self.section_seq - self.step_section_seq, self.collective_seq

    def collectives(self) -> int:
        """Return the collectives entered since the end of the step before, if that told them."""
        step, number = self.ended_at
        return self.collective_seq - (number if step == self.completed else 0)

    def rearm(self, mono: float, away_s: float = 0.0) -> None:
        """Let every deadline's clock begin at `mono`, once a step; the longest stood still.

        A limit would never pass under a watcher that is away again and again: what it has seen
        stand since it came back the first time counts, only its absence (`away_s`) does not.
        """
        if self.rearmed:
            self.pass_over(away_s, mono)
            self.still_mono = min(mono, self.still_mono + away_s)
            self.done_mono = min(mono, self.done_mono + away_s)
            return
        self.rearmed = True
        self.still_mono = min(mono, self.still_mono + away_s)
        self.done_mono = min(mono, self.done_mono + away_s)
        self.first_mono = self.heard_mono = self.section_mono = self.advanced_mono = mono
        self.compute_s = 0.0
        if self.started_mono is not None:
            self.started_mono = mono

    def pass_over(self, seconds: float, mono: float) -> None:
        """Let every deadline's clock have stood still for `seconds` up to `mono`.

        The longest goes on (`still_mono`): a run that speaks once in a while gets no time by that.
        """
        self.first_mono = min(mono, self.first_mono + seconds)
        self.heard_mono = min(mono, self.heard_mono + seconds)
        self.section_mono = min(mono, self.section_mono + seconds)
        self.advanced_mono = min(mono, self.advanced_mono + seconds)
        if self.started_mono is not None:
            self.started_mono = min(mono, self.started_mono + seconds)


def absorb(stream: RankStream, beat: Heartbeat, mono: float, arrival: Arrival) -> RankStream:
    """Return the stream after one line, received at `mono`: the same one, or a restarted rank's."""
    if arrival is _LATE:
        _time_late(stream, beat)
        if beat.step == stream.step:
            if beat.msg == _STEP_START:
                _start_late(stream, beat.section_seq)
            if not stream.ends_steps and beat.msg in _FOLLOWS_STEP:
                _end_before(stream, beat)
        return stream
    if beat.boot != stream.boot:
        booted = _booted(stream.rank, beat, mono)
        return booted if stream.boot is None else _follow(booted, stream, beat, mono)
    if beat.step < stream.step:
        if beat.msg in _MOVES_STEP:
            stream.backwards = beat.step
        elif beat.msg == _DONE:
            stream.done, stream.done_mono = True, mono  # the step that it had opened is not to come
        stream.heard_mono, stream.heard_ts, stream.heard_seq = mono, beat.ts, beat.seq
        return stream
    _advance(stream, beat, mono)
    return stream


def _follow(booted: RankStream, before: RankStream, beat: Heartbeat, mono: float) -> RankStream:
    """Return the stream of a boot, with what it takes over from the one before."""
    gained = before.completed > before.top_step
    booted.first_s, booted.evaluated_s = before.first_s, before.evaluated_s
    booted.left_mono, booted.left_step = mono, before.step
    booted.another = before.done and beat.step < before.completed
    if not booted.another:
        booted.top_step = max(before.top_step, before.completed)
        booted.idle_boots = 0 if gained else before.idle_boots + 1
    return booted


def _booted(rank: int, beat: Heartbeat, mono: float) -> RankStream:
    """Return a stream that begins with this line."""
    opens_step = beat.msg == _STEP_START
    before = beat.step - 1 if opens_step and beat.step else beat.step
    return RankStream(
        rank=rank,
        boot=beat.boot,
        pid=beat.pid,
        msg=beat.msg,
        first_mono=mono,
        heard_mono=mono,
        heard_ts=beat.ts,
        heard_seq=beat.seq,
        own_mono=beat.mono,
        first_began=beat.mono,
        step=beat.step,
        from_step=before,
        section=beat.section,
        section_seq=beat.section_seq,
        section_mono=mono,
        section_began=beat.mono,
        collective_seq=beat.collective_seq or 0,
        tells_collectives=beat.collective_seq is not None,
        labelled=beat.section is not None or beat.section_seq > 0,
        computes=_names_compute(beat),
        places=() if beat.section is None else (beat.section,),
        advanced_mono=mono,
        still_mono=mono,
        advanced_ts=beat.ts,
        started_mono=mono if opens_step else None,
        completed=before,
        done=beat.msg == _DONE,
        done_mono=mono,
        loss=beat.loss,
        grad_norm=beat.grad_norm,
        progress=beat if beat.msg == _PROGRESS else None,
    )


def _advance(stream: RankStream, beat: Heartbeat, mono: float) -> None:
    """Move the stream on by a line of the same boot, in order."""
    msg, step, section_seq, own_mono = beat.msg, beat.step, beat.section_seq, beat.mono
    if not (stream.labelled and stream.computes and stream.ends_steps):
        _learn(stream, beat)
    ends = step > stream.completed and _ends_step(msg, stream.labelled)
    steps_on = step > stream.step
    starts = msg == _STEP_START
    if not stream.ends_steps and msg in _FOLLOWS_STEP:
        _end_before(stream, beat)
    if steps_on or starts:  # a step may start anew, after an evaluation that fell into it
        sections_before = _sections_before(stream, section_seq, steps_on=steps_on)
        stream.step_section_seq = sections_before if starts else stream.section_seq
        stream.paused_seq = None
        stream.opened = step if starts else 0
        stream.between_s = _since_step_end_s(stream, beat) if starts else 0.0
    _place(stream, beat, mono, resets=ends or steps_on)
    stream.step = step
    if stream.started_mono is None and step > stream.from_step:
        stream.started_mono = mono
        if not ends:  # the end may be all that is told of it
            stream.first_began = own_mono
    ts = beat.ts
    if steps_on or ends:
        stream.advanced_mono = stream.still_mono = mono
        stream.rearmed = False
        stream.advanced_ts = ts
    if ends:
        _end_step(stream, beat)
    stream.pid, stream.msg, stream.own_mono = beat.pid, msg, own_mono
    stream.heard_mono, stream.heard_ts, stream.heard_seq = mono, ts, beat.seq
    collective_seq = beat.collective_seq
    if collective_seq is not None:
        stream.tells_collectives = True
        stream.collective_seq = max(stream.collective_seq, collective_seq)
    if ends:
        _count_step(stream, beat)
    _remember(stream, beat, mono)


def _sections_before(stream: RankStream, section_seq: int, *, steps_on: bool) -> int:
    """Return the section count from which those of a step are counted that starts with this line.

    One that starts anew goes on with what it had counted before its checkpoint or evaluation: the
    peers, who wait for that one, count on, too.
    """
    paused_seq = stream.paused_seq
    if steps_on or paused_seq is None or not stream.step_section_seq <= paused_seq < section_seq:
        return section_seq
    return stream.step_section_seq + section_seq - paused_seq


def _start_late(stream: RankStream, section_seq: int) -> None:
    """Let the present step have started at this section count, of a line that came late."""
    before = _sections_before(stream, section_seq, steps_on=False)
    if before != section_seq:  # anew, after a pause; the one that it stands in came after that
        stream.paused_seq = section_seq
    stream.step_section_seq = before


def _since_step_end_s(stream: RankStream, beat: Heartbeat) -> float:
    """Return how long ago the step before ended that this line follows; 0.0 where none did."""
    pace = stream.pace
    if pace.last_step != beat.step - 1:
        return 0.0
    return max(0.0, beat.mono - pace.last_mono - pace.excluded_s)


def _learn(stream: RankStream, beat: Heartbeat) -> None:
    """Learn what the rank tells at all: its sections, its computing, the ends of its steps."""
    stream.labelled = stream.labelled or beat.section is not None or beat.section_seq > 0
    stream.computes = stream.computes or _names_compute(beat)
    stream.ends_steps = stream.ends_steps or beat.msg == _STEP_END


def _end_step(stream: RankStream, beat: Heartbeat) -> None:
    """Let a line end its step."""
    if not stream.completed_steps:
        _time_first(stream, beat)
    stream.completed = beat.step
    stream.completed_steps += 1
    stream.pace.end(beat.step, beat.mono)


def _time_first(stream: RankStream, beat: Heartbeat) -> None:
    """Keep how long the first step took."""
    stream.first_s = max(stream.first_s, beat.mono - stream.first_began)


def _count_step(stream: RankStream, beat: Heartbeat) -> None:
    """Keep how many sections and collectives a step had: ranks may differ in that, and be well."""
    step, before = stream.ended_at
    collectives = -1
    if beat.collective_seq is not None:
        if step == beat.step - 1 and before:
            collectives = stream.collective_seq - before
        stream.ended_at = (beat.step, stream.collective_seq)
    if stream.opened == beat.step:
        sections = beat.section_seq - stream.step_section_seq
        kept = stream.step_counts[1 - STEP_COUNTS :]
        stream.step_counts = (*kept, (beat.step, sections, collectives))


def _end_before(stream: RankStream, beat: Heartbeat) -> None:
    """Let the start of a step, or its progress, end the one before, where no `step_end` is said.

    Its section line may have named the new step already. The first step that a process opens ends
    none: one that resumes may have said step 0 until then.
    """
    if stream.labelled and beat.step - 1 > stream.completed:
        stream.completed = beat.step - 1
        if stream.started_mono is None:
            stream.from_step = stream.completed
            return
        if not stream.completed_steps:
            _time_first(stream, beat)
        stream.completed_steps += 1
        stream.pace.end(beat.step - 1, beat.mono)


def _place(stream: RankStream, beat: Heartbeat, mono: float, *, resets: bool) -> None:
    """Move section and its clocks; `resets` begins the count of computing anew."""
    section, section_seq, own_mono = beat.section, beat.section_seq, beat.mono
    moved = section_seq != stream.section_seq or section != stream.section
    tail_s = own_tail_s = 0.0
    if moved and beat.section_age_s is not None:
        tail_s = _tail_s(beat.section_age_s, mono - stream.heard_mono)
        own_tail_s = _tail_s(beat.section_age_s, own_mono - stream.own_mono)
    compute_s = 0.0
    if not resets:
        compute_s = stream.computed_s(mono - tail_s)
        if tail_s and section in COMPUTE_SECTIONS:
            compute_s += tail_s
    stream.compute_s = compute_s
    _exclude(stream, beat, section, own_tail_s)
    over = resets and (beat.msg == _STEP_END or not stream.ends_steps)
    _set_apart(stream, section, own_mono, own_tail_s, over=over)
    if not moved:
        return
    _leave(stream, mono - tail_s, own_mono - own_tail_s)
    if section in NON_TRAINING_SECTIONS and stream.section not in NON_TRAINING_SECTIONS:
        stream.paused_seq = section_seq - 1
    if section is not None and section not in stream.places:
        stream.places = (*stream.places[1 - MOST_PLACES :], section)
    stream.section, stream.section_seq = section, section_seq
    stream.section_mono = mono - tail_s
    stream.section_began = own_mono - own_tail_s


def _leave(stream: RankStream, mono: float, own_mono: float) -> None:
    """Keep what peers may have waited for in the section that ends: at `mono`, or `own_mono`."""
    took_s = max(0.0, own_mono - stream.section_began)
    pauses = stream.section in NON_TRAINING_SECTIONS
    if took_s > LONG_WAIT_S and (pauses or stream.section == _DATA):
        waits = (*stream.long_waits, (stream.step, mono))
        stream.long_waits = waits[-LONG_WAITS:]
    if pauses:
        kept = stream.section_times[1 - SECTION_SAMPLES :]
        stream.section_times = (*kept, (str(stream.section), took_s))
        if stream.section == _EVAL:
            stream.evaluated_s += took_s
        stream.left_mono, stream.left_step = mono, stream.step
        if not stream.completed_steps:
            stream.first_began = own_mono
    elif stream.section == _DATA and took_s > (stream.pace.median_s or 0.0):
        stream.fed_mono, stream.fed_step = mono, stream.step


def _remember(stream: RankStream, beat: Heartbeat, mono: float) -> None:
    """Keep what the line says besides its place."""
    msg = beat.msg
    if msg == _PROGRESS:
        stream.progress = beat
    elif msg == _DONE:
        stream.done, stream.done_mono = True, mono
    elif msg == _HALT_SEEN:
        stream.halt_seen = True
    elif msg == _CHECKPOINT and 0.0 < (beat.dt or 0.0) < math.inf:
        stream.saved_s = (*stream.saved_s[1 - SECTION_SAMPLES :], beat.dt or 0.0)
    loss, grad_norm, toks_per_s, tokens = _NUMBERS(beat)
    if loss is not None:
        stream.loss = loss
    if grad_norm is not None:
        stream.grad_norm = grad_norm
    if toks_per_s is not None:
        stream.toks_per_s = toks_per_s
    if tokens is not None:
        stream.tokens = tokens


def _names_compute(beat: Heartbeat) -> bool:
    """Whether the line says when the rank computes: where it is, or how long that took."""
    times = beat.step_sections
    told = times is not None and times.forward + times.backward + times.optimizer > 0.0
    return told or beat.section in COMPUTE_SECTIONS


def _ends_step(msg: str, labelled: bool) -> bool:
    """Whether the line says that its step is over; a rank without labels may only say progress."""
    return msg == _STEP_END or (msg == _PROGRESS and not labelled)


def _tail_s(age_s: float, since_s: float) -> float:
    """Return how much of the time since the line before belongs to the line's own section."""
    if not math.isfinite(age_s):
        return 0.0
    return max(0.0, min(age_s, since_s))


def _set_apart(
    stream: RankStream, section: str | None, own_mono: float, tail_s: float, *, over: bool
) -> None:
    """Count the time since the line before that belongs to no section, or to one unknown."""
    if stream.labelled:
        if stream.section not in NAMED_SECTIONS:
            stream.apart_s += max(0.0, own_mono - stream.own_mono - tail_s)
        if tail_s and section not in NAMED_SECTIONS:
            stream.apart_s += tail_s
    if over:
        if stream.apart_s or stream.apart_times:
            stream.apart_times = (*stream.apart_times[1 - SECTION_SAMPLES :], stream.apart_s)
        stream.apart_s = 0.0


def _exclude(stream: RankStream, beat: Heartbeat, section: str | None, tail_s: float) -> None:
    """Take the time since the line before out of the pace where it was no training."""
    if stream.section in NON_TRAINING_SECTIONS:
        stream.pace.exclude(max(0.0, beat.mono - stream.own_mono - tail_s))
    if section in NON_TRAINING_SECTIONS:
        if tail_s:
            stream.pace.exclude(tail_s)
    elif _tells_alone(stream, beat) and 0.0 < (beat.dt or 0.0) < math.inf:
        stream.pace.exclude(beat.dt or 0.0)


def _tells_alone(stream: RankStream, beat: Heartbeat) -> bool:
    """Whether a checkpoint or eval line tells of time that no section of that name has told."""
    if beat.msg not in _NON_TRAINING:
        return False
    return all(name != beat.msg for name, _ in stream.section_times)


def _time_late(stream: RankStream, beat: Heartbeat) -> None:
    """Let a line that came out of order tell when its step ended.

    Not where time has been taken out since the step end before: it may belong to either step.
    """
    pace = stream.pace
    known = pace.last_step is not None and not pace.excluded_s
    if not known or not _ends_step(beat.msg, stream.labelled):
        return
    if beat.step > (pace.last_step or 0) and pace.last_mono < beat.mono <= stream.own_mono:
        pace.end(beat.step, beat.mono)
