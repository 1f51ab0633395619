"""Which ended runs does the control plane refuse, and what if somebody gives one up?

It may refuse a run for ever: the secret of its claim went with a home, or a database that was
restored does not know it. Whoever ships notes that in `runs/{run}/.refused.json`. Nothing is given
up by itself: `gonogo abandon` writes `.shipped` in somebody's name, and from then on the worker
leaves the run alone. All that stands in its directory stays there.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gonogo.contract.errors import NotFound, Rejected
from gonogo.contract.ids import Kind, is_id
from gonogo.rundir import SHIPPED_NAME
from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.keeper.living import is_kept_here
from gonogo.supervise.locks import holding, keeper_lock

REFUSED_NAME = ".refused.json"
_GIVEN_UP = "given_up"
_LOCK_S = 10.0
"""How long a worker that tries to ship the run just now is waited for."""
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The control plane refuses what is left to tell of an ended run."""

    run: str
    since: float
    """Unix seconds."""
    text: str
    """What it said last."""

    @property
    def way_out(self) -> str:
        """What to type; its evidence is kept."""
        return f"gonogo abandon {self.run} --reason TEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """Somebody has given a run up."""

    at: float
    """Unix seconds."""
    reason: str
    refused: str
    """What the control plane said last."""


def note_refusal(path: Path, text: str, now: float) -> bool:
    """Note what the control plane says to an ended run; True where it had not said just that.

    Args:
        path: the run's directory.
        text: why it refuses.
        now: Unix seconds.

    Raises:
        OSError: the directory takes no note.
    """
    before = load_refusal(path)
    if before is not None and before.text == text:
        return False
    since = now if before is None else before.since
    save_json(path / REFUSED_NAME, {"v": 1, "since": since, "text": text})
    return True


def forget_refusal(path: Path) -> None:
    """Take the note back: the control plane has taken all of the run.

    Raises:
        OSError: the file system refuses just now.
    """
    (path / REFUSED_NAME).unlink(missing_ok=True)


def load_refusal(path: Path) -> Refusal | None:
    """Return what is noted of a run that waits to be shipped, or None.

    Raises:
        OSError: the file system does not say.
    """
    found = None if (path / SHIPPED_NAME).exists() else load_json(path / REFUSED_NAME)
    if found is None:
        return None
    return Refusal(run=path.name, since=_number(found, "since"), text=_text(found, "text"))


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
    """Return that, and why, a run was given up; None where it was not.

    Raises:
        OSError: the file system does not say.
    """
    found = (load_json(path / SHIPPED_NAME) or {}).get(_GIVEN_UP)
    if not isinstance(found, dict):
        return None
    return GivenUp(
        at=_number(found, "at"), reason=_text(found, "reason"), refused=_text(found, "refused")
    )


def give_up(runs: Path, run: str, *, reason: str, now: float) -> GivenUp:
    """Give a run up that the control plane refuses; one that was given up before stays so.

    Args:
        runs: folder of the run directories.
        run: the run.
        reason: why, in somebody's words.
        now: Unix seconds.

    Raises:
        NotFound: there is no such run here.
        Rejected: it lives, it was shipped, or the control plane does not refuse it.
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
    save_json(path / SHIPPED_NAME, {"v": 1, "fenced": False, _GIVEN_UP: word})
    return GivenUp(at=now, reason=reason, refused=refusal.text)


def _text(record: dict[str, Any], name: str) -> str:
    found = record.get(name)
    return found if isinstance(found, str) else ""


def _number(record: dict[str, Any], name: str) -> float:
    found = record.get(name)
    return float(found) if isinstance(found, int | float) else 0.0
