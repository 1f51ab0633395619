"""`gonogo` in this process, as a shell would call it: arguments and environment in, words out.

What only a process of its own can show (a broken pipe, a signal, what is imported) has tests that
start one.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest import mock

from gonogo.cli.app import run


def typed(home: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run one command line in a home, nothing else of GONOGO_* being set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GONOGO_")}
    said, told = StringIO(), StringIO()
    wanted = {**kept, "GONOGO_HOME": str(home), **environ}
    with (
        mock.patch.dict(os.environ, wanted, clear=True),
        redirect_stdout(said),
        redirect_stderr(told),
    ):
        try:
            code = run(arguments)
        except SystemExit as stop:  # typer leaves so when it has answered a shell
            code = int(stop.code or 0)
    return subprocess.CompletedProcess(arguments, code, said.getvalue(), told.getvalue())
