"""How does a command speak? One JSON object on stdout with `--json`, else text for people.

Progress and errors always go to stderr, so that stdout can be piped.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from gonogo.contract.api import ExperimentView
from gonogo.contract.canonical import wire_value
from gonogo.contract.decision import Decision, Verdict
from gonogo.contract.ids import is_id

_PIPED_COLUMNS = 100_000
"""No line of ours is as long."""


_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys and does not show: control characters, and what turns a line around."""


def harmless(text: str) -> str:
    """Return a text without what a terminal would obey, lines and tabs left.

    Reasons, hosts and ends are written by others (a worker, a trainer's `.HALT`): none of them
    colours, moves or rewrites what stands beside it.
    """
    return _COMMANDS.sub("", text)


_COLOURS = re.compile("\x1b\\[[0-9;:]*m")
"""Sequences that colour what follows, and do nothing else."""


def harmless_log(text: str) -> str:
    """Return a program's own output without what a terminal would obey, but for colours.

    Those, and the carriage returns of bars, are how it is meant to be read; what moves the cursor,
    names windows, fills the clipboard or has the terminal answer is not.
    """
    rows = ("\r".join(map(harmless, row.split("\r"))) for row in _COLOURS.split(text))
    colours = [*_COLOURS.findall(text), ""]
    return "".join(f"{row}{colour}" for row, colour in zip(rows, colours, strict=True))


class _Console(Console):
    """Shows what others wrote, and obeys only ourselves."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the pieces of what is shown."""
        for piece in super().render(renderable, options):
            own = piece.control is not None
            yield piece if own else Segment(harmless(piece.text), piece.style)

    def on_broken_pipe(self) -> None:
        """Let whoever printed hear of it: not every command ends with its readers."""
        raise  # what rich has just caught


def _console(*, stderr: bool = False) -> Console:
    """Return a console that never folds or cuts what a pipe gets."""
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


def print_json(value: Any) -> None:
    """Print one JSON value on one line of stdout; what a terminal would obey is escaped."""
    text = json.dumps(wire_value(value), ensure_ascii=False, allow_nan=False)
    print(_COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text), flush=True)


def verdict_text(verdict: str | Verdict | None) -> str:
    """Return a verdict with its colour, in rich's markup."""
    if verdict is None:
        return "[dim]–[/dim]"
    style = VERDICT_STYLE[Verdict(verdict)]
    return f"[{style}]{verdict}[/{style}]"


BY_HAND_STYLE = "bold cyan"
"""Of a verdict that a person decided: never the colour of one that was earned."""

SO_FAR_STYLE = "magenta"
"""Of a verdict of the phases so far: never the colour of one that is whole."""


def decided_text(decision: Decision) -> str:
    """Return the verdict of a decision with its colour; a person's is `GO by hand`, and no GO."""
    if not decision.by_hand or decision.verdict is None:
        return verdict_text(decision.verdict)
    return f"[{BY_HAND_STYLE}]{decision.verdict} by hand[/{BY_HAND_STYLE}]"


def standing_text(view: ExperimentView) -> str:
    """Return an experiment's verdict with its colour, in rich's markup.

    `GO by hand` is no GO, and `GO so far` is none yet.
    """
    if view.verdict is None or not (view.overrides or view.so_far):
        return verdict_text(view.verdict)
    style = BY_HAND_STYLE if view.overrides else SO_FAR_STYLE
    return f"[{style}]{view.verdict_words}[/{style}]"


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text as they are: no markup, nothing folded."""
    for line in lines:
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def print_made(name: str, address: str, to: Console = out) -> None:
    """Print what was submitted and where its page is: an address is never folded."""
    to.print(f"{name}  {address}", soft_wrap=True)


def say(text: str) -> None:
    """Tell a person one line on stderr, with our name before it, if that is taken."""
    tell(f"gonogo: {text}")


def tell(text: str) -> None:
    """Tell a person one line on stderr, if that is taken.

    What looks after runs goes on where nobody listens: behind a terminal that is gone, a pipe that
    nobody reads, a file on a full disk.
    """
    if sys.stderr is not None:
        with suppress(OSError):
            print(harmless(text), file=sys.stderr, flush=True)


@contextmanager
def shown_if_taken() -> Iterator[None]:
    """Show the body's text on stdout, as far as that is taken: the command goes on all the same.

    That it was not taken is said, unless its readers have gone.

    Raises:
        OSError: what was to be shown cannot be read.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        drop_unwritten(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            say(f"stdout: {error.strerror}")


def drop_unwritten(stream: TextIO) -> None:
    """Let what nobody takes be forgotten, else the end of this process fails by it."""
    with suppress(OSError):
        stream.flush()
        return
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def shortened(text: str, most: int = 60) -> str:
    """Return a text of at most so many characters, for a cell of a table."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table of text on stdout; cells may hold rich markup, identifiers are never cut."""
    cells = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold dim")
    for index, name in enumerate(columns):
        widest = max((len(row[index]) for row in cells if is_id(row[index])), default=None)
        table.add_column(name, min_width=widest)
    for row in cells:
        table.add_row(*row)
    out.print(table)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print names and values, one a line."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        out.print(f"[dim]{name:<{width}}[/dim]  {'–' if value is None else value}")


def duration(seconds: float | None) -> str:
    """Return seconds as people say them: `42 s`, `3 min 05 s`, `2 h 10 min`, `62.4 d`."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds < 172_800:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{seconds / 86_400:.1f} d"
