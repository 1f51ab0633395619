"""The `gonogo` command; `gonogo COMMAND --help` explains each command."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import typer
from rich.console import Console

from gonogo import __version__
from gonogo.cli import (
    campaigns,
    experiments,
    judging,
    logs,
    maintenance,
    plans,
    processes,
    running,
    status,
    watching,
)
from gonogo.cli.client import Ambiguous
from gonogo.cli.exits import EXIT_WORDS, Exit, exit_of_error
from gonogo.cli.output import err, print_lines
from gonogo.contract.errors import MOST_PROBLEMS, Conflict, GonogoError, Problem, Rejected

app = typer.Typer(
    name="gonogo",
    help=(
        "Run training experiments in phases, watch every rank, and write down a verdict that"
        " anyone can check."
    ),
    epilog="Exit codes: "
    + "; ".join(f"{int(code)} {words}" for code, words in EXIT_WORDS.items())
    + ".\n\nStart with: gonogo demo",
    no_args_is_help=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
_TOPICS: dict[str, tuple[Callable[..., Any], ...]] = {
    "Begin": (processes.demo, processes.up, running.run, experiments.submit),
    "Look": (
        *(status.status, experiments.list_, status.show, watching.watch, plans.watchdog),
        *(logs.logs, status.decisions, status.artifacts, experiments.report, judging.forecast),
        *(campaigns.compare, status.workers, status.alerts, status.open_),
    ),
    "Steer": (*experiments.VERBS, experiments.rerun, experiments.override),
    "Judge, without a service": (
        *(judging.judge, judging.replay, judging.verify, processes.simulate),
    ),
    "Prepare and look after": (
        *(plans.plans, maintenance.flags, maintenance.doctor, processes.serve, processes.worker),
        *(maintenance.keys, maintenance.db, maintenance.backup, maintenance.restore),
        maintenance.prune,
    ),
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "run": {"context_settings": {"allow_interspersed_args": False}},
    "compare": {"epilog": campaigns.HOW},
    "simulate": {
        "add_help_option": False,
        "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    },
}
for topic, commands in _TOPICS.items():
    for command in commands:
        name = command.__name__.rstrip("_")
        app.command(name, rich_help_panel=topic, **_OPTIONS.get(name, {}))(command)
app.add_typer(campaigns.group, rich_help_panel="Begin")


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


_command = functools.cache(typer.main.get_command)


def run(
    arguments: Sequence[str] | None = None, *, commands: typer.Typer = app, name: str = "gonogo"
) -> int:
    """Run one command line and return its exit code; every foreseen error is one line."""
    words = None if arguments is None else list(arguments)
    try:
        return int(_command(commands)(words, prog_name=name, standalone_mode=False) or Exit.OK)
    except UsageError as error:
        print_lines([_usage_text(error)], err)
        return Exit.BAD_INPUT
    except GonogoError as error:
        print_error(error)
        return exit_of_error(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        print_error(Rejected(f"{error.filename or 'stdout or a file'}: {error.strerror}"))
        return Exit.BAD_INPUT if isinstance(error, _PATH_ERRORS) else Exit.UNEXPECTED
    except (KeyboardInterrupt, typer.Abort):
        err.print("interrupted")
        return Exit.INTERRUPTED


UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What typer raises for a command line that it cannot read; typer exports only one subclass."""
_PATH_ERRORS = (
    *(FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError),
)


def _usage_text(error: Any) -> str:
    text = error.format_message().strip().rstrip(".").replace("Value error, ", "")
    path = error.ctx.command_path if error.ctx is not None else "gonogo"
    return " ".join(f"{path}: {text[:1].lower()}{text[1:]} (see {path} --help)".split())


def print_error(error: GonogoError) -> None:
    """Print an error on stderr, with what is allowed, or every problem, when that is known."""
    text = refusal_text(error)
    if isinstance(error, Conflict) and error.allowed:
        text = f"{error.detail} (allowed now: {', '.join(error.allowed)})"
    elif isinstance(error, Ambiguous):
        text = "\n".join([error.detail, *(f"  {r.path}  {r.message}" for r in error.problems)])
    # whole identifiers: the short ones may be what was ambiguous
    Console.print(err, f"gonogo: {text}", markup=False, highlight=False, soft_wrap=True)


def refusal_text(error: GonogoError) -> str:
    """Return an error on one line; several problems on a line each, with their places."""
    rows = [_problem_text(row) for row in error.problems]
    if len(rows) > 1:
        first = "the first " if len(rows) == MOST_PROBLEMS else ""
        return "\n  ".join([f"{first}{len(rows)} problems", *rows])
    placed = bool(rows) and error.problems[0].source is not None
    return rows[0] if placed else " ".join(error.detail.split())


def _problem_text(row: Problem) -> str:
    line = "" if row.line is None else f":{row.line}" if row.source else f"line {row.line}"
    words = filter(None, (f"{row.source or ''}{line}", row.path, row.message))
    return " ".join(": ".join(words).split())
