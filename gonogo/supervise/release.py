"""Which release supervises this run? Its version, commit and interpreter; standard library only.

Read once, as this process starts: what lies in the folder later may be another release.
"""

import sys
from pathlib import Path

from gonogo import __version__
from gonogo.checkout import load_commit

_ROOT = Path(__file__).resolve().parents[2]


def load_release(root: Path = _ROOT) -> dict[str, str | None]:
    """Return `version` and `git_sha` (None where this is no checkout)."""
    return {"version": __version__, "git_sha": load_commit(root)}


_PYTHON = str(Path(sys.executable).parent.resolve() / Path(sys.executable).name)


def own_python() -> str:
    """Return this interpreter by its folder's own name, links on the way there followed.

    Releases may lie behind a link that names another one tomorrow: what belongs to this run goes on
    with the folder of today. The last part is not followed, or it would leave its environment.
    """
    return _PYTHON


def own_module(module: str) -> list[str]:
    """Return the command that runs a module of ours with this interpreter.

    The folder we stand in is a person's: a clone called `gonogo` or a `logging.py` there is not
    ours. What is not of gonogo is never installed, and is found in the checkout that we stand in.
    """
    return [own_python(), *(["-P"] if module.startswith("gonogo.") else []), "-m", module]
