"""`gonogo simulate` starts the simulator, which a checkout holds and a wheel does not."""

import os
import sys

import typer

from gonogo.cli.checkout import application_argv, application_env
from gonogo.cli.settings import load_settings
from gonogo.contract.errors import NotFound
from gonogo.planning.resolve import checkout_root


def simulate(context: typer.Context) -> None:
    """Simulate runs and count false halts, misses and latencies; exit 1 on any halt or miss."""
    if not (checkout_root() / "lab").is_dir():
        raise NotFound("gonogo simulate needs a checkout: the simulator is not installed here")
    env = application_env(load_settings().inherited)
    os.execve(sys.executable, application_argv("lab", *context.args), env)


def register(app: typer.Typer) -> None:
    """Add the command of this module; its options are those of `python -m lab`."""
    app.command(
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(simulate)
