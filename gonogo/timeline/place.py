"""In which section does a line find a rank, how long was it in the one before, and what counts?

Only the watcher's clock is held against limits; what a section took is told by the rank's own.
"""

import math

from gonogo.contract.heartbeat import (
    COMPUTE_SECTIONS,
    NON_TRAINING_SECTIONS,
    Heartbeat,
    Msg,
    Section,
)
from gonogo.timeline.rank import (
    APART_SAMPLES,
    NAMED_SECTIONS,
    SECTION_SAMPLES,
    RankStream,
)

MOST_PLACES = 16
MOST_LEFT = 256
"""A run may evaluate on many data sets, one after the other, at one step."""
LONG_WAIT_S, LONG_WAITS = 10.0, 8
"""So many are kept of what peers may have waited for that took so long: who waited may be heard
when the rank has saved, evaluated or fetched again. Many save and name nothing: in no section they
may have been waited for, too."""
NAMED_APART = NON_TRAINING_SECTIONS | {Section.DATA}
"""What takes long now and then, and who does not name it does in no section, or as a step."""
_PAUSES = frozenset({Msg.CHECKPOINT, Msg.EVAL})
_COMPUTED = COMPUTE_SECTIONS | {Section.LOG}
_STEP_END, _DATA, _EVAL = Msg.STEP_END, Section.DATA, Section.EVAL
"""Names of our own: to ask an enum for a member is dear where it is done of each line."""


def place(stream: RankStream, beat: Heartbeat, mono: float, *, resets: bool) -> None:
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
    before = stream.section
    if before in NON_TRAINING_SECTIONS or section in NON_TRAINING_SECTIONS or beat.msg in _PAUSES:
        _exclude(stream, beat, section, own_tail_s)
    since_s = own_mono - stream.own_mono - own_tail_s
    if since_s > 0.0 and _computes_in(stream, before):
        stream.pace.compute(since_s)
    if own_tail_s and _computes_in(stream, section):
        stream.pace.compute(own_tail_s)
    over = resets and (beat.msg == _STEP_END or not stream.ends_steps)
    if over or before not in NAMED_SECTIONS or section not in NAMED_SECTIONS:
        _set_apart(stream, section, own_mono, own_tail_s, over=over)
    if not moved:
        return
    _leave(stream, mono - tail_s, own_mono - own_tail_s)
    if section is not None and (section in NAMED_APART or section not in stream.places):
        _enter(stream, section, section_seq)
    stream.section, stream.section_seq = section, section_seq
    stream.section_mono = mono - tail_s
    stream.section_began = own_mono - own_tail_s


def _enter(stream: RankStream, section: str, section_seq: int) -> None:
    """Keep what a rank names of its places, and where a pause began."""
    if section in NON_TRAINING_SECTIONS and stream.section not in NON_TRAINING_SECTIONS:
        stream.paused_seq = section_seq - 1
    if section in NAMED_APART and section not in stream.named:
        stream.named = (*stream.named, section)
    if section not in stream.places:
        stream.places = (*stream.places[1 - MOST_PLACES :], section)


def _computes_in(stream: RankStream, section: str | None) -> bool:
    """Whether a rank computes there, or waits (in log) for one that does.

    One that never names its computing does so in no section.
    """
    if section in _COMPUTED or not stream.labelled:
        return True
    return section is None and not stream.computes


def sections_before(stream: RankStream, section_seq: int, *, steps_on: bool) -> int:
    """Return the section count from which those of a step are counted that starts with this line.

    One that starts anew goes on with what it had counted before its checkpoint or evaluation: the
    peers, who wait for that one, count on, too.
    """
    paused_seq = stream.paused_seq
    if steps_on or paused_seq is None or not stream.step_section_seq <= paused_seq < section_seq:
        return section_seq
    return stream.step_section_seq + section_seq - paused_seq


def start_late(stream: RankStream, section_seq: int) -> None:
    """Let the present step have started at this section count, of a line that came late."""
    before = sections_before(stream, section_seq, steps_on=False)
    if before != section_seq:  # anew, after a pause; the one that it stands in came after that
        stream.paused_seq = section_seq
    stream.step_section_seq = before


def _leave(stream: RankStream, mono: float, own_mono: float) -> None:
    """Keep what peers may have waited for in the section that ends: at `mono`, or `own_mono`."""
    took_s = max(0.0, own_mono - stream.section_began)
    pauses = stream.section in NON_TRAINING_SECTIONS
    if took_s > LONG_WAIT_S and (
        pauses or stream.section == _DATA or stream.section not in NAMED_SECTIONS
    ):
        waits = (*stream.long_waits, (stream.step, mono))
        stream.long_waits = waits[-LONG_WAITS:]
    if pauses:
        kept = stream.section_times[1 - SECTION_SAMPLES :]
        stream.section_times = (*kept, (str(stream.section), took_s))
        if stream.section == _EVAL:
            stream.evaluated_s += took_s
        left = stream.left if stream.left_step == stream.step else ()
        stream.left = (*left[1 - MOST_LEFT :], str(stream.section))
        stream.left_mono, stream.left_step = mono, stream.step
        if not stream.completed_steps:
            stream.first_began = own_mono
    elif stream.section == _DATA and took_s > (stream.pace.median_s or 0.0):
        stream.fed_mono, stream.fed_step = mono, stream.step


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
            stream.apart_times = (*stream.apart_times[1 - APART_SAMPLES :], stream.apart_s)
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
    if beat.msg not in _PAUSES:
        return False
    return all(name != beat.msg for name, _ in stream.section_times)
