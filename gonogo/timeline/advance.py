"""Move a rank on by one line: another boot, another step, another section, a line that came late.

The watcher's clock measures deadlines. The rank's own clock measures what sections and steps took.
"""

import math

from gonogo.contract.heartbeat import (
    COMPUTE_SECTIONS,
    NON_TRAINING_SECTIONS,
    Heartbeat,
    Msg,
    Section,
)
from gonogo.timeline.lines import Arrival
from gonogo.timeline.rank import NAMED_SECTIONS, SECTION_SAMPLES, RankStream

STEP_COUNTS = 64
"""Steps whose sections and collectives are kept."""
MOST_PLACES = 16
MOST_LEFT = 256
"""A run may evaluate on many data sets, one after the other, at one step."""
_MOVES_STEP = frozenset({Msg.STEP_START, Msg.STEP_END})
"""Messages whose step may not run backwards; a thread's `alive` line may lag by one."""
_FOLLOWS_STEP = frozenset({Msg.STEP_START, Msg.PROGRESS})
"""Messages of a step that only come when the one before is over."""
_PAUSES = frozenset({Msg.CHECKPOINT, Msg.EVAL})
_KEPT = frozenset({Msg.PROGRESS, Msg.DONE, Msg.HALT_SEEN, Msg.CHECKPOINT})
_BOOT, _STEP_START, _STEP_END, _PROGRESS = Msg.BOOT, Msg.STEP_START, Msg.STEP_END, Msg.PROGRESS
_DONE, _HALT_SEEN = Msg.DONE, Msg.HALT_SEEN
_LATE = Arrival.LATE
"""Local names: looking up a member of an enum costs too much for each line."""


def absorb(stream: RankStream, beat: Heartbeat, mono: float, arrival: Arrival) -> RankStream:
    """Return the stream after a line received at `mono`: the same one, or a restarted rank's."""
    if arrival is _LATE:
        _absorb_late(stream, beat)
    elif beat.boot != stream.boot:
        return _booted(stream, beat, mono)
    elif beat.step < stream.step:
        _absorb_earlier(stream, beat, mono)
    else:
        _advance(stream, beat, mono)
    return stream


def _absorb_late(stream: RankStream, beat: Heartbeat) -> None:
    """Take a line that fills a hole: it may end its step, and moves nothing else."""
    if _ends_step(stream, beat):
        pace = stream.pace
        in_order = pace.last_mono < beat.mono <= stream.own_mono and not pace.excluded_s
        _end_step(stream, beat.step, beat.mono, timed=in_order)
    elif beat.step == stream.step:
        if beat.msg == _STEP_START:
            stream.step_section_seq = beat.section_seq
        _end_step_before(stream, beat)


def _absorb_earlier(stream: RankStream, beat: Heartbeat, mono: float) -> None:
    """Take a line of an earlier step: numbers that come late, or a step that runs backwards."""
    progress = stream.progress
    if beat.msg in _MOVES_STEP:
        stream.backwards = beat.step
    elif beat.msg == _DONE:
        stream.done, stream.done_mono = True, mono
    elif beat.msg == _PROGRESS and (progress is None or progress.step < beat.step):
        tells_ends = stream.labelled and (stream.ends_steps or stream.opened > 0)
        if beat.step > stream.completed and not tells_ends:
            _end_step(stream, beat.step, beat.mono)
        stream.progress = beat
        _keep_numbers(stream, beat)
    stream.heard_mono, stream.heard_ts, stream.heard_seq = mono, beat.ts, beat.seq


def _booted(before: RankStream, beat: Heartbeat, mono: float) -> RankStream:
    """Return the stream of a boot that begins with this line."""
    opens_step = beat.msg == _STEP_START
    completed = beat.step - 1 if opens_step and beat.step else beat.step
    stream = RankStream(
        rank=before.rank,
        boot=beat.boot,
        pid=beat.pid,
        first_mono=mono,
        heard_mono=mono,
        heard_ts=beat.ts,
        heard_seq=beat.seq,
        own_mono=beat.mono,
        first_began=beat.mono,
        step=beat.step,
        from_step=completed,
        completed=completed,
        section=beat.section,
        section_seq=beat.section_seq,
        section_mono=mono,
        section_began=beat.mono,
        collective_seq=beat.collective_seq or 0,
        tells_collectives=beat.collective_seq is not None,
        labelled=beat.section is not None or beat.section_seq > 0,
        places=() if beat.section is None else (beat.section,),
        advanced_mono=mono,
        advanced_ts=beat.ts,
        started_mono=mono if opens_step else None,
        done=beat.msg == _DONE,
        done_mono=mono,
        loss=beat.loss,
        progress=beat if beat.msg == _PROGRESS else None,
    )
    if before.boot is not None:
        _continue(stream, before, mono)
    return stream


