"""Which steps has every rank completed? Steps of single ranks, merged as they end.

A step that not every rank ends (its line was lost) is passed over when a later one is whole. A rank
that names its sections ends a step with `step_end`; one that names none, with `progress`.
"""

from dataclasses import dataclass, field

from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.tick import Tick
from gonogo.judge.watch.step import RankStep, Step
from gonogo.judge.watch.stream import RankStream
from gonogo.judge.watch.view import View

MOST_OPEN = 256
"""Steps that wait for a rank; the oldest are given up beyond that."""


@dataclass(slots=True)
class Steps:
    """The steps that some ranks have ended and others have not."""

    waiting: dict[int, dict[int, RankStep]] = field(default_factory=dict)
    last: int = 0
    """Highest step that was whole."""

    def take(self, beat: Heartbeat, stream: RankStream, view: View, tick: Tick) -> Step | None:
        """Take a line, after its stream did; return the step that it makes whole."""
        if beat.msg == Msg.BOOT:
            self._forget(beat)
            return None
        ends = Msg.STEP_END if stream.labelled else Msg.PROGRESS
        if beat.msg != ends or beat.boot != stream.boot or beat.step <= self.last:
            return None
        said = self.waiting.setdefault(beat.step, {})
        said[beat.rank] = _rank_step(beat, stream)
        needed = view.run.order.world_size if stream.labelled else len(view.streams)
        if len(said) < needed:
            while len(self.waiting) > MOST_OPEN:
                del self.waiting[min(self.waiting)]
            return None
        for step in [step for step in self.waiting if step <= beat.step]:
            del self.waiting[step]
        self.last = beat.step
        whole = len(said) >= view.run.order.world_size
        return Step(step=beat.step, ranks=dict(sorted(said.items())), tick=tick, whole=whole)

    def _forget(self, boot: Heartbeat) -> None:
        """Forget what a rank had ended before it started anew, and go back to where it did."""
        for said in self.waiting.values():
            said.pop(boot.rank, None)
        self.last = min(self.last, boot.step)


def _rank_step(beat: Heartbeat, stream: RankStream) -> RankStep:
    progress, pace = stream.progress, stream.pace
    if progress is not None and (progress.step != beat.step or progress.boot != beat.boot):
        progress = None
    timed = pace.sampled_step == beat.step and pace.stride == 1 and bool(pace.times_s)
    return RankStep(
        rank=beat.rank,
        boot=beat.boot,
        mono=beat.mono,
        dt_s=pace.times_s[-1] if timed else None,
        progress=progress,
        end=beat,
    )
