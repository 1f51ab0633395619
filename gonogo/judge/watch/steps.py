"""Which steps has every rank completed? Steps of single ranks, merged as they end.

A step that not every rank ends (its line was lost) is passed over when a later one is whole. Where
ranks do not wait for each other, and are far apart, a step is what the first of them says of it. A
rank that names its sections ends a step with `step_end`, or, where it never says so, with the start
of the next, or, where it tells no starts either, with the next one's `progress`; one that names
none, with `progress`. Numbers that come after `step_end` belong to its step as well, so a step
without any waits for what its rank says next; of a rank that has told some while the next step went
on (it reads them from its device when that has the next one) until the next one is over.
"""

from dataclasses import dataclass, field, replace

from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.tick import Tick
from gonogo.judge.watch.step import RankStep, Step
from gonogo.judge.watch.stream import RankStream
from gonogo.judge.watch.view import View

_BOOT, _DONE, _PROGRESS = Msg.BOOT, Msg.DONE, Msg.PROGRESS
_STEP_START, _STEP_END = Msg.STEP_START, Msg.STEP_END
_GOES_ON = frozenset({_STEP_START, _PROGRESS, _DONE})
"""Lines that show that a step is over of which nothing but its progress was told."""
_OVERTAKES = frozenset({_STEP_END, _PROGRESS, _DONE})
"""Lines of the next step after which no number of the one before is to come."""
MOST_OPEN = 256
"""Steps that wait for a rank; for the oldest nobody waits beyond that."""


@dataclass(slots=True)
class Steps:
    """The steps that some ranks have ended and others have not."""

    waiting: dict[int, dict[int, RankStep]] = field(default_factory=dict)
    bare: dict[int, RankStep] = field(default_factory=dict)
    """Rank → the step that it has ended without telling a number of it, until it goes on; or whose
    progress is all that it has told of it."""
    last: int = 0
    """Highest step that was whole, or that the first rank ended alone."""
    given_up: int = 0
    """Highest step for which nobody waits any longer."""
    late: set[int] = field(default_factory=set)
    """Ranks that have told the numbers of a step while the next one went on."""

    def take(self, beat: Heartbeat, stream: RankStream, view: View, tick: Tick) -> list[Step]:
        """Take a line, after its stream did; return the steps that it makes whole."""
        if beat.msg == _BOOT:
            self._forget(beat)
            return []
        if beat.msg == _PROGRESS and beat.boot == stream.boot and beat.step < stream.step:
            self.late.add(beat.rank)
        made = self._complete(beat, stream, view, tick)
        end = _end_of(beat, stream)
        if end is None or end.boot != stream.boot or end.step <= self.last:
            return made
        row = _rank_step(end, stream)
        if row.progress is None or (end.msg == _PROGRESS and stream.labelled):
            self.bare[beat.rank] = row
            return made
        self.bare.pop(beat.rank, None)
        return [*made, *self._add(row, stream, view, tick)]

    def _complete(self, beat: Heartbeat, stream: RankStream, view: View, tick: Tick) -> list[Step]:
        """Take the bare step of a rank that tells its numbers now, or goes on without any."""
        row = self.bare.get(beat.rank)
        if row is None or beat.boot != row.boot:
            return []
        told = beat.msg == _PROGRESS and beat.step == row.end.step
        if not told and beat.step <= row.end.step and beat.msg != _DONE:
            return []
        if row.progress is not None and (told or beat.msg not in _GOES_ON):
            return []
        if not told and beat.rank in self.late and not _overtakes(beat, row):
            return []
        del self.bare[beat.rank]
        if row.end.step <= self.last:
            return []
        if row.progress is not None:
            return self._add(replace(row, dt_s=_dt_s(row.end, stream)), stream, view, tick)
        return self._add(replace(row, progress=beat) if told else row, stream, view, tick)

    def _add(self, row: RankStep, stream: RankStream, view: View, tick: Tick) -> list[Step]:
        """Add one rank's step; return it merged, if that makes it whole."""
        number = row.end.step
        said = self.waiting.setdefault(number, {})
        said[row.rank] = row
        needed = view.run.order.world_size if stream.labelled else len(view.streams)
        if len(said) < needed:
            return self._give_up(view, tick)
        for step in [step for step in self.waiting if step <= number]:
            del self.waiting[step]
        return [self._merged(number, said, view, tick)]

    def _give_up(self, view: View, tick: Tick) -> list[Step]:
        """Wait no longer for ranks that are too far behind; return what the first rank ended."""
        made: list[Step] = []
        first = min(view.streams)
        for number in sorted(self.waiting):
            if len(self.waiting) <= MOST_OPEN and number > self.given_up:
                break
            said = self.waiting.pop(number)
            self.given_up = max(number, self.given_up)
            if first in said:
                made.append(self._merged(number, said, view, tick))
        return made

    def _merged(self, number: int, said: dict[int, RankStep], view: View, tick: Tick) -> Step:
        self.last = number
        whole = len(said) >= view.run.order.world_size
        return Step(step=number, ranks=dict(sorted(said.items())), tick=tick, whole=whole)

    def _forget(self, boot: Heartbeat) -> None:
        """Forget what a rank had ended before it started anew, and go back to where it did."""
        for said in self.waiting.values():
            said.pop(boot.rank, None)
        self.bare.pop(boot.rank, None)
        self.last = min(self.last, boot.step)
        self.given_up = min(self.given_up, boot.step)


def _overtakes(beat: Heartbeat, row: RankStep) -> bool:
    """Whether a later line shows that the step after one that has ended is over, too."""
    return beat.msg in _OVERTAKES or beat.step > row.end.step + 1


def _end_of(beat: Heartbeat, stream: RankStream) -> Heartbeat | None:
    """Return the line as the end of a step, if it is one.

    The start of a step ends the one before where a trainer never says `step_end`. Where it has not
    said that the step began either, its progress may be all that it says: until it goes on, nobody
    knows.
    """
    if beat.msg == (_STEP_END if stream.labelled else _PROGRESS):
        return beat
    if beat.msg == _PROGRESS and not stream.ends_steps and stream.opened != beat.step:
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
