"""Which release supervises this run? Its version, commit and interpreter; standard library only.

Read once, as this process starts: what lies in the folder later may be another release.
"""

import re
import sys
from pathlib import Path

from gonogo import __version__

_ROOT = Path(__file__).resolve().parents[2]
_SHA = re.compile(r"[0-9a-f]{40,64}")


def load_release(root: Path = _ROOT) -> dict[str, str | None]:
    """Return `version` and `git_sha` (None where this is no checkout)."""
    try:
        sha = _commit_of(root)
    except OSError:
        sha = None
    return {"version": __version__, "git_sha": sha}


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


def _commit_of(root: Path) -> str | None:
    """Return the commit that a checkout stands at, without asking git.

    Raises:
        OSError: there is no checkout, or it cannot be read.
    """
    folder = root / ".git"
    if folder.is_file():  # a worktree's
        folder = root / folder.read_text().partition("gitdir:")[2].strip()
    head = (folder / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return _sha_in(head)
    name = head.partition("ref:")[2].strip()
    common = folder / "commondir"
    shared = (folder / common.read_text().strip()) if common.exists() else folder
    if (shared / name).exists():
        return _sha_in((shared / name).read_text())
    rows = (shared / "packed-refs").read_text().splitlines()
    return next((_sha_in(row) for row in rows if row.endswith(f" {name}")), None)


def _sha_in(text: str) -> str | None:
    found = _SHA.match(text.strip())
    return found[0] if found else None
