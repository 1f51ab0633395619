"""Move a rank on by one line: another boot, another step, another section, numbers that came late.

The watcher's clock measures deadlines. The rank's own clock measures what sections and steps took.

A rank that names its sections ends a step with `step_end`. If it never writes that, the next step
ends the one before. A rank without sections ends a step with `progress`. Numbers may come after the
end of their step: the step waits for them until a later step, or for `MOST_LATE` steps if the rank
has once read its numbers late.
"""

import math

from gonogo.contract.heartbeat import (
    COMPUTE_SECTIONS,
    NON_TRAINING_SECTIONS,
    Heartbeat,
    Msg,
    Section,
)
from gonogo.timeline.rank import NAMED_SECTIONS, SECTION_SAMPLES, RankStream
from gonogo.timeline.step import RankStep

STEP_COUNTS = 64
"""Steps whose sections and collectives are kept."""
MOST_PLACES = 16
MOST_LATE = 16
"""Steps that wait for their rank's numbers; later numbers belong to no step."""
_MOVES_STEP = frozenset({Msg.STEP_START, Msg.STEP_END})
"""Messages whose step may not run backwards; a thread's `alive` line may lag by one."""
_FOLLOWS_STEP = frozenset({Msg.STEP_START, Msg.PROGRESS})
"""Messages of a step that only come when the one before is over."""
_PAUSES = frozenset({Msg.CHECKPOINT, Msg.EVAL})
_KEPT = frozenset({Msg.PROGRESS, Msg.DONE, Msg.HALT_SEEN, Msg.CHECKPOINT})
_BOOT, _STEP_START, _STEP_END, _PROGRESS = Msg.BOOT, Msg.STEP_START, Msg.STEP_END, Msg.PROGRESS
_DONE, _HALT_SEEN = Msg.DONE, Msg.HALT_SEEN
"""Local names: looking up a member of an enum costs too much for each line."""


def absorb(stream: RankStream, beat: Heartbeat, mono: float) -> RankStream:
    """Return the stream after a line received at `mono`: the same one, or a restarted rank's."""
    if beat.boot != stream.boot:
        return _booted(stream, beat, mono)
    msg, step = beat.msg, beat.step
    if stream.ending:
        _release(stream, beat)
    if step < stream.step:
        _absorb_earlier(stream, beat, mono)
    else:
        if not (stream.labelled and stream.ends_steps):
            _learn(stream, beat)
        if msg in _KEPT:
            _keep(stream, beat, mono)
        if beat.tokens is not None:
            stream.tokens = beat.tokens
        opens, ends = step > stream.step, step > stream.completed
        ends = ends and (msg == _STEP_END or (msg == _PROGRESS and not stream.labelled))
        if opens or msg == _STEP_START:  # a step may start again, after an evaluation within it
            _open_step(stream, beat, mono, ends=ends)
        _place(stream, beat, mono, resets=ends or opens)
        stream.step, stream.pid, stream.own_mono = step, beat.pid, beat.mono
        if ends:
            stream.advanced_mono, stream.advanced_ts = mono, beat.ts
            _end_step(stream, step, beat)
        elif beat.collective_seq is not None:
            stream.collective_seq = max(stream.collective_seq, beat.collective_seq)
    stream.heard_mono, stream.heard_ts, stream.heard_seq = mono, beat.ts, beat.seq
    return stream


def absorb_late(stream: RankStream, beat: Heartbeat) -> None:
    """Take a line that fills a hole: it may bring numbers or end its step, and moves nothing."""
    if stream.ending:
        _release(stream, beat)
    ends = beat.msg == _STEP_END or (beat.msg == _PROGRESS and not stream.labelled)
    if ends and beat.step > stream.completed:
        _end_step(stream, beat.step, beat)


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
    stream.left_mono = mono
    stream.another = before.done and stream.step == 0 < before.completed
    if stream.another:
        return
    stream.top_step = max(before.top_step, before.completed)
    if before.completed <= before.top_step:
        only_evaluated = before.done and before.completed == 0
        stream.idle_boots = before.idle_boots + (not only_evaluated)


