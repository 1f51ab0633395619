"""The gonogo release and Python interpreter of this process. Standard library only."""

import sys
from pathlib import Path

from gonogo import __version__
from gonogo.git_commit import load_commit

_ROOT = Path(__file__).resolve().parents[2]
_PYTHON = str(Path(sys.executable).parent.resolve() / Path(sys.executable).name)
"""Read at the start: a link to "the current release" may point elsewhere later. The last part is
not
resolved, since that would leave the virtual environment."""


def load_release(root: Path = _ROOT) -> dict[str, str | None]:
    """Return `version` and `git_sha` (None outside of a checkout)."""
    return {"version": __version__, "git_sha": load_commit(root)}


def own_python() -> str:
    """Return the path of this interpreter."""
    return _PYTHON


def own_module(module: str) -> list[str]:
    """Return the command that runs a module of ours with this interpreter.

    `-P` keeps modules of the current folder (a user's `logging.py`) from hiding ours.
    """
    return [own_python(), *(["-P"] if module.startswith("gonogo.") else []), "-m", module]
