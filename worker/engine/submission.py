"""Which engine has an attempt, and under what name? `engine.json` in the run directory.

It is written before the order, without a name, and with it once the engine has taken the attempt:
a worker killed in between submits again, which starts no second job. Where an engine has two jobs
of an attempt all the same, `.begun_by.json` says which of them has begun it.
"""

from dataclasses import dataclass
from pathlib import Path

from gonogo.contract.order import Order
from gonogo.rundir import save_json
from gonogo.supervise.durable import create_json, load_json
from worker.engine.engine import Handle

ENGINE_NAME = "engine.json"
BEGUN_NAME = ".begun_by.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What was written down of an attempt's engine."""

    engine: str
    name: str | None
    """What the engine calls the attempt; None: it has not said so yet."""
    where: str = ""
    """Where the engine has it, or may have it; empty: that was not told."""

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
    """Write down whose an attempt is."""
    save_json(run_dir / ENGINE_NAME, {"v": 1, "engine": engine, "name": name, "where": where})


def load_submission(run_dir: Path) -> Submission | None:
    """Return whose an attempt is; None: this host's own."""
    found = load_json(run_dir / ENGINE_NAME)
    if found is None or not isinstance(found.get("engine"), str):
        return None
    name, where = found.get("name"), found.get("where")
    return Submission(
        engine=found["engine"],
        name=name if isinstance(name, str) else None,
        where=where if isinstance(where, str) else "",
    )


def save_begun(run_dir: Path, job: str) -> bool:
    """Write down which job begins an attempt; the first that says so counts."""
    return create_json(run_dir / BEGUN_NAME, {"v": 1, "job": job})


def load_begun(run_dir: Path) -> str | None:
    """Return which job began an attempt; None: none has, or it has not said so.

    Raises:
        OSError: it cannot be read just now.
    """
    found = (load_json(run_dir / BEGUN_NAME) or {}).get("job")
    return found if isinstance(found, str) else None
