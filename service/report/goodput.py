"""Where did the time go? A bar of parts for the experiment and each run, and the same as a table.

Pure: an account in, a picture or Markdown out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gonogo.contract.goodput import WORDS, Goodput, Part, least_words, seconds_of
from service.report.text import NONE, duration, inline, percent, table
from service.report.view import ReportView

MAX_BARS = 12
"""Runs in one picture; of more the last ones."""
_UNITS = ((2 * 86_400.0, 86_400.0, "days"), (7_200.0, 3_600.0, "hours"), (120.0, 60.0, "minutes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBars:
    """Bars of parts, one a row, all to one scale."""

    name: str
    title: str
    x: str
    rows: tuple[str, ...]
    parts: tuple[tuple[Part, tuple[float, ...]], ...]
    """Part → its length in each row, in units of `x`; parts that nobody has are left out."""
    words: str


def named_accounts(view: ReportView) -> list[tuple[str, Goodput]]:
    """Return the experiment's account and those of its runs, by how the report calls them."""
    found = view.goodput
    if found is None:
        return []
    runs = [(run.title, found.runs[run.view.id]) for run in view.runs if run.view.id in found.runs]
    return [("all", found), *runs]


def ratio_words(goodput: Goodput) -> str:
    """Return the effective training time as people read it; `at least` where time is unknown."""
    if goodput.ratio is None:
        return NONE
    return f"{least_words(goodput)}{percent(goodput.ratio, 1.0)}"


def goodput_picture(view: ReportView) -> TimeBars | None:
    """Return the bars; None where nothing was accounted for."""
    accounts = named_accounts(view)
    longest = max((row.wall_s for _, row in accounts), default=0.0)
    if longest <= 0:
        return None
    shown = [*accounts[:1], *accounts[1:][-MAX_BARS:]]
    scale, unit = next(
        ((scale, name) for least, scale, name in _UNITS if longest >= least), (1.0, "seconds")
    )
    columns = [seconds_of(row) for _, row in shown]
    parts = tuple(
        (part, tuple(column[part] / scale for column in columns))
        for part in Part
        if any(column[part] > 0 for column in columns)
    )
    told = [f"{WORDS[part]} {duration(columns[0][part])}" for part, _ in parts if columns[0][part]]
    return TimeBars(
        name="goodput",
        title="where the time went",
        x=unit,
        rows=tuple(name for name, _ in shown),
        parts=parts,
        words=f"Where the time went, of all {duration(shown[0][1].wall_s)}: {', '.join(told)}",
    )


def goodput_table(accounts: Sequence[tuple[str, Goodput]]) -> str:
    """Return one row an account; parts that nobody has are left out."""
    columns = [(name, row, seconds_of(row)) for name, row in accounts]
    parts = [part for part in Part if any(seconds[part] > 0 for _, _, seconds in columns)]
    heads = ("", "effective", "wall time", *(WORDS[part] for part in parts))
    rows = (
        (
            inline(name),
            ratio_words(row),
            duration(row.wall_s),
            *(duration(seconds[part]) if seconds[part] else NONE for part in parts),
        )
        for name, row, seconds in columns
    )
    return table(heads, rows)


def goodput_parts(view: ReportView) -> list[str]:
    """Return the section's texts but for its picture."""
    accounts = named_accounts(view)
    if not accounts:
        return ["No account was taken."]
    return [
        goodput_table(accounts),
        "*Effective* is the share of steps that count, productive and preserved, in the time with"
        " devices (all but queue and decision); unknown time counts as lost.",
    ]
