"""Is `runs/` there, or the empty folder under a mount that has not come yet?

A worker that claims with none of its runs in sight says that they are dead. So a folder that holds
runs gets an id, which its home knows, too: `runs/.runs_folder.json` and
`GONOGO_HOME/runs_folder.json`. Where the home knows one and the folder has another, or none,
nothing is claimed until it is mounted, or until somebody says that it is new
(`gonogo worker --new-runs`).
A home that knows none (a first start, an upgrade, a new home before a folder that others use)
takes the folder as it is; an empty one gets no id, so a first start may be before its mount, too.
"""

import uuid
from pathlib import Path

from gonogo.contract.ids import Kind, is_id
from gonogo.supervise.durable import create_json, load_json, save_json

KNOWN_NAME = "runs_folder.json"
"""In the home: which folder its runs lie in."""
NOTE_NAME = ".runs_folder.json"
"""In the folder: which one it is."""


def find_missing(home: Path, runs: Path) -> str | None:
    """Return what is wrong with the folder of runs, and what to do; None: nothing.

    Args:
        home: GONOGO_HOME.
        runs: folder of the run directories.

    Raises:
        OSError: the file system does not say.
    """
    known = _load_id(home / KNOWN_NAME)
    if known is None or _load_id(runs / NOTE_NAME) == known:
        return None
    return (
        f"{runs} is not the folder that the runs of this home lie in: mount that one; if this one"
        " is to be it from now on: gonogo worker --new-runs"
    )


def mark_runs(home: Path, runs: Path) -> None:
    """Have a home that knows no folder know the one that it has, as soon as that holds a run.

    Raises:
        OSError: the file system refuses just now; the home may be marked later.
    """
    if _load_id(home / KNOWN_NAME) is not None:
        return
    found = _load_id(runs / NOTE_NAME)
    if found is None and _holds_a_run(runs):
        found = _make_id(runs)
    if found is not None:
        save_json(home / KNOWN_NAME, {"v": 1, "id": found})


def take_as_new(home: Path, runs: Path) -> None:
    """Have a home know the folder that it has now, whatever it knew; what it holds stays.

    Raises:
        OSError: the file system refuses just now.
    """
    runs.mkdir(parents=True, exist_ok=True)
    found = _load_id(runs / NOTE_NAME) or _make_id(runs)
    save_json(home / KNOWN_NAME, {"v": 1, "id": found})


def _make_id(runs: Path) -> str:
    """Return the id that a folder has from now on; of two homes that give it one, the first's."""
    made = uuid.uuid4().hex
    if create_json(runs / NOTE_NAME, {"v": 1, "id": made}):
        return made
    found = _load_id(runs / NOTE_NAME)
    if found is None:  # a note that nobody can read is none
        save_json(runs / NOTE_NAME, {"v": 1, "id": made})
    return found or made


def _load_id(path: Path) -> str | None:
    found = (load_json(path) or {}).get("id")
    return found if isinstance(found, str) and found else None


def _holds_a_run(runs: Path) -> bool:
    try:
        return any(is_id(path.name, Kind.RUN) for path in runs.iterdir())
    except FileNotFoundError:
        return False
