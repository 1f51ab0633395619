"""How did a phase go, step by step, whatever it was interrupted by? Its attempts as one line.

An attempt that resumes after a step goes on with the line of the attempt whose checkpoint it took:
what that one did beyond the step was discarded, and the later attempt counts. An attempt that
starts anew (a rerun, a confirmation) is another line.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from service.evidence.series import downsample
from service.report.numbers import POINTS
from service.report.view import RankNumbers, RunReport, Series


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The steps of one attempt that count."""

    run: RunReport
    first: int
    last: int | None = None
    """None: to its end."""

    @property
    def end(self) -> int:
        """The last step that it ended and that counts."""
        reached = max((rank.final_step for rank in self.run.ranks), default=0)
        return reached if self.last is None else min(self.last, reached)

    @property
    def discarded(self) -> int:
        """How many steps it ended beyond its last that counts."""
        reached = max((rank.final_step for rank in self.run.ranks), default=0)
        return 0 if self.last is None else max(0, reached - max(self.last, self.first - 1))

    def cut(self, series: Series) -> Series:
        """Return the points of these steps."""
        return tuple(
            (step, value)
            for step, value in series
            if self.first <= step and (self.last is None or step <= self.last)
        )

    def rank(self, number: int) -> RankNumbers | None:
        """Return what one rank did."""
        return next((row for row in self.run.ranks if row.rank == number), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One line of a phase: attempts that went on with each other, in their order."""

    stretches: tuple[Stretch, ...]

    @property
    def title(self) -> str:
        """Which attempts it is made of: `attempt 1`, `attempts 1, 2, 3`."""
        numbers = [str(part.run.view.attempt) for part in self.stretches]
        return f"attempt{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"

    @property
    def ranks(self) -> list[int]:
        """The ranks of any of its attempts."""
        return sorted({rank.rank for part in self.stretches for rank in part.run.ranks})

    @property
    def last_step(self) -> int:
        """How far it came."""
        return max((part.end for part in self.stretches), default=0)

    @property
    def seams(self) -> list[tuple[int, RunReport]]:
        """First step of every attempt that went on with another, and that attempt."""
        return [(part.first, part.run) for part in self.stretches[1:]]

    def series(self, rank: int, name: str) -> Series:
        """Return a series of a rank (a field of `RankNumbers`, or a section of a step) as one."""
        found: list[tuple[int, float]] = []
        for part in self.stretches:
            row = part.rank(rank)
            if row is not None:
                whole = row.sections.get(name, ()) if name in row.sections else _field(row, name)
                found += part.cut(whole)
        return tuple(downsample(found, POINTS))

    def step_times(self, rank: int) -> list[float]:
        """Return the seconds of every step of a rank that counts."""
        found: list[float] = []
        for part in self.stretches:
            row = part.rank(rank)
            if row is not None:
                found += row.step_times.between(part.first, part.end)
        return found


def _field(row: RankNumbers, name: str) -> Series:
    found: Series = getattr(row, name, ())
    return found


def build_courses(runs: Sequence[RunReport]) -> list[Course]:
    """Return the lines of a phase, that of its newest attempt last.

    Args:
        runs: the attempts of one phase, by their numbers.
    """
    courses: list[Course] = []
    for run in runs:
        point = run.order.resume_from if run.order is not None else None
        step = 0 if point is None else point.step
        base = None
        if point is not None and step:
            base = _base_of(courses, point.path)
        fresh = Stretch(run=run, first=step + 1)
        if base is None:
            courses.append(Course(stretches=(fresh,)))
            continue
        courses.remove(base)
        kept = [_upto(part, step) for part in base.stretches if part.first <= step]
        courses.append(Course(stretches=(*kept, fresh)))
    return courses


def _upto(part: Stretch, step: int) -> Stretch:
    return replace(part, last=step if part.last is None else min(part.last, step))


def _base_of(courses: Sequence[Course], path: str) -> Course | None:
    """Return the line with the attempt that saved a checkpoint, else the newest there is."""
    named = set(PurePath(path).parts)
    for course in reversed(courses):
        if any(part.run.view.id in named for part in course.stretches):
            return course
    return courses[-1] if courses else None


def discarded_text(course: Course) -> str | None:
    """Say which steps of which attempts do not count, if any."""
    rows = [
        f"attempt {part.run.view.attempt}: steps {part.end + 1} to {part.end + part.discarded}"
        for part in course.stretches
        if part.discarded
    ]
    return f"Done again after a resume, and left out: {'; '.join(rows)}." if rows else None