def _absorb_earlier(stream: RankStream, beat: Heartbeat, mono: float) -> None:
    """Take a line of an earlier step: numbers that come late, or a step that runs backwards."""
    before = stream.progress
    if beat.msg in _MOVES_STEP:
        stream.backwards = beat.step
    elif beat.msg == _DONE:
        stream.done, stream.done_mono = True, mono
    elif beat.msg == _PROGRESS and (before is None or before.step < beat.step):
        stream.reads_late = True
        _keep(stream, beat, mono)
        reports_ends = stream.labelled and (stream.ends_steps or stream.opened > 0)
        if beat.step > stream.completed and not reports_ends:
            _end_step(stream, beat.step, beat)


def _learn(stream: RankStream, beat: Heartbeat) -> None:
    """Learn which lines the rank writes at all, the step that it resumes from, and ends of steps.

    A rank that has loaded a checkpoint of its own writes a second `boot` line. The step that it
    began before that line never ends. The first step that a process opens ends none: a resumed rank
    may have reported step 0 until then.
    """
    stream.labelled = stream.labelled or beat.section is not None or beat.section_seq > 0
    stream.ends_steps = stream.ends_steps or beat.msg == _STEP_END
    before = beat.step - 1
    if beat.msg == _BOOT:
        if beat.step > stream.step and not stream.completed_steps:
            stream.from_step = stream.completed = beat.step
            stream.started_mono = None
    elif beat.msg in _FOLLOWS_STEP and stream.labelled and not stream.ends_steps:
        if before <= stream.completed:
            return
        if stream.started_mono is None:
            stream.from_step = stream.completed = before
        else:
            _end_step(stream, before, beat)


def _open_step(stream: RankStream, beat: Heartbeat, mono: float, *, ends: bool) -> None:
    """Begin the step of a line; one that starts again within the step begins no counts."""
    starts, pace, opens = beat.msg == _STEP_START, stream.pace, beat.step > stream.step
    follows = starts and pace.last_step == beat.step - 1
    since_s = beat.mono - pace.last_mono - pace.excluded_s if follows else 0.0
    stream.between_s = max(0.0, since_s)
    stream.step_section_seq = beat.section_seq if starts else stream.section_seq
    stream.begun = starts + (0 if opens else stream.begun)
    stream.opened = beat.step if starts and opens else 0
    if opens:
        stream.advanced_mono, stream.advanced_ts = mono, beat.ts
    if stream.started_mono is None and beat.step > stream.from_step:
        stream.started_mono = mono
        if not ends:  # its end may be the only line of the step
            stream.first_began = beat.mono


def _keep(stream: RankStream, beat: Heartbeat, mono: float) -> None:
    """Keep what a message shows besides the place of the rank."""
    msg = beat.msg
    if beat.loss is not None:
        stream.loss = beat.loss
    if msg == _PROGRESS:
        stream.progress = beat
    elif msg == _DONE:
        stream.done, stream.done_mono = True, mono
    elif msg == _HALT_SEEN:
        stream.halt_seen = True
    elif 0.0 < (beat.dt or 0.0) < math.inf:
        stream.saved_s = (*stream.saved_s[1 - SECTION_SAMPLES :], beat.dt or 0.0)


