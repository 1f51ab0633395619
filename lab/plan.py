"""Which runs are simulated? Cells of step time and ranks, each with its share of the hours.

A part is one run with its own seed, derived from the seed, the cell and the part's number. So the
result depends neither on the order of the parts nor on the number of processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gonogo.watch.registry import all_detectors
from lab.faults import FAULTS, Fault
from lab.noise import STANDARD, Noise

STEP_S = (1.0, 2.4, 25.0, 60.0)
RANKS = (1, 2, 4, 8)
RUN_STEPS = 12_000
RUN_HOURS = (0.1, 48.0)
SICK_HOURS, SICK_LEAST, SICK_MOST = 1000.0, 2, 12
"""Each fault is simulated once per so many healthy hours, so many times at least and at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Runs of one step time and number of ranks."""

    step_s: float
    ranks: int
    hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One run to simulate."""

    seed: str
    step_s: float
    ranks: int
    hours: float
    noise: Noise = STANDARD
    sick: str | None = None

    @property
    def cost(self) -> float:
        """Roughly how many lines it writes, for an estimate of the time left."""
        an_hour = 3600.0 * max(3.3 / self.step_s, 0.25)
        return self.hours * (self.ranks * an_hour + 1200.0)


def cells_of(hours: float, step_s: Sequence[float], ranks: Sequence[int]) -> list[Cell]:
    """Return cells that share `hours`: longer steps and fewer ranks, which cost less, get more.

    Each pair's share goes with its step time to the power of 1.1 over its ranks: of 1, 2.4, 25 and
    60 s some 1, 2, 27 and 70 %.
    """
    weights = {(s, r): s**1.1 / r for s in step_s for r in ranks}
    whole = sum(weights.values())
    return [
        Cell(step_s=s, ranks=r, hours=hours * weight / whole) for (s, r), weight in weights.items()
    ]


POOL_HOURS = 20_001.0
MANY_STEPS = 1_000_000


def pool_cells() -> list[Cell]:
    """Return the cells that a release is judged by: 20 000 hours, and two cells of many steps.

    The first of the two has a million steps of 0.05 s on one rank. The second has 64 ranks with a
    million steps in all (15 625 of the run), because a step costs as much for each rank.
    """
    many = [
        Cell(step_s=0.05, ranks=1, hours=MANY_STEPS * 0.05 / 3600.0),
        Cell(step_s=1.0, ranks=64, hours=MANY_STEPS / 64 * 1.6 / 3600.0),
    ]
    return cells_of(POOL_HOURS, STEP_S, RANKS) + many


def fault_rows() -> list[Fault]:
    """Return the faults that a detector we have is to answer."""
    names = {row.name for row in all_detectors()}
    return [row for row in FAULTS if names.intersection(row.by)]


def plan_parts(cells: Sequence[Cell], *, seed: int, healthy_only: bool = False) -> list[Part]:
    """Return every run of the cells, and the sick ones."""
    parts = [part for cell in cells for part in _healthy(cell, seed)]
    if not healthy_only:
        hours = sum(cell.hours for cell in cells)
        times = min(SICK_MOST, max(SICK_LEAST, round(hours / SICK_HOURS)))
        ranks = [cell.ranks for cell in cells if cell.ranks > 1] or [2]
        parts += [
            _sick(row, number, seed, sorted(set(ranks)))
            for row in fault_rows()
            for number in range(times)
        ]
    return parts


def _healthy(cell: Cell, seed: int) -> list[Part]:
    least, most = RUN_HOURS
    run_h = min(most, max(least, RUN_STEPS * cell.step_s / 3600.0))
    count = max(1, round(cell.hours / run_h))
    return [
        Part(
            seed=f"{seed}/standard/{cell.step_s:g}/{cell.ranks}/{number}",
            step_s=cell.step_s,
            ranks=cell.ranks,
            hours=cell.hours / count,
        )
        for number in range(count)
    ]


def _sick(row: Fault, number: int, seed: int, ranks: Sequence[int]) -> Part:
    step_s = row.step_s[number % len(row.step_s)]
    return Part(
        seed=f"{seed}/standard/{row.name}/{number}",
        step_s=step_s,
        ranks=min(ranks[number % len(ranks)], 8),
        hours=(row.onset_step * 3.0 * step_s + row.within_s) / 3600.0,
        sick=row.name,
    )