def _continue(stream: RankStream, before: RankStream, mono: float) -> None:
    """Let a boot take over what counts for all boots of its training."""
    stream.first_s, stream.evaluated_s = before.first_s, before.evaluated_s
    stream.left_mono, stream.left_step = mono, before.step
    stream.another = before.done and stream.step == 0 < before.completed
    if stream.another:
        return
    stream.top_step = max(before.top_step, before.completed)
    if before.completed <= before.top_step:
        only_evaluated = before.done and before.completed == 0
        trained_s = before.pace.last_mono - before.first_began if before.completed_steps else 0.0
        stream.idle_boots = before.idle_boots + (not only_evaluated)
        stream.idle_s = before.idle_s + max(0.0, trained_s)


def _advance(stream: RankStream, beat: Heartbeat, mono: float) -> None:
    """Move the stream on by a line of the same boot, in order."""
    msg, step, own_mono = beat.msg, beat.step, beat.mono
    if not (stream.labelled and stream.ends_steps):
        _learn(stream, beat)
    if not stream.ends_steps:
        _end_step_before(stream, beat)
    ends, steps_on = _ends_step(stream, beat), step > stream.step
    if steps_on or msg == _STEP_START:  # a step may start again, after an evaluation within it
        _open_step(stream, beat)
    _place(stream, beat, mono, resets=ends or steps_on)
    stream.step = step
    if stream.started_mono is None and step > stream.from_step:
        stream.started_mono = mono
        if not ends:  # its end may be the only line of the step
            stream.first_began = own_mono
    if steps_on or ends:
        stream.advanced_mono, stream.advanced_ts = mono, beat.ts
    stream.pid, stream.own_mono = beat.pid, own_mono
    stream.heard_mono, stream.heard_ts, stream.heard_seq = mono, beat.ts, beat.seq
    collective_seq = beat.collective_seq
    if collective_seq is not None:
        stream.tells_collectives = True
        stream.collective_seq = max(stream.collective_seq, collective_seq)
    if ends:
        _end_step(stream, step, own_mono)
        _count_step(stream, beat)
    if msg in _KEPT:
        _keep(stream, beat, mono)


def _open_step(stream: RankStream, beat: Heartbeat) -> None:
    """Begin the step of a line; one that starts again within the step begins no counts."""
    starts, pace = beat.msg == _STEP_START, stream.pace
    follows = starts and pace.last_step == beat.step - 1
    since_s = beat.mono - pace.last_mono - pace.excluded_s if follows else 0.0
    stream.between_s = max(0.0, since_s)
    stream.step_section_seq = beat.section_seq if starts else stream.section_seq
    stream.opened = beat.step if starts and beat.step > stream.step else 0


def _keep(stream: RankStream, beat: Heartbeat, mono: float) -> None:
    """Keep what a message shows besides the place of the rank."""
    msg = beat.msg
    _keep_numbers(stream, beat)
    if msg == _PROGRESS:
        stream.progress = beat
    elif msg == _DONE:
        stream.done, stream.done_mono = True, mono
    elif msg == _HALT_SEEN:
        stream.halt_seen = True
    elif 0.0 < (beat.dt or 0.0) < math.inf:
        stream.saved_s = (*stream.saved_s[1 - SECTION_SAMPLES :], beat.dt or 0.0)


def _learn(stream: RankStream, beat: Heartbeat) -> None:
    """Learn which lines the rank writes at all, and the step that it resumes from.

    A rank that has loaded a checkpoint of its own writes a second `boot` line. The step that it
    began before that line never ends.
    """
    stream.labelled = stream.labelled or beat.section is not None or beat.section_seq > 0
    stream.ends_steps = stream.ends_steps or beat.msg == _STEP_END
    if beat.msg == _BOOT and beat.step > stream.step and not stream.completed_steps:
        stream.from_step = stream.completed = beat.step
        stream.started_mono = None


def _ends_step(stream: RankStream, beat: Heartbeat) -> bool:
    """Whether the line ends its step; `progress` does if the rank names no sections."""
    if beat.msg != _STEP_END and (beat.msg != _PROGRESS or stream.labelled):
        return False
    return beat.step > stream.completed


def _end_step(stream: RankStream, step: int, own_mono: float, *, timed: bool = True) -> None:
    """Let a step end; `timed` if the clock of its end is known to be in order."""
    if not stream.completed_steps:
        stream.first_s = max(stream.first_s, own_mono - stream.first_began)
    stream.completed = step
    stream.completed_steps += 1
    if timed:
        stream.pace.end(step, own_mono)


