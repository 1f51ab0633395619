"""One rank's heartbeats folded, line by line: a boot, a step that advances, a line come late."""

import math
from operator import attrgetter

from gonogo.contract.heartbeat import COMPUTE_SECTIONS, Heartbeat, Msg
from gonogo.timeline.lines import Arrival
from gonogo.timeline.place import place, sections_before, start_late
from gonogo.timeline.rank import SECTION_SAMPLES, RankStream

STEP_COUNTS = 64
"""Steps whose sections and collectives are kept."""
_MOVES_STEP = frozenset({Msg.STEP_START, Msg.STEP_END})
"""Messages whose step may not run backwards; a thread's `alive` line may lag by one."""
_FOLLOWS_STEP = frozenset({Msg.STEP_START, Msg.PROGRESS})
"""Messages of a step that only come when the one before is over."""
_BOOT, _STEP_START, _STEP_END, _PROGRESS = Msg.BOOT, Msg.STEP_START, Msg.STEP_END, Msg.PROGRESS
_DONE, _HALT_SEEN, _CHECKPOINT = Msg.DONE, Msg.HALT_SEEN, Msg.CHECKPOINT
_LATE = Arrival.LATE
"""Names of our own: to ask an enum for a member is dear where it is done of each line."""
_NUMBERS = attrgetter("loss", "grad_norm", "toks_per_s", "tokens")


def absorb(stream: RankStream, beat: Heartbeat, mono: float, arrival: Arrival) -> RankStream:
    """Return the stream after one line, received at `mono`: the same one, or a restarted rank's."""
    if arrival is _LATE:
        _time_late(stream, beat)
        if beat.step == stream.step:
            if beat.msg == _STEP_START:
                start_late(stream, beat.section_seq)
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
        elif beat.msg == _PROGRESS and _is_news(stream, beat):
            _end_after(stream, beat)
            _remember(stream, beat, mono)  # numbers that it reads while the next step goes on
        stream.heard_mono, stream.heard_ts, stream.heard_seq = mono, beat.ts, beat.seq
        return stream
    _advance(stream, beat, mono)
    return stream


def _follow(booted: RankStream, before: RankStream, beat: Heartbeat, mono: float) -> RankStream:
    """Return the stream of a boot, with what it takes over from the one before."""
    gained = before.completed > before.top_step
    booted.first_s, booted.evaluated_s = before.first_s, before.evaluated_s
    booted.left_mono, booted.left_step = mono, before.step
    booted.named = before.named
    booted.another = before.done and beat.step == 0 < before.completed
    if not booted.another:
        booted.top_step = max(before.top_step, before.completed)
        trained_nothing = before.done and before.completed == 0  # an evaluation has not failed
        if not gained:
            booted.idle_boots = before.idle_boots + (not trained_nothing)
            booted.idle_s = before.idle_s + _trained_s(before)
    return booted


def _trained_s(stream: RankStream) -> float:
    """Return for how long a boot has ended steps, on the rank's own clock."""
    ended = stream.pace.last_mono - stream.first_began if stream.completed_steps else 0.0
    return max(0.0, ended)


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
        before = sections_before(stream, section_seq, steps_on=steps_on)
        stream.step_section_seq = before if starts else stream.section_seq
        stream.paused_seq = None
        stream.opened = step if starts else 0
        stream.between_s = _since_step_end_s(stream, beat) if starts else 0.0
    place(stream, beat, mono, resets=ends or steps_on)
    stream.step = step
    if stream.started_mono is None and step > stream.from_step:
        stream.started_mono = mono
        if not ends:  # the end may be all that is told of it
            stream.first_began = own_mono
    ts = beat.ts
    if steps_on or ends:
        stream.advanced_mono = mono
        stream.advanced_ts = ts
    stream.pid, stream.msg, stream.own_mono = beat.pid, msg, own_mono
    stream.heard_mono, stream.heard_ts, stream.heard_seq = mono, ts, beat.seq
    collective_seq = beat.collective_seq
    if collective_seq is not None:
        stream.tells_collectives = True
        stream.collective_seq = max(stream.collective_seq, collective_seq)
    if ends:
        _end_step(stream, beat)
        _count_step(stream, beat)
    _remember(stream, beat, mono)


def _since_step_end_s(stream: RankStream, beat: Heartbeat) -> float:
    """Return how long ago the step before ended that this line follows; 0.0 where none did."""
    pace = stream.pace
    if pace.last_step != beat.step - 1:
        return 0.0
    return max(0.0, beat.mono - pace.last_mono - pace.excluded_s)


def _learn(stream: RankStream, beat: Heartbeat) -> None:
    """Learn what the rank tells at all (sections, computing, ends of steps), and where it begins.

    One that has loaded a checkpoint of its own says so in a second `boot` line: the step that it
    had begun by then never ends, and was not its first.
    """
    stream.labelled = stream.labelled or beat.section is not None or beat.section_seq > 0
    stream.computes = stream.computes or _names_compute(beat)
    stream.ends_steps = stream.ends_steps or beat.msg == _STEP_END
    if beat.msg == _BOOT and beat.step > stream.step and not stream.completed_steps:
        stream.from_step = stream.completed = beat.step
        stream.started_mono = None


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


def _end_after(stream: RankStream, beat: Heartbeat) -> None:
    """Let numbers end their step that come while the next one goes on, where nothing else does.

    Nobody knows when those ended that are told together: each of them is less late than the last.
    """
    before, stream.late_by = stream.late_by, stream.step - beat.step
    if beat.step <= stream.completed or (stream.labelled and stream.ends_steps):
        return
    if stream.labelled and stream.opened:
        return  # the start of the next one has
    if stream.completed_steps and stream.late_by != before:
        return
    if not stream.completed_steps:
        _time_first(stream, beat)
    stream.completed = beat.step
    stream.completed_steps += 1
    stream.pace.end(beat.step, beat.mono)


def _is_news(stream: RankStream, beat: Heartbeat) -> bool:
    """Whether no numbers of this step or a later one have been told."""
    return stream.progress is None or stream.progress.step < beat.step


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
        stream.tokens, stream.tokens_step = tokens, beat.step


def _names_compute(beat: Heartbeat) -> bool:
    """Whether the line says when the rank computes: where it is, or how long that took."""
    times = beat.step_sections
    told = times is not None and times.forward + times.backward + times.optimizer > 0.0
    return told or beat.section in COMPUTE_SECTIONS


def _ends_step(msg: str, labelled: bool) -> bool:
    """Whether the line says that its step is over; a rank without labels may only say progress."""
    return msg == _STEP_END or (msg == _PROGRESS and not labelled)


def _time_late(stream: RankStream, beat: Heartbeat) -> None:
    """Let a line that came out of order end its step, and tell when that was.

    Not when, where time has been taken out since the step end before: it may belong to either step.
    """
    if not _ends_step(beat.msg, stream.labelled):
        return
    if beat.step > stream.completed:
        if not stream.completed_steps:
            _time_first(stream, beat)
        stream.completed = beat.step
        stream.completed_steps += 1
    pace = stream.pace
    if pace.last_step is None or pace.excluded_s:
        return
    if beat.step > (pace.last_step or 0) and pace.last_mono < beat.mono <= stream.own_mono:
        pace.end(beat.step, beat.mono)
