"""The `gonogo` command; `gonogo COMMAND --help` explains each command."""

import errno
import sys
from collections.abc import Sequence

import typer
from rich.console import Console

from gonogo import __version__
from gonogo.cli import (
    campaigns,
    comparing,
    database,
    demo,
    doctor,
    experiments,
    judging,
    ledger,
    logs,
    processes,
    pruning,
    running,
    status,
    watchdog,
    watching,
)
from gonogo.cli.exits import Exit, exit_of_error
from gonogo.cli.help import Commands, UsageError, usage_text
from gonogo.cli.naming import Ambiguous
from gonogo.cli.output import drop_unwritten, err, print_lines
from gonogo.contract.errors import MOST_PROBLEMS, Conflict, GonogoError, Problem, Rejected

app = typer.Typer(
    name="gonogo",
    cls=Commands,
    help=(
        "Run training experiments in phases, watch every rank, and write down a verdict that"
        " anyone can check."
    ),
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_PATH_ERRORS = (
    errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT,
    errno.ENOTDIR, errno.EPERM, errno.EROFS,
)  # fmt: skip
_DISK_ERRORS = (errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC)

for module in (
    *(processes, demo, experiments, watching, logs, running, judging, comparing, campaigns),
    *(ledger, watchdog, doctor, database, pruning, status),
):
    module.register(app)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"gonogo {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    """Hold the options that stand before a command; without any, show the help."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(
    arguments: Sequence[str] | None = None, *, commands: typer.Typer = app, name: str = "gonogo"
) -> int:
    """Run one command line and return its exit code; every foreseen error is one line.

    Args:
        arguments: what follows `name`; default: this process's.
        commands: what can be typed.
        name: of the command, for its help.
    """
    words = None if arguments is None else list(arguments)
    try:
        return int(commands(args=words, prog_name=name, standalone_mode=False) or Exit.OK)
    except UsageError as error:
        print_lines([usage_text(error)], err)
        return Exit.BAD_INPUT
    except GonogoError as error:
        print_error(error)
        return exit_of_error(error)
    except OSError as error:
        if error.filename is None and error.errno in _DISK_ERRORS:
            if sys.stdout is not None:
                drop_unwritten(sys.stdout)
            print_error(Rejected(f"stdout or a file cannot be written: {error.strerror}"))
            return Exit.UNEXPECTED
        if error.filename is None or isinstance(error, BrokenPipeError):
            raise
        print_error(Rejected(f"{error.filename}: {error.strerror}"))
        return Exit.BAD_INPUT if error.errno in _PATH_ERRORS else Exit.UNEXPECTED
    except (KeyboardInterrupt, typer.Abort):
        err.print("interrupted")
        return Exit.INTERRUPTED


def print_error(error: GonogoError) -> None:
    """Print an error on stderr, with what is allowed, or every problem, when that is known."""
    text = refusal_text(error)
    if isinstance(error, Conflict) and error.allowed:
        text = f"{error.detail} (allowed now: {', '.join(error.allowed)})"
    elif isinstance(error, Ambiguous):
        rows = [f"  {row.path}  {row.message}" for row in error.problems]
        text = "\n".join([error.detail, *rows])
    # whole identifiers: the short ones may be what was ambiguous
    Console.print(err, f"gonogo: {text}", markup=False, highlight=False, soft_wrap=True)


def refusal_text(error: GonogoError) -> str:
    """Return an error on one line; several problems on a line each, with their places."""
    rows = [_problem_text(row) for row in error.problems]
    if len(rows) > 1:
        first = "the first " if len(rows) == MOST_PROBLEMS else ""
        return "\n".join([f"{first}{len(rows)} problems", *(f"  {row}" for row in rows)])
    if len(rows) == 1 and error.problems[0].source is not None:
        return rows[0]
    return " ".join(error.detail.split())


def _problem_text(row: Problem) -> str:
    place = row.source or ""
    if row.line is not None:
        place = f"{place}:{row.line}" if place else f"line {row.line}"
    words = [word for word in (place, row.path, row.message) if word]
    return " ".join(": ".join(words).split())