def _end_step_before(stream: RankStream, beat: Heartbeat) -> None:
    """Let a line end the step before its own, if the rank never writes `step_end`.

    The first step that a process opens ends none: a resumed rank may have said step 0 until then.
    """
    before = beat.step - 1
    follows = beat.msg in _FOLLOWS_STEP and stream.labelled and not stream.ends_steps
    if not follows or before <= stream.completed:
        return
    if stream.started_mono is None:
        stream.from_step = stream.completed = before
    else:
        _end_step(stream, before, beat.mono)


def _count_step(stream: RankStream, beat: Heartbeat) -> None:
    """Keep the tokens, sections and collectives of a step."""
    if beat.tokens is not None:
        stream.tokens, stream.tokens_step = beat.tokens, beat.step
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


def _keep_numbers(stream: RankStream, beat: Heartbeat) -> None:
    """Keep the last loss and tokens."""
    if beat.loss is not None:
        stream.loss = beat.loss
    if beat.tokens is not None:
        stream.tokens, stream.tokens_step = beat.tokens, beat.step


def _place(stream: RankStream, beat: Heartbeat, mono: float, *, resets: bool) -> None:
    """Move section and its clocks; `resets` begins the count of computing again."""
    section, before = beat.section, stream.section
    moved = beat.section_seq != stream.section_seq or section != before
    own_mono, since_s = beat.mono, beat.mono - stream.own_mono
    tail_s = own_tail_s = 0.0
    """Of the seconds since the line before: those that belong to the section of this line."""
    if moved and beat.section_age_s is not None and math.isfinite(beat.section_age_s):
        tail_s = max(0.0, min(beat.section_age_s, mono - stream.heard_mono))
        own_tail_s = max(0.0, min(beat.section_age_s, since_s))
    apart = before not in NAMED_SECTIONS or section not in NAMED_SECTIONS
    if resets:
        stream.compute_s = 0.0
    else:
        computes_s = tail_s if section in COMPUTE_SECTIONS else 0.0
        stream.compute_s = stream.computed_s(mono - tail_s) + computes_s
    if before in NON_TRAINING_SECTIONS or section in NON_TRAINING_SECTIONS or beat.msg in _PAUSES:
        _exclude(stream, beat, max(0.0, since_s - own_tail_s), own_tail_s)
    if stream.labelled and (apart or resets):
        _set_apart(stream, section, max(0.0, since_s - own_tail_s), own_tail_s)
        if resets and (beat.msg == _STEP_END or not stream.ends_steps):
            stream.longest_apart_s = max(stream.longest_apart_s, stream.apart_s)
            stream.apart_s = 0.0
    if moved:
        _move(stream, beat, mono - tail_s, own_mono - own_tail_s)


def _set_apart(stream: RankStream, section: str | None, before_s: float, tail_s: float) -> None:
    """Count the seconds in no section, or in an unknown one, before a line and up to it."""
    if stream.section not in NAMED_SECTIONS:
        stream.apart_s += before_s
    if section not in NAMED_SECTIONS:
        stream.apart_s += tail_s


def _move(stream: RankStream, beat: Heartbeat, mono: float, own_mono: float) -> None:
    """Let the rank enter the section of a line, at `mono` or `own_mono`."""
    section = beat.section
    if stream.section in NON_TRAINING_SECTIONS:
        _leave_pause(stream, mono, own_mono)
    if section is not None and section not in stream.places:
        stream.places = (*stream.places[1 - MOST_PLACES :], section)
    stream.section, stream.section_seq = section, beat.section_seq
    stream.section_mono, stream.section_began = mono, own_mono


def _leave_pause(stream: RankStream, mono: float, own_mono: float) -> None:
    """Keep what a checkpoint or an evaluation took that ends now."""
    section, took_s = str(stream.section), max(0.0, own_mono - stream.section_began)
    stream.section_times = (*stream.section_times[1 - SECTION_SAMPLES :], (section, took_s))
    if section == Section.EVAL:
        stream.evaluated_s += took_s
    left = stream.left if stream.left_step == stream.step else ()
    stream.left = (*left[1 - MOST_LEFT :], section)
    stream.left_mono, stream.left_step = mono, stream.step
    if not stream.completed_steps:
        stream.first_began = own_mono


def _exclude(stream: RankStream, beat: Heartbeat, before_s: float, tail_s: float) -> None:
    """Take the time since the line before out of the step time where the rank did not train.

    A checkpoint or eval line may report seconds (`dt`) that no section of that name has shown.
    """
    if stream.section in NON_TRAINING_SECTIONS:
        stream.pace.excluded_s += before_s
    if beat.section in NON_TRAINING_SECTIONS:
        stream.pace.excluded_s += tail_s
    elif beat.msg in _PAUSES and all(name != beat.msg for name, _ in stream.section_times):
        dt = beat.dt or 0.0
        stream.pace.excluded_s += dt if 0.0 < dt < math.inf else 0.0
