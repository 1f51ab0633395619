"""What can be typed? The `gonogo` command; `gonogo COMMAND --help` explains each.

Exit codes: 0 GO / ok · 1 unexpected or differing · 2 bad input · 3 not found · 4 not allowed ·
5 service unreachable · 10 NO_GO · 11 CONDITIONAL_GO · 12 INCONCLUSIVE · 13 cancelled ·
130 Ctrl-C.
"""

import sys

import typer

from gonogo import __version__
from gonogo.cli import administer, demo, experiments, judging, processes, watching
from gonogo.cli.exits import Exit, exit_of_error
from gonogo.cli.output import err
from gonogo.contract.errors import Conflict, GonogoError

app = typer.Typer(
    name="gonogo",
    help=(
        "Run training experiments in phases, watch every rank, and write down a verdict that"
        " anyone can check."
    ),
    epilog="Start with: gonogo demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for module in (processes, demo, experiments, watching, judging, administer):
    module.register(app)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"gonogo {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    """Hold the options that stand before a command."""


def main() -> None:
    """Run the command line; every foreseen error is one line and its own exit code."""
    try:
        app(standalone_mode=True)
    except GonogoError as error:
        print_error(error)
        sys.exit(exit_of_error(error))
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(Exit.UNEXPECTED)


def print_error(error: GonogoError) -> None:
    """Print an error as one line on stderr, with what is allowed where it is known."""
    text = f"gonogo: {error.detail}"
    if isinstance(error, Conflict) and error.allowed:
        text += f" (allowed now: {', '.join(error.allowed)})"
    elif len(error.problems) > 1:
        text += "; " + "; ".join(f"{row.path}: {row.message}" for row in error.problems[1:])
    err.print(" ".join(text.split()), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
