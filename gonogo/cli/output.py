"""What commands print: JSON on stdout with `--json`, else text; progress goes to stderr."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gonogo.contract.api import ExperimentView
from gonogo.contract.canonical import wire_value
from gonogo.contract.decision import Decision, Verdict
from gonogo.contract.wire import shorten_ids

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, or one a line.")]
Limit = Annotated[int, typer.Option(min=1, max=200, help="How many.")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="K=V", help="Label; repeatable.")
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Write it to this file.")]

_PIPED_COLUMNS = 100_000
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys instead of showing them."""
GAP = 2
LEAST_WIDTH = 8
"""Columns that are cut keep at least this width."""


def harmless(text: str) -> str:
    """Return a text without control characters; lines and tabs stay."""
    return _CONTROLS.sub("", text)


class _Console(Console):
    """A console that shows short identifiers and no control characters of others."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects; identifiers in texts are shortened."""
        super().print(*(shorten_ids(o) if isinstance(o, str) else o for o in objects), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the pieces of what is shown."""
        for piece in super().render(renderable, options):
            own = piece.control is not None
            yield piece if own else Segment(harmless(piece.text), piece.style)

    def on_broken_pipe(self) -> None:
        """Pass the error on: a command that follows a run does not end with its readers."""
        raise


def _console(*, stderr: bool = False) -> Console:
    """Return a console that neither folds nor cuts piped text."""
    console = _Console(stderr=stderr)
    return console if console.is_terminal else _Console(stderr=stderr, width=_PIPED_COLUMNS)


out = _console()
err = _console(stderr=True)

VERDICT_STYLE = {
    Verdict.GO: "bold green",
    Verdict.CONDITIONAL_GO: "bold yellow",
    Verdict.NO_GO: "bold red",
    Verdict.INCONCLUSIVE: "bold magenta",
}
BY_HAND_STYLE = "bold cyan"
SO_FAR_STYLE = "magenta"


def print_json(value: Any) -> None:
    """Print one JSON value on one line of stdout."""
    print(json.dumps(wire_value(value), ensure_ascii=False, allow_nan=False), flush=True)


def verdict_text(verdict: str | Verdict | None) -> str:
    """Return a verdict with its colour, in rich's markup."""
    if verdict is None:
        return "[dim]–[/dim]"
    style = VERDICT_STYLE[Verdict(verdict)]
    return f"[{style}]{verdict}[/{style}]"


def decided_text(decision: Decision) -> str:
    """Return the verdict of a decision with its colour; a person's is `GO by hand`."""
    if not decision.by_hand or decision.verdict is None:
        return verdict_text(decision.verdict)
    return f"[{BY_HAND_STYLE}]{decision.verdict} by hand[/{BY_HAND_STYLE}]"


def standing_text(view: ExperimentView) -> str:
    """Return the verdict of an experiment with its colour: `GO`, `GO by hand`, `GO so far`."""
    if view.verdict is None or not (view.overrides or view.so_far):
        return verdict_text(view.verdict)
    style = BY_HAND_STYLE if view.overrides else SO_FAR_STYLE
    return f"[{style}]{view.verdict_words}[/{style}]"


def print_lines(lines: Iterable[str], to: Console = out) -> None:
    """Print lines of text as they are: no markup, nothing folded."""
    for line in lines:
        to.print(line, markup=False, highlight=False, soft_wrap=True)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    print_lines([f"warning: {text}"], err)


def print_made(answer: Mapping[str, Any], address: str, again: str, *, as_json: bool) -> None:
    """Print what was submitted, the address of its page, and what to type next."""
    if as_json:
        print_json(answer)
    else:
        print_lines([f"{answer['id']}  {address}", f"follow it with: {again}"])


def say(text: str, before: str = "gonogo: ") -> None:
    """Print a line on stderr. A closed terminal or pipe does not end the command."""
    try:
        print(harmless(shorten_ids(before + text)), file=sys.stderr, flush=True)
    except OSError:
        drop_unwritten(sys.stderr)


@contextmanager
def shown_if_taken() -> Iterator[None]:
    """Print on stdout within; a closed or full stdout does not end the command."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        drop_unwritten(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            say(f"stdout: {error.strerror}")


def drop_unwritten(stream: TextIO) -> None:
    """Drop what nobody reads any more, or Python fails when it exits."""
    with suppress(OSError):
        stream.flush()
        return
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def print_table(
    rows: Sequence[Any],
    columns: Mapping[str, str | Callable[[Any], str]],
    *,
    cut: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print a table of models or mappings; `columns`: header → key, or function to rich's markup.

    Without room, cells of `cut` end in `…`, and columns of `optional` are left out, the last first.
    """
    cells = {name: [shorten_ids(_cell(row, of)) for row in rows] for name, of in columns.items()}
    kept = [name for name in cells if name not in optional or any(cells[name])]
    width = {n: max(Text.from_markup(t).cell_len for t in (n, *cells[n])) for n in kept}
    for name in reversed(optional):
        wide = sum(GAP + (min(width[n], LEAST_WIDTH) if n in cut else width[n]) for n in kept)
        if name in kept and wide > out.width + GAP:
            kept.remove(name)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold dim")
    for name in kept:
        table.add_column(name, no_wrap=name not in cut)
    for row in zip(*(map(Text.from_markup, cells[name]) for name in kept), strict=True):
        for text in row:
            text.no_wrap, text.overflow = True, "ellipsis"
        table.add_row(*row)
    out.print(table)


def _cell(row: Any, of: str | Callable[[Any], str]) -> str:
    if callable(of):
        return of(row)
    value = row.get(of) if isinstance(row, Mapping) else getattr(row, of)
    return "" if value is None else escape(str(value))


def print_list(
    document: Any,
    rows: Sequence[Any],
    columns: Mapping[str, str | Callable[[Any], str]],
    *,
    as_json: bool,
    empty: str,
    cut: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print a list as one JSON document, as a table, or, without rows, as the text `empty`."""
    if as_json:
        print_json(document)
    elif rows:
        print_table(rows, columns, cut=cut, optional=optional)
    else:
        out.print(empty)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print names and values, one a line."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        out.print(f"[dim]{name:<{width}}[/dim]  {'–' if value is None else value}")


def duration(seconds: float | None) -> str:
    """Return seconds as people write them: `42 s`, `3 min 05 s`, `2 h 10 min`, `62.4 d`."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds < 172_800:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{seconds / 86_400:.1f} d"


def ago(instant: str | None) -> str:
    """Return the age of an RFC 3339 instant: `3 min 05 s ago`."""
    return "–" if instant is None else f"{lasted(instant, None)} ago"


def local_time(instant: str) -> str:
    """Return an RFC 3339 instant in the local time zone: `2026-03-01 14:05`."""
    return f"{datetime.fromisoformat(instant).astimezone():%Y-%m-%d %H:%M}"


def lasted(began: str | None, ended: str | None) -> str:
    """Return how long something took, or has taken until now."""
    if began is None:
        return "–"
    end = datetime.fromisoformat(ended) if ended else datetime.now(UTC)
    return duration(max(0.0, (end - datetime.fromisoformat(began)).total_seconds()))


def size_text(count: int) -> str:
    """Return a number of bytes as people read it: `512 B`, `3.4 kB`, `1.2 GB`."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
