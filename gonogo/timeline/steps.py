"""Which steps has every rank completed? Steps of single ranks, merged as they end.

A step that not every rank ends (its line was lost) is passed over when a later one is whole. Where
ranks do not wait for each other, and are far apart, a step is what the first of them says of it. A
rank that names its sections ends a step with `step_end`, or, where it never says so, with the start
of the next, or, where it tells no starts either, with the next one's `progress`; one that names
none, with `progress`. Numbers that come after `step_end` belong to its step as well, so a step
without any waits for what its rank says next; of a rank that has told some when later steps went on
(it reads them from its device when that has the next ones) until as many later ones are over.
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
"""Lines that show that a step is over of which nothing but its progress was told."""
_OVERTAKES = frozenset({_STEP_END, _PROGRESS, _DONE})
"""Lines of a later step after which no number of the one before it is to come."""
MOST_OPEN = 256
"""Steps that wait for a rank; for the oldest nobody waits beyond that."""
MOST_LATE = 16
"""Steps that wait for their rank's numbers; what comes later still is of no step."""


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
    """Rank → the steps that it has ended without telling a number of them, until it goes on; or
    whose progress is all that it has told of them."""
    last: int = 0
    """Highest step that was whole, or that the first rank ended alone."""
    given_up: int = 0
    """Highest step for which nobody waits any longer."""
    late: dict[int, int] = field(default_factory=dict)
    """Rank → by how many steps it has told numbers late, at most `MOST_LATE`."""

    def take(self, beat: Heartbeat, stream: RankStream, ranks: Ranks, tick: Tick) -> list[Step]:
        """Take a line, after its stream did; return the steps that it makes whole."""
        if beat.msg == _BOOT:
            self._forget(beat)
            return []
        if beat.step < stream.step and beat is stream.progress:
            known, by = self.late.get(beat.rank, 0), _late_by(beat, stream)
            self.late[beat.rank] = max(known, min(by, MOST_LATE))
        made = self._complete(beat, stream, ranks, tick)
        end = _end_of(beat, stream)
        if end is None or end.boot != stream.boot or end.step <= self.last:
            return made
        row = _rank_step(end, stream)
        if row.progress is None or (end.msg == _PROGRESS and stream.labelled):
            self._keep(row)
            return made
        before = self.bare.pop(beat.rank, {})
        for number, earlier in sorted(before.items()):
            if number < end.step and earlier.boot == row.boot:
                made += self._add(_timed(earlier, stream), stream, ranks, tick)
        return [*made, *self._add(row, stream, ranks, tick)]

    def _keep(self, row: RankStep) -> None:
        """Keep a rank's step until its numbers are told, or it has gone on for long enough."""
        before = self.bare.get(row.rank, {})
        rows = {number: said for number, said in before.items() if said.boot == row.boot}
        rows[row.end.step] = row
        if len(rows) > MOST_LATE + 1:
            del rows[min(rows)]
        self.bare[row.rank] = rows

    def _complete(
        self, beat: Heartbeat, stream: RankStream, ranks: Ranks, tick: Tick
    ) -> list[Step]:
        """Take the bare steps of a rank that tells their numbers now, or goes on without any."""
        rows = self.bare.get(beat.rank)
        if rows is None:
            return []
        made: list[Step] = []
        told = beat.msg == _PROGRESS and beat.step in rows
        late = self.late.get(beat.rank, 0)
        for number, row in sorted(rows.items()):
            if row.boot != beat.boot:
                continue
            own = told and number == beat.step and row.progress is None
            passed = told and number < beat.step  # numbers come in order
            if not (own or passed or _is_over(beat, row, late)):
                continue
            del rows[number]
            row = replace(row, progress=beat) if own else _timed(row, stream)
            made += self._add(row, stream, ranks, tick)
        if not rows:
            del self.bare[beat.rank]
        return made

    def _add(self, row: RankStep, stream: RankStream, ranks: Ranks, tick: Tick) -> list[Step]:
        """Add one rank's step; return it merged, if that makes it whole."""
        number = row.end.step
        if number <= self.last:
            return []
        said = self.waiting.setdefault(number, {})
        said[row.rank] = row
        needed = ranks.ordered if stream.labelled else len(ranks.streams)
        if len(said) < needed:
            return self._give_up(ranks, tick)
        for step in [step for step in self.waiting if step <= number]:
            del self.waiting[step]
        return [self._merged(number, said, ranks, tick)]

    def _give_up(self, ranks: Ranks, tick: Tick) -> list[Step]:
        """Wait no longer for ranks that are too far behind; return what the first rank ended."""
        made: list[Step] = []
        first = min(ranks.streams)
        for number in sorted(self.waiting):
            if len(self.waiting) <= MOST_OPEN and number > self.given_up:
                break
            said = self.waiting.pop(number)
            self.given_up = max(number, self.given_up)
            if first in said:
                made.append(self._merged(number, said, ranks, tick))
        return made

    def _merged(self, number: int, said: dict[int, RankStep], ranks: Ranks, tick: Tick) -> Step:
        self.last = number
        whole = len(said) >= ranks.ordered
        return Step(step=number, ranks=dict(sorted(said.items())), tick=tick, whole=whole)

    def _forget(self, boot: Heartbeat) -> None:
        """Forget what a rank had ended before it started anew, and go back to where it did."""
        for number, said in list(self.waiting.items()):
            said.pop(boot.rank, None)
            if not said:  # else it counts among those that wait, until it is made once more
                del self.waiting[number]
        self.bare.pop(boot.rank, None)
        self.last = min(self.last, boot.step)
        self.given_up = min(self.given_up, boot.step)


def _late_by(beat: Heartbeat, stream: RankStream) -> int:
    """Return how many steps after its own a line of numbers comes: 1 while the next one goes on."""
    open_step = stream.step + 1 if stream.completed >= stream.step else stream.step
    return open_step - beat.step


def _is_over(beat: Heartbeat, row: RankStep, late: int) -> bool:
    """Whether a line shows that no number of a step is to come, of a rank that may be `late`."""
    if beat.msg == _DONE:
        return True
    if row.progress is not None and beat.msg not in _GOES_ON:
        return False
    ahead = beat.step - row.end.step
    return ahead > late or (ahead == late > 0 and beat.msg in _OVERTAKES)


def _timed(row: RankStep, stream: RankStream) -> RankStep:
    """Return a step whose progress was all that was told, with the time that later lines tell."""
    if row.progress is None or row.dt_s is not None:
        return row
    return replace(row, dt_s=_dt_s(row.end, stream))


def _end_of(beat: Heartbeat, stream: RankStream) -> Heartbeat | None:
    """Return the line as the end of a step, if it is one.

    The start of a step ends the one before where a trainer never says `step_end`. Where it has not
    said that the step began either, its progress may be all that it says: until it goes on, nobody
    knows.
    """
    if beat.msg == (_STEP_END if stream.labelled else _PROGRESS):
        return beat
    if beat.msg == _PROGRESS and not stream.ends_steps and stream.opened < beat.step:
        return beat
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
    """Return the seconds of the step that a line ends, once the next line of steps has timed it."""
    pace = stream.pace
    timed = pace.sampled_step == end.step and pace.stride == 1 and bool(pace.times_s)
    return pace.times_s[-1] if timed else None
