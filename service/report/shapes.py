"""Of what is a report's picture made? Lines, marks and bins, and words that stand for them."""

from dataclasses import dataclass
from enum import StrEnum

from service.report.distribution import Bin
from service.report.text import number
from service.report.view import Series


class Style(StrEnum):
    """How a line is drawn."""

    SOLID = "solid"
    DASHED = "dashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line."""

    label: str
    points: Series
    style: Style = Style.SOLID


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A place on the x axis."""

    at: float
    text: str
    grave: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A height that means something."""

    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over the step, or areas on top of each other."""

    name: str
    """Of its file, without the ending."""
    title: str
    curves: tuple[Curve, ...]
    x: str = "step"
    marks: tuple[Mark, ...] = ()
    bounds: tuple[Bound, ...] = ()
    from_zero: bool = False
    stacked: bool = False

    @property
    def words(self) -> str:
        """What it shows, for those who do not see it."""
        told = [
            f"{row.label} {number(row.points[0][1])} at {row.points[0][0]},"
            f" {number(row.points[-1][1])} at {row.points[-1][0]}"
            for row in self.curves
        ]
        return f"{self.title}: {'; '.join([*told, *(mark.text for mark in self.marks)])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How many samples lie where."""

    name: str
    title: str
    x: str
    bins: tuple[Bin, ...]
    marks: tuple[Mark, ...] = ()

    @property
    def words(self) -> str:
        """What it shows, for those who do not see it."""
        return f"{self.title}: {'; '.join(mark.text for mark in self.marks)}"


Plot = Chart | Histogram
