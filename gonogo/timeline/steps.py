"""Which steps has every rank completed? Steps of single ranks, merged as they end.

A step that some rank never ends (its line was lost) is passed over when a later one is whole. A
rank that names its sections ends a step with `step_end`. If it never writes that, the start or the
progress of the next step ends it. A rank without sections ends a step with `progress`.

Numbers that come after `step_end` belong to their step, too. So a step without numbers waits until
the rank writes its next line of a later step. A rank that reads its numbers late may be `MOST_LATE`
steps ahead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.tick import Tick
from gonogo.timeline.rank import RankStream
from gonogo.timeline.step import RankStep, Step

_BOOT, _DONE, _PROGRESS = Msg.BOOT, Msg.DONE, Msg.PROGRESS
_STEP_START, _STEP_END = Msg.STEP_START, Msg.STEP_END
_GOES_ON = frozenset({_STEP_START, _PROGRESS, _DONE})
"""Lines that show that a step is over whose only line was its progress."""
MOST_OPEN = 256
"""Steps that wait for a rank; beyond that the oldest waits no longer."""
MOST_LATE = 16
"""Steps that wait for their rank's numbers; later numbers belong to no step."""


class Ranks(NamedTuple):
    """The ranks of a run."""

    ordered: int
    streams: Mapping[int, RankStream]
    """Those that have written a line."""


@dataclass(slots=True)
class Steps:
    """The steps that some ranks have ended and others have not."""

    waiting: dict[int, dict[int, RankStep]] = field(default_factory=dict)
    bare: dict[int, dict[int, RankStep]] = field(default_factory=dict)
    """Rank → the steps that it has ended, but whose numbers or time may still come."""
    last: int = 0
    """Highest step that was whole, or that the first rank ended alone."""
    made: int = 0
    """The last step that was made whole, whatever restarted since."""
    late: set[int] = field(default_factory=set)
    """Ranks that have written numbers of a step after they had begun the next one."""

    def take(self, beat: Heartbeat, stream: RankStream, ranks: Ranks, tick: Tick) -> list[Step]:
        """Take a line, after its stream did; return the steps that it makes whole."""
        if beat.msg == _BOOT:
            self._forget(beat)
            return []
        if beat.step < stream.step and beat is stream.progress:
            self.late.add(beat.rank)
        ready = self._finished(beat, stream) if beat.rank in self.bare else []
        end = beat if beat.msg == _STEP_END and stream.labelled else _end_of(beat, stream)
        if end is not None and end.boot == stream.boot and end.step > self.last:
            row = _rank_step(end, stream)
            if row.progress is None or (end.msg == _PROGRESS and stream.labelled):
                self._keep(row)
            else:
                if beat.rank in self.bare:
                    ready += self._earlier(row, stream)
                ready.append(row)
        made: list[Step] = []
        for row in ready:
            made += self._add(row, stream, ranks, tick)
        return made

    def _keep(self, row: RankStep) -> None:
        """Keep a rank's step until its numbers come, or the rank has gone on for long enough."""
        before = self.bare.get(row.rank, {})
        rows = {number: kept for number, kept in before.items() if kept.boot == row.boot}
        rows[row.end.step] = row
        if len(rows) > MOST_LATE + 1:
            del rows[min(rows)]
        self.bare[row.rank] = rows

    def _earlier(self, row: RankStep, stream: RankStream) -> list[RankStep]:
        """Return the bare steps of the same process before a complete one; none is kept."""
        rows = sorted(self.bare.pop(row.rank, {}).items())
        number = row.end.step
        return [_timed(kept, stream) for n, kept in rows if n < number and kept.boot == row.boot]

    def _finished(self, beat: Heartbeat, stream: RankStream) -> list[RankStep]:
        """Return the bare steps of a rank that this line finishes."""
        rows, found = self.bare[beat.rank], list[RankStep]()
        told = beat.msg == _PROGRESS and beat.step in rows
        late = MOST_LATE if beat.rank in self.late else 0
        for number, row in sorted(rows.items()):
            if row.boot != beat.boot:
                continue
            if told and number == beat.step and row.progress is None:
                found.append(replace(row, progress=beat))
            elif (told and number < beat.step) or _is_over(beat, row, late):
                found.append(_timed(row, stream))
            else:
                continue
            del rows[number]
        if not rows:
            del self.bare[beat.rank]
        return found

    def _add(self, row: RankStep, stream: RankStream, ranks: Ranks, tick: Tick) -> list[Step]:
        """Add one rank's step; return it merged, if that makes it whole."""
        number = row.end.step
        if number <= self.last:
            return []
        rows = self.waiting.setdefault(number, {})
        rows[row.rank] = row
        needed = ranks.ordered if stream.labelled else len(ranks.streams)
        if len(rows) < needed:
            if len(self.waiting) <= MOST_OPEN:
                return []
            number = min(self.waiting)
            rows = self.waiting.pop(number)
            if min(ranks.streams) not in rows:
                return []
        for step in [step for step in self.waiting if step <= number]:
            del self.waiting[step]
        self.last, again, self.made = number, number <= self.made, number
        whole = len(rows) >= ranks.ordered
        return [
            Step(step=number, ranks=dict(sorted(rows.items())), tick=tick, whole=whole, again=again)
        ]

    def _forget(self, boot: Heartbeat) -> None:
        """Forget what a rank had ended before it restarted, and go back to its step."""
        for number, rows in list(self.waiting.items()):
            rows.pop(boot.rank, None)
            if not rows:
                del self.waiting[number]
        self.bare.pop(boot.rank, None)
        self.last = min(self.last, boot.step)


def _is_over(beat: Heartbeat, row: RankStep, late: int) -> bool:
    """Whether a line shows that no number of a step will come, of a rank that may be `late`."""
    if beat.msg == _DONE:
        return True
    if row.progress is not None and beat.msg not in _GOES_ON:
        return False
    return beat.step - row.end.step > late


def _timed(row: RankStep, stream: RankStream) -> RankStep:
    """Return a step whose only line was its progress, with the time that later lines show."""
    if row.progress is None or row.dt_s is not None:
        return row
    return replace(row, dt_s=_dt_s(row.end, stream))


def _end_of(beat: Heartbeat, stream: RankStream) -> Heartbeat | None:
    """Return the line as the end of a step, if it is one, of a rank that may write no `step_end`.

    The start of a step ends the one before. Without starts, progress may be all that is written.
    """
    if beat.msg == _PROGRESS:
        ends = not stream.labelled or (not stream.ends_steps and stream.opened < beat.step)
        return beat if ends else None
    if beat.msg != _STEP_START or stream.ends_steps or stream.completed != beat.step - 1:
        return None
    return beat.model_copy(update={"step": stream.completed})


def _rank_step(beat: Heartbeat, stream: RankStream) -> RankStep:
    progress = stream.progress
    if progress is not None and (progress.step != beat.step or progress.boot != beat.boot):
        progress = None
    return RankStep(
        rank=beat.rank,
        boot=beat.boot,
        mono=beat.mono,
        dt_s=_dt_s(beat, stream),
        progress=progress,
        end=beat,
        between_s=stream.between_s if stream.opened == beat.step else 0.0,
    )


def _dt_s(end: Heartbeat, stream: RankStream) -> float | None:
    """Return the seconds of the step that a line ends, if the stream has timed that step."""
    pace = stream.pace
    timed = pace.sampled_step == end.step and pace.stride == 1 and bool(pace.times_s)
    return pace.times_s[-1] if timed else None
