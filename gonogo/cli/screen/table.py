"""How does a table fit a narrow terminal? Columns give way in a stated order; the rest stays whole.

    print_columns([Column("id", ids), Column("plan", plans, gives_way=2), Column("verdict", ...)])

At any width every column without `gives_way` is shown. One may be cut (`cut`), such as a name.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from gonogo.cli.output import out

GAP = 2
LEAST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table; cells hold rich's markup."""

    name: str
    cells: Sequence[str]
    gives_way: int = 0
    """0: never; else those with the highest number go first."""
    cut: bool = False
    """Whether its cells may end in `…`."""
    cut_to: int = LEAST
    """Narrower than this it is not cut; others give way before that."""

    @property
    def width(self) -> int:
        """Cells that it wants on the screen."""
        return max(Text.from_markup(text).cell_len for text in (self.name, *self.cells))

    @property
    def least(self) -> int:
        """Cells that it needs."""
        return min(self.width, self.cut_to) if self.cut else self.width


def fitting(columns: Sequence[Column], room: int) -> list[Column]:
    """Return the columns that are shown in `room` cells, in their order; empty ones say nothing."""
    kept = [column for column in columns if not column.gives_way or any(column.cells)]
    while sum(column.least for column in kept) + GAP * (len(kept) - 1) > room:
        going = max(kept, key=lambda column: column.gives_way)
        if not going.gives_way:
            break
        kept.remove(going)
    return kept


def widths(columns: Sequence[Column], room: int) -> list[int]:
    """Return the cells that each shown column gets: the widest that may be cut is, cell by cell."""
    found = [column.width for column in columns]
    over = sum(found) + GAP * (len(found) - 1) - room
    while over > 0:
        cuttable = [at for at, column in enumerate(columns) if found[at] > column.least]
        if not cuttable:
            break
        widest = max(cuttable, key=lambda at: found[at])
        found[widest] -= 1
        over -= 1
    return found


def print_columns(columns: Sequence[Column]) -> None:
    """Print a table on stdout, as much of it as the terminal takes."""
    kept = fitting(columns, out.width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold dim")
    for column, width in zip(kept, widths(kept, out.width), strict=True):
        table.add_column(
            column.name,
            no_wrap=True,
            overflow="ellipsis" if column.cut else "ignore",
            width=width,
        )
    for row in zip(*(column.cells for column in kept), strict=True):
        table.add_row(*row)
    out.print(table)
