"""The curves of a run's page: loss, speed and own metrics of its lowest rank.

Every line is read once. Each curve keeps the lowest and the highest value of every stretch of
steps, so no peak is lost, and the first step whose value is not finite.
"""

import json
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from gonogo.contract.criterion import OWN_PREFIX
from gonogo.contract.heartbeat import Msg
from service.charts import Chart, Line, Point, non_finite_mark
from service.db.store import Session
from service.evidence.heartbeats import load_lines_after, load_ranks, msg_on

STRETCHES = 200
MOST_OWN = 12
"""Charts of a program's own metrics."""
_MOST_NAMES = 100
_RUNS = 32
_FIELDS = {
    Msg.PROGRESS.value: {"loss": "loss", "toks_per_s": "tokens/s"},
    Msg.EVAL.value: {"val_loss": "validation loss"},
    Msg.METRICS.value: {},
}
"""Message → fields that are drawn, and the names of their curves."""
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
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
class _Run:
    """What was read of a run."""

    bytes: int = 0
    curves: dict[str, Curve] = field(default_factory=dict)
    reading: Lock = field(default_factory=Lock)

    def take(self, text: str) -> None:
        fields = _FIELDS.get(msg_on(text))
        if fields is None:
            return
        try:
            line = json.loads(text)
        except ValueError:
            return
        step = line.get("step") if isinstance(line, dict) else None
        if not isinstance(step, int):
            return
        for name, raw in _named(line, fields):
            value = _number(raw)
            if value is not None and (name in self.curves or len(self.curves) < _MOST_NAMES):
                self.curves.setdefault(name, Curve()).add(step, value)


def _named(line: dict[str, Any], fields: dict[str, str]) -> Iterator[tuple[str, Any]]:
    yield from ((fields[key], line.get(key)) for key in fields)
    own = line.get("user")
    if isinstance(own, dict):
        yield from ((f"{OWN_PREFIX}{key}", value) for key, value in own.items())


def _number(raw: Any) -> float | None:
    if raw in _NOT_FINITE:
        return float(raw)
    return float(raw) if isinstance(raw, int | float) and not isinstance(raw, bool) else None


_runs: OrderedDict[str, _Run] = OrderedDict()
_lock = Lock()


def load_charts(session: Session, run: str) -> list[Chart]:
    """Return the charts of a run: loss, speed, then own metrics by name."""
    ranks = load_ranks(session, run)
    with _lock:
        known = _runs.setdefault(run, _Run())
        _runs.move_to_end(run)
        if len(_runs) > _RUNS:
            _runs.popitem(last=False)
    with known.reading:
        for text, end in load_lines_after(session, run, ranks[0], known.bytes) if ranks else ():
            known.bytes = end
            known.take(text)
        curves = dict(known.curves)
        own = sorted(name for name in curves if name.startswith(OWN_PREFIX))
        return [
            _chart("loss", {name: curves.get(name) for name in ("loss", "validation loss")}),
            _chart("tokens/s, as the trainer reports", {"tokens/s": curves.get("tokens/s")}, 2),
            *(_chart(name, {name: curves[name]}) for name in own[:MOST_OWN]),
        ]


def _chart(title: str, curves: dict[str, Curve | None], first: int = 0) -> Chart:
    """Return a chart; the colours begin with number `first`, a speed from zero."""
    found = {name: curve for name, curve in curves.items() if curve is not None}
    kinds = dict(zip(curves, "abc"[first:], strict=False))
    return Chart(
        title=title,
        lines=[Line(name=name, points=row.points, kind=kinds[name]) for name, row in found.items()],
        marks=[
            non_finite_mark(row.non_finite, name if len(found) > 1 else "")
            for name, row in found.items()
            if row.non_finite is not None
        ],
        zero=bool(first),
    )
