"""`python -m lab`: the command that `gonogo simulate` starts."""

import sys

from gonogo.cli.app import run
from lab.command import app

if __name__ == "__main__":
    sys.exit(run(commands=app, name="gonogo simulate"))
