"""What every engine does: start an attempt, report what became of it, stop it.

An engine starts `python -m worker.node RUN` on every node of an order, which becomes the keeper
there. `find` returns `Ended` only with proof that nothing of the attempt is left; a node that does
not answer may still train. `engine.json` in the run directory is written before the order, and
again once the engine has taken the attempt. A worker killed in between submits again, which starts
no second job.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gonogo.contract.order import Order
from gonogo.rundir import save_json
from gonogo.settings import REACHED_FILE
from gonogo.supervise.durable import load_json

ENGINE_NAME = "engine.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """One attempt, as its engine knows it."""

    engine: str
    name: str
    """The engine's name for it, such as the number of a job."""
    run: str
    token: int
    where: str = field(default="", compare=False)
    """Server and namespace, for an engine that can be asked in several places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The attempt runs, or waits for what `text` says."""

    text: str
    waits: bool = False
    stands: bool = False
    """The scheduler has suspended its processes."""
    again: bool = False
    """It has begun before and waits to be started a second time, which we did not ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Nothing of the attempt is left on any node."""

    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The engine does not answer, or cannot know."""

    text: str


Found = Running | Ended | Unknown


class Engine(Protocol):
    """Starts attempts somewhere."""

    def submit(self, order: Order, token: int) -> Handle:
        """Start an attempt once a token; Rejected: not such an order; Unavailable: no answer."""

    def find(self, handle: Handle) -> Found:
        """Return what has become of an attempt."""

    def stop(self, handle: Handle) -> None:
        """Ask for the end of an attempt; `find` reports when it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The content of engine.json."""

    engine: str
    name: str | None
    """The engine's name for the attempt; None until the engine has taken it."""
    where: str = ""

    def handle(self, order: Order) -> Handle | None:
        """Return what the engine is asked about; None before it has taken the attempt."""
        if self.name is None:
            return None
        return Handle(
            engine=self.engine,
            name=self.name,
            run=order.run,
            token=order.token,
            where=self.where,
        )


def save_submission(run_dir: Path, engine: str, name: str | None = None, where: str = "") -> None:
    """Write engine.json."""
    save_json(run_dir / ENGINE_NAME, {"v": 1, "engine": engine, "name": name, "where": where})


def load_submission(run_dir: Path) -> Submission | None:
    """Return the content of engine.json; None: the run belongs to this host."""
    found = load_json(run_dir / ENGINE_NAME)
    if found is None or not isinstance(found.get("engine"), str):
        return None
    name = found.get("name")
    return Submission(
        engine=found["engine"],
        name=name if isinstance(name, str) else None,
        where=str(found.get("where") or ""),
    )


def save_control_plane_url(home: Path, url: str) -> bool:
    """Write reached.json; return True, or raise OSError."""
    save_json(home / REACHED_FILE, {"v": 1, "url": url})
    return True


def load_control_plane_url(home: Path, run_dir: Path) -> str | None:
    """Return the address for the nodes of an engine's run; None for other runs."""
    try:
        if load_submission(run_dir) is None:
            return None
        url = (load_json(home / REACHED_FILE) or {}).get("url")
    except OSError:
        return None
    return url if isinstance(url, str) and url else None
