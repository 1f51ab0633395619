"""What the lowest rank of a run has reported: where its time went, and the curves of a page.

Each line is read once; what it came to stays in memory. A curve keeps the lowest and the highest
value of every stretch of steps, so no peak is lost, and the first step whose value is not finite.
"""

import math
from collections import OrderedDict
from copy import deepcopy
from dataclasses import dataclass, field
from threading import Lock

from sqlalchemy.orm import Session

from gonogo.contract.criterion import OWN_PREFIX
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.goodput.account import RankAccount, add_line
from service.charts import Point
from service.evidence.files import beat_on, load_lines_after, load_ranks

STRETCHES = 200
_MOST_NAMES = 100
_RUNS = 256
_Low = tuple[float, int]


@dataclass(slots=True)
class Curve:
    """A curve that grows: the extremes of each stretch of steps."""

    width: int = 1
    stretches: dict[int, tuple[_Low, _Low]] = field(default_factory=dict)
    """Number of the stretch → its lowest and its highest value."""
    non_finite: int | None = None

    def add(self, step: int, value: float) -> None:
        """Take a value."""
        if not math.isfinite(value):
            self.non_finite = min(step, step if self.non_finite is None else self.non_finite)
            return
        self._merge(step // self.width, (value, step), (value, step))
        if len(self.stretches) > STRETCHES:
            before, self.stretches = self.stretches, {}
            self.width *= 2
            for number, (low, high) in before.items():
                self._merge(number // 2, low, high)

    def _merge(self, number: int, low: _Low, high: _Low) -> None:
        known = self.stretches.get(number, (low, high))
        self.stretches[number] = min(known[0], low), max(known[1], high)

    @property
    def points(self) -> list[Point]:
        """Steps and values in the order of the steps."""
        ends = {end for both in self.stretches.values() for end in both}
        return sorted((float(step), value) for value, step in ends)


@dataclass(slots=True)
class _Known:
    """What was read of a rank."""

    bytes: int = 0
    account: RankAccount = field(default_factory=RankAccount)
    curves: dict[str, Curve] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def take(self, beat: Heartbeat) -> None:
        add_line(self.account, beat)
        drawn: dict[str, float | None] = {
            f"{OWN_PREFIX}{name}": value for name, value in (beat.user or {}).items()
        }
        if beat.msg == Msg.PROGRESS:
            drawn |= {"loss": beat.loss, "tokens/s": beat.toks_per_s}
        elif beat.msg == Msg.EVAL:
            drawn |= {"validation loss": beat.val_loss}
        for name, value in drawn.items():
            if value is not None and (name in self.curves or len(self.curves) < _MOST_NAMES):
                self.curves.setdefault(name, Curve()).add(beat.step, value)


_known: OrderedDict[tuple[str, int], _Known] = OrderedDict()
"""By run and rank. Runs have unique ids, so that one table serves every database."""
_lock = Lock()


def load_account(session: Session, run: str) -> RankAccount | None:
    """Return the account of a run's lowest rank until now; None: no rank has reported anything."""
    known = _follow(session, run)
    if known is None:
        return None
    with known.lock:
        return known.account.model_copy(deep=True)


def load_curves(session: Session, run: str) -> dict[str, Curve]:
    """Return the curves of a run's lowest rank by name: loss, tokens/s, its own metrics."""
    known = _follow(session, run)
    if known is None:
        return {}
    with known.lock:
        return deepcopy(known.curves)


def _follow(session: Session, run: str) -> _Known | None:
    """Read the lines that are new."""
    rank = next(iter(load_ranks(session, run)), None)
    if rank is None:
        return None
    with _lock:
        known = _known.setdefault((run, rank), _Known())
        _known.move_to_end((run, rank))
        if len(_known) > _RUNS:
            _known.popitem(last=False)
    with known.lock:
        for text, end in load_lines_after(session, run, rank, known.bytes):
            known.bytes, beat = end, beat_on(text, rank)
            if beat is not None:
                known.take(beat)
    return known
