"""The program's own numbers: what lines hold in `user`, as metrics called `user/<name>`."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

from gonogo.contract.heartbeat import Heartbeat

if TYPE_CHECKING:
    from gonogo.timeline.rank_steps import BootSteps, RankSteps

MOST_NAMES = 64
"""Names of one process that are kept; a trainer writes no more."""


@dataclass(slots=True, eq=False)
class OwnColumn:
    """One number of one process: three columns, one row for each line that reported it."""

    seqs: "array[int]" = field(default_factory=lambda: array("q"))
    steps: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def samples(self) -> dict[int, float]:
        """Return step → value; of several lines of one step the one with the highest `seq`."""
        rows = sorted(zip(self.seqs, self.steps, self.values, strict=True), key=itemgetter(0))
        return {step: value for _, step, value in rows}


Columns = dict[str, OwnColumn]


def keep(columns: Columns, beat: Heartbeat) -> None:
    """Keep the numbers of a line; of the first `MOST_NAMES` names."""
    for name, value in (beat.user or {}).items():
        column = columns.get(name)
        if column is None:
            if len(columns) == MOST_NAMES:
                continue
            column = columns[name] = OwnColumn()
        column.seqs.append(beat.seq)
        column.steps.append(beat.step)
        column.values.append(value)


def samples_of(boots: Iterable["BootSteps"], name: str) -> dict[int, float]:
    """Return step → a number of a rank; that of a step which a later process made again is dropped.

    Args:
        boots: the processes of the rank in their order.
        name: as the program calls it.
    """
    found: dict[int, float] = {}
    for boot in boots:
        for step in boot.steps.windows() if found else ():
            found.pop(step, None)
        if name in boot.own:
            found |= boot.own[name].samples()
    return dict(sorted(found.items()))


def names_of(ranks: Iterable["RankSteps"]) -> list[str]:
    """Return the names that the ranks reported, sorted."""
    return sorted({name for rank in ranks for boot in rank.boots for name in boot.own})