def _end_step(stream: RankStream, step: int, beat: Heartbeat) -> None:
    """Let a line end a step, its own or the one before; keep the counts of its own."""
    if not stream.completed_steps:
        stream.first_s = max(stream.first_s, beat.mono - stream.first_began)
    stream.completed = step
    stream.completed_steps += 1
    progress, own = stream.progress, beat.step == step
    row = RankStep(
        rank=stream.rank,
        boot=beat.boot,
        step=step,
        dt_s=stream.pace.end(step, beat.mono),
        progress=progress if progress is not None and progress.step == step else None,
        tokens=beat.tokens if own else None,
        sections=beat.step_sections if own else None,
        between_s=stream.between_s if stream.opened == step else 0.0,
    )
    if row.progress is None:
        stream.ending[step] = row
    else:
        stream.ready += stream.ending.values()
        stream.ending.clear()
        stream.ready.append(row)
    if not own:
        return
    collectives = -1
    if beat.collective_seq is not None:
        stream.collective_seq = max(stream.collective_seq, beat.collective_seq)
        last, before = stream.ended_at
        if last == step - 1 and before:
            collectives = stream.collective_seq - before
        stream.ended_at = (step, stream.collective_seq)
    if stream.opened == step:
        counts = (step, beat.section_seq - stream.step_section_seq, collectives)
        stream.step_counts = (*stream.step_counts[1 - STEP_COUNTS :], counts)


def _release(stream: RankStream, beat: Heartbeat) -> None:
    """Complete the steps whose numbers a line brings, or whose numbers will not come any more."""
    brings = beat.msg == _PROGRESS and beat.step in stream.ending
    late = MOST_LATE if stream.reads_late else 0
    for step in list(stream.ending):
        if brings and step == beat.step:
            stream.ending[step].progress = beat
        elif not ((brings and step < beat.step) or beat.msg == _DONE or beat.step - step > late):
            continue
        stream.ready.append(stream.ending.pop(step))


def _place(stream: RankStream, beat: Heartbeat, mono: float, *, resets: bool) -> None:
    """Move section and its clocks; `resets` begins the count of computing again."""
    section, before = beat.section, stream.section
    moved = beat.section_seq != stream.section_seq or section != before
    since_s, tail_s = beat.mono - stream.own_mono, 0.0
    """Seconds since the line before, and those of them in the section of this line."""
    if moved and beat.section_age_s is not None:  # the last of these may be NaN
        tail_s = max(0.0, min(mono - stream.heard_mono, since_s, beat.section_age_s))
    if resets:
        stream.compute_s = 0.0
    else:
        stream.compute_s = stream.computed_s(mono - tail_s) + tail_s * (section in COMPUTE_SECTIONS)
    if before in NON_TRAINING_SECTIONS:
        stream.pace.excluded_s += since_s - tail_s
    if section in NON_TRAINING_SECTIONS:
        stream.pace.excluded_s += tail_s
    elif beat.msg in _PAUSES:
        _exclude_told(stream, beat)
    if before not in NAMED_SECTIONS and (moved or resets):
        apart_s = beat.mono - tail_s - max(stream.section_began, stream.pace.last_mono)
        stream.longest_apart_s = max(stream.longest_apart_s, apart_s)
    if not moved:
        return
    if before in NON_TRAINING_SECTIONS:
        _leave_pause(stream, mono - tail_s, beat.mono - tail_s)
    if section is not None and section not in stream.places:
        stream.places = (*stream.places[1 - MOST_PLACES :], section)
    stream.section, stream.section_seq = section, beat.section_seq
    stream.section_mono, stream.section_began = mono - tail_s, beat.mono - tail_s


def _exclude_told(stream: RankStream, beat: Heartbeat) -> None:
    """Take seconds that a checkpoint or eval line reports, and no such section, out of a step."""
    dt = beat.dt or 0.0
    if 0.0 < dt < math.inf and beat.msg not in dict(stream.section_times):
        stream.pace.excluded_s += dt


def _leave_pause(stream: RankStream, mono: float, own_mono: float) -> None:
    """Keep what a checkpoint or an evaluation took that ends now."""
    section, took_s = str(stream.section), max(0.0, own_mono - stream.section_began)
    stream.section_times = (*stream.section_times[1 - SECTION_SAMPLES :], (section, took_s))
    if section == Section.EVAL:
        stream.evaluated_s += took_s
    stream.left_mono = mono
    if not stream.completed_steps:
        stream.first_began = own_mono
