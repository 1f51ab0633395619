"""Is `runs/` there, or the empty folder under a mount that has not come yet?

A worker that claims with none of its runs in sight says that they are dead. So a folder that holds
runs gets an id, which its home knows, too: `runs/.runs_folder.json` and
`GONOGO_HOME/runs_folder.json`. Where the home knows one and the folder has another, or none,
nothing is claimed until it is mounted, or until somebody says that it is new
(`gonogo worker --new-runs`). A folder that lies in its home, and under no mount of its own, cannot
come late: where that is gone somebody removed it, and the home goes on with what is there. Where a
mount was laid over it since, it is not gone, and that mount has to hold its runs.
A home that knows none (a first start, an upgrade, a new home before a folder that others use)
takes the folder as it is; an empty one gets no id, so a first start may be before its mount, too.
"""

import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gonogo.contract.ids import Kind, is_id
from gonogo.supervise.durable import create_json, load_json, save_json

KNOWN_NAME = "runs_folder.json"
"""In the home: which folder its runs lie in."""
NOTE_NAME = ".runs_folder.json"
"""In the folder: which one it is."""
MOUNTS = Path("/proc/self/mountinfo")


def find_missing(home: Path, runs: Path) -> str | None:
    """Return what is wrong with the folder of runs, and what to do; None: nothing.

    Args:
        home: GONOGO_HOME.
        runs: folder of the run directories.

    Raises:
        OSError: the file system does not say.
    """
    known, found = load_json(home / KNOWN_NAME) or {}, _load_id(runs / NOTE_NAME)
    if _id_of(known) in (None, found):
        return None
    if known.get("mounted") is False and not is_mounted(home, runs):
        return None
    if known.get("mounted") is False and found is None and _holds_a_run(runs):
        return None  # its runs were moved to the mount, and their note was left behind
    return (
        f"{runs} is not the folder that the runs of this home lie in: mount that one; if this one"
        " is to be it from now on: gonogo worker --new-runs"
    )


def mark_runs(home: Path, runs: Path) -> None:
    """Have a home that knows no folder know the one that it has, as soon as that holds a run.

    Nothing is known anew while that one is missing (`find_missing`).

    Raises:
        OSError: the file system refuses just now; the home may be marked later.
    """
    known, found = load_json(home / KNOWN_NAME) or {}, _load_id(runs / NOTE_NAME)
    if found is not None and found == _id_of(known):
        if known.get("mounted") != is_mounted(home, runs):
            _know(home, runs, found)  # they were moved, to a mount of their own or back
        return
    if find_missing(home, runs) is not None:
        return
    if found is None and _holds_a_run(runs):
        found = _make_id(runs)
    if found is not None:
        _know(home, runs, found)


def take_as_new(home: Path, runs: Path) -> None:
    """Have a home know the folder that it has now, whatever it knew; what it holds stays.

    Raises:
        OSError: the file system refuses just now.
    """
    runs.mkdir(parents=True, exist_ok=True)
    _know(home, runs, _load_id(runs / NOTE_NAME) or _make_id(runs))


def _know(home: Path, runs: Path, found: str) -> None:
    mounted = is_mounted(home, runs)
    save_json(home / KNOWN_NAME, {"v": 1, "id": found, "mounted": mounted})


def is_mounted(home: Path, runs: Path) -> bool:
    """Say whether runs lie under a mount under which their home does not; True: nobody can say."""
    try:
        rows = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return True
    points = {Path(_unescaped(row.split()[4])) for row in rows if len(row.split()) > 4}
    return _mount_of(home, points) != _mount_of(runs, points)


def _mount_of(path: Path, points: set[Path]) -> Path | None:
    real = path.resolve()
    return next((place for place in (real, *real.parents) if place in points), None)


def _unescaped(text: str) -> str:
    """Return a path of mountinfo as it is: proc(5) writes blanks and the like in octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


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
    return _id_of(load_json(path) or {})


def _id_of(note: Mapping[str, Any]) -> str | None:
    found = note.get("id")
    return found if isinstance(found, str) and found else None


def _holds_a_run(runs: Path) -> bool:
    try:
        return any(is_id(path.name, Kind.RUN) for path in runs.iterdir())
    except FileNotFoundError:
        return False
