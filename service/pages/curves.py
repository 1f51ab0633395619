"""How did loss, speed and own metrics go? Curves, thinned, read anew no more often than is fair.

A page asks every two seconds, and of a run of a million steps reading takes seconds. So what was
read is shown again while no more has arrived, and else for `SHARE` times as long as it took:
however many look, a run's curves cost a twentieth of a core.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, isfinite
from threading import Lock

from gonogo.contract.criterion import OWN_PREFIX
from gonogo.contract.heartbeat import Msg
from gonogo.timeline.user_metrics import names_of
from service.db.store import Session
from service.evidence.heartbeats import load_newest_beats, load_ranks, load_steps
from service.evidence.series import OWN_MSGS, downsample
from service.pages.charts import Line, Point

POINTS = 400
"""Of a curve, at most about."""
SHARE = 20.0
MOST_OWN = 12
"""Charts of a program's own metrics."""
OWN_POINTS = 100
"""Of each of these."""
_RUNS = 64
"""Whose curves are kept, those looked at last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """What a run's page draws."""

    loss: list[Line]
    speed: list[Line]
    own: list[Line] = field(default_factory=list)
    """The program's own metrics, one a chart; the first `MOST_OWN` by name."""


@dataclass(slots=True)
class _Kept:
    curves: Curves | None = None
    lines: int = -1
    """How many heartbeats had arrived then."""
    until: float = 0.0
    """Monotonic seconds."""
    making: Lock = field(default_factory=Lock)

    def fits(self, lines: int, now_mono: float) -> bool:
        return self.curves is not None and (self.lines == lines or now_mono < self.until)


class CurveShelf:
    """The curves that were looked at last; used by many threads.

    Args:
        load: reads a run's curves.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        load: Callable[[Session, str, int], Curves],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load, self._clock = load, clock
        self._lock = Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def get(self, session: Session, run: str, lines: int, last_step: int) -> Curves:
        """Return a run's curves; those of before, where somebody else is reading them now.

        Args:
            session: reads.
            run: which run; ids are unique, so that one shelf serves every database.
            lines: how many heartbeats have arrived.
            last_step: the run's.
        """
        kept = self._find(run)
        before = kept.curves
        if before is not None and kept.fits(lines, self._clock()):
            return before
        if not kept.making.acquire(blocking=before is None):
            assert before is not None
            return before
        try:
            if kept.curves is not None and kept.fits(lines, self._clock()):
                return kept.curves  # made while we waited
            began = self._clock()
            found = self._load(session, run, last_step)
            ended = self._clock()
            kept.curves, kept.lines = found, lines
            kept.until = ended + SHARE * (ended - began)
            return found
        finally:
            kept.making.release()

    def _find(self, run: str) -> _Kept:
        with self._lock:
            kept = self._kept.setdefault(run, _Kept())
            self._kept.move_to_end(run)
            if len(self._kept) > _RUNS:
                self._kept.popitem(last=False)
            return kept


def load_curves(session: Session, run: str, last_step: int) -> Curves:
    """Return loss and throughput over the steps, every so many steps where there are many.

    Args:
        session: reads.
        run: which run.
        last_step: that every rank completed; a program that tells of none is at its newest line's.
    """
    first = next(iter(load_ranks(session, run)), None)
    if first is None:
        return Curves(loss=[Line(name="loss", points=[])], speed=[Line(name="tokens/s", points=[])])
    newest = next(load_newest_beats(session, run, first, (Msg.PROGRESS,)), None)
    every = max(1, ceil(max(last_step, newest.step if newest else 0) / POINTS))
    steps = load_steps(session, run, first, OWN_MSGS, every)
    loss = [Line(name="loss", points=_points(steps.samples("loss")), kind="a")]
    if steps.evals:
        loss.append(Line(name="validation loss", points=_points(steps.evals), kind="b"))
    speed = Line(name="tokens/s", points=_points(steps.samples("toks_per_s")), kind="c")
    own = [
        Line(name=f"{OWN_PREFIX}{name}", points=_points(steps.own(name), OWN_POINTS))
        for name in names_of([steps])[:MOST_OWN]
    ]
    return Curves(loss=loss, speed=[speed], own=own)


def _points(values: dict[int, float], limit: int = POINTS) -> list[Point]:
    finite = [(step, value) for step, value in sorted(values.items()) if isfinite(value)]
    return [(float(step), value) for step, value in downsample(finite, limit)]


SHELF = CurveShelf(load_curves)
