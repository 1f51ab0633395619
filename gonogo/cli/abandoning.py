"""`gonogo abandon`: a person ends the sending of a run that the control plane refuses for good.

Run on the host whose home it is. All that the run left stays there.
"""

import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from gonogo.cli.output import print_json, print_lines
from gonogo.cli.settings import load_settings
from gonogo.contract.errors import Rejected, Unavailable
from gonogo.contract.output import GivenUpRun
from gonogo.rundir import is_text
from gonogo.supervise.given_up import give_up


def abandon(
    run: Annotated[str, typer.Argument(help="The run, as `gonogo doctor` names it.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; required.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Give up an ended run of this host that the service refuses; its directory stays."""
    if not reason.strip():
        raise Rejected("--reason: say why; it is told wherever the run is")
    if not is_text(reason):
        raise Rejected("--reason: these are no characters of UTF-8, and could be told nowhere")
    runs = load_settings().home / "runs"
    try:
        found = give_up(runs, run, reason=reason, now=time.time())
    except OSError as error:
        raise Unavailable(f"{error.filename or runs / run}: {error.strerror or error}") from error
    told = GivenUpRun(
        run=run,
        at=datetime.fromtimestamp(found.at, UTC).isoformat(),
        reason=found.reason,
        refused=found.refused,
        dir=str(runs / run),
    )
    if as_json:
        print_json(told.wire())
    else:
        print_lines([f"{run} is given up: {found.reason}", f"all of it stays in {told.dir}"])


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(abandon)
