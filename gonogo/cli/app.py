"""What can be typed? The `gonogo` command; `gonogo COMMAND --help` explains each.

With which code a command ends stands in `screen/exit_words.py`.
"""

import errno
import sys
from collections.abc import Sequence

import typer

from gonogo import __version__
from gonogo.cli import (
    abandoning,
    administer,
    campaigns,
    comparing,
    database,
    demo,
    experiments,
    judging,
    ledger,
    patience,
    processes,
    pruning,
    running,
    simulating,
    watching,
)
from gonogo.cli.exits import Exit, exit_of_error
from gonogo.cli.look import artifacts, lists, page, status
from gonogo.cli.output import drop_unwritten, err
from gonogo.cli.reach.naming import Ambiguous
from gonogo.cli.screen.group import Commands, UsageError, usage_text
from gonogo.cli.screen.refusals import refusal_text
from gonogo.contract.errors import Conflict, GonogoError, Rejected

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

_OF_A_PATH = (
    errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT,
    errno.ENOTDIR, errno.EPERM, errno.EROFS,
)  # fmt: skip
"""What a path that was typed, or a home, may be wrong about."""
_OF_A_DISK = (errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC)
"""Why a write to what is open already, as stdout is, may fail: none of it is ours."""

MODULES = (
    processes,
    demo,
    experiments,
    watching,
    running,
    judging,
    comparing,
    campaigns,
    ledger,
    patience,
    simulating,
    administer,
    database,
    pruning,
    abandoning,
    status,
    lists,
    artifacts,
    page,
)
for module in MODULES:
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
    given = None if arguments is None else list(arguments)
    try:
        return int(commands(args=given, prog_name=name, standalone_mode=False) or Exit.OK)
    except UsageError as error:
        err.print(usage_text(error), markup=False, highlight=False, soft_wrap=True)
        return Exit.BAD_INPUT
    except GonogoError as error:
        print_error(error)
        return exit_of_error(error)
    except OSError as error:
        if error.filename is None and error.errno in _OF_A_DISK:
            if sys.stdout is not None:
                drop_unwritten(sys.stdout)
            print_error(Rejected(f"stdout or a file cannot be written: {error.strerror}"))
            return Exit.UNEXPECTED
        if error.filename is None or isinstance(error, BrokenPipeError):
            raise
        print_error(Rejected(f"{error.filename}: {error.strerror}"))
        return Exit.BAD_INPUT if error.errno in _OF_A_PATH else Exit.UNEXPECTED
    except (KeyboardInterrupt, typer.Abort):
        err.print("interrupted")
        return Exit.INTERRUPTED


def print_error(error: GonogoError) -> None:
    """Print an error on stderr, with what is allowed, or every problem, where that is known."""
    text = f"gonogo: {error.detail}"
    if isinstance(error, Conflict) and error.allowed:
        text += f" (allowed now: {', '.join(error.allowed)})"
    elif isinstance(error, Ambiguous):
        rows = [f"  {row.path}  {row.message}" for row in error.problems]
        err.print("\n".join([text, *rows]), markup=False, highlight=False, soft_wrap=True)
        return
    else:
        text = f"gonogo: {refusal_text(error)}"
    err.print(text, markup=False, highlight=False, soft_wrap=True)
