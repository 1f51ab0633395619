"""Ended runs that the control plane refuses, and how a person abandons one.

The control plane may refuse a run for ever, for instance after a restore of its database. The
worker notes that in `runs/{run}/.refused.json`. `gonogo abandon` writes `.shipped`, and the worker
leaves the run alone from then on. The directory stays as it is.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gonogo.contract.errors import NotFound, Rejected
from gonogo.contract.ids import Kind, is_id
from gonogo.rundir import SHIPPED_NAME
from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.keeper_record import is_kept_here
from gonogo.supervise.locks import holding, keeper_lock

REFUSED_NAME = ".refused.json"
_KEY = "given_up"
_LOCK_S = 10.0
"""How long to wait for a worker that is sending the run."""
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The control plane refuses the rest of an ended run."""

    run: str
    since: float
    """Unix seconds."""
    text: str
    """Its last answer."""

    @property
    def way_out(self) -> str:
        """What to type."""
        return f"gonogo abandon {self.run} --reason TEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """A person has abandoned a run."""

    at: float
    """Unix seconds."""
    reason: str
    refused: str
    """The last answer of the control plane."""


def note_refusal(path: Path, text: str, now: float) -> bool:
    """Note that the control plane refuses an ended run; return whether the text is new.

    Args:
        path: the run's directory.
        text: its answer.
        now: Unix seconds.

    Raises:
        OSError: the directory cannot be written to.
    """
    before = load_refusal(path)
    if before is not None and before.text == text:
        return False
    since = now if before is None else before.since
    save_json(path / REFUSED_NAME, {"v": 1, "since": since, "text": text})
    return True


def forget_refusal(path: Path) -> None:
    """Remove the note: the control plane has accepted the whole run.

    Raises:
        OSError: the file system refuses just now.
    """
    (path / REFUSED_NAME).unlink(missing_ok=True)


def load_refusal(path: Path) -> Refusal | None:
    """Return the refusal of a run that is not shipped yet, or None.

    Raises:
        OSError: the file system does not answer.
    """
    found = None if (path / SHIPPED_NAME).exists() else load_json(path / REFUSED_NAME)
    if found is None:
        return None
    since = float(found.get("since") or 0.0)
    return Refusal(run=path.name, since=since, text=str(found.get("text") or ""))


def load_refusals(runs: Path) -> Iterator[Refusal]:
    """Yield the refusals of a folder of runs, oldest id first.

    Raises:
        OSError: the folder cannot be read.
    """
    for note in sorted(runs.glob(f"run_*/{REFUSED_NAME}")):
        found = load_refusal(note.parent)
        if found is not None:
            yield found


def load_given_up(path: Path) -> GivenUp | None:
    """Return when and why a run was abandoned; None if it was not.

    Raises:
        OSError: the file system does not answer.
    """
    found = (load_json(path / SHIPPED_NAME) or {}).get(_KEY)
    if not isinstance(found, dict):
        return None
    return GivenUp(at=float(found["at"]), reason=found["reason"], refused=found["refused"])


def give_up(runs: Path, run: str, *, reason: str, now: float) -> GivenUp:
    """Abandon a run that the control plane refuses; a second time changes nothing.

    Args:
        runs: folder of the run directories.
        run: the run.
        reason: why, in a person's words.
        now: Unix seconds.

    Raises:
        NotFound: there is no such run here.
        Rejected: it lives, was shipped, or is not refused.
        OSError: its directory cannot be read or written to.
    """
    path = runs / run
    if not is_id(run, Kind.RUN) or not path.is_dir():
        raise NotFound(f"there is no run {run} in {runs}")
    deadline = time.monotonic() + _LOCK_S
    while True:
        with holding(keeper_lock(path)) as free:
            if free and not is_kept_here(path):
                return _give_up(path, reason, now)
        if is_kept_here(path):
            raise Rejected(f"{run} lives: its keeper has it; only an ended run can be given up")
        if time.monotonic() > deadline:
            raise Rejected(f"{run} is held by its keeper or by a worker that sends it; try again")
        time.sleep(_PAUSE_S)


def _give_up(path: Path, reason: str, now: float) -> GivenUp:
    before, refusal = load_given_up(path), load_refusal(path)
    if before is not None:
        return before
    if (path / SHIPPED_NAME).exists():
        raise Rejected(f"{path.name} waits for nothing: the control plane has taken all of it")
    if not (path / "exit.json").exists():
        raise Rejected(f"{path.name} has not ended; only an ended run can be given up")
    if refusal is None:
        raise Rejected(
            f"nobody has refused {path.name}: the worker sends it as soon as somebody answers"
        )
    word = {"at": now, "reason": reason, "refused": refusal.text}
    save_json(path / SHIPPED_NAME, {"v": 1, "fenced": False, _KEY: word})
    return GivenUp(at=now, reason=reason, refused=refusal.text)
