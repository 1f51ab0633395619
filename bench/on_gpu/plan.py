"""In which order is what measured, how long may it take, and what does the exit code say?

Nothing here reads a clock, starts a process or knows torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

TOTAL_S = 530.0
"""All stages together: nine minutes less the start of the last process."""
LEAST_S = 6.0
"""A stage that has less left is not begun: importing torch takes as long."""
GRACE_S = 5.0
"""After its own deadline a stage is given so long to come to its end before it is killed."""

ROW_LIMIT_S = 45.0
"""One thing that is measured takes a few seconds; what takes so long hangs, and is ended."""

RIGHT, WRONG, BAD_ARGUMENTS, NO_GPU = 0, 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A module of this package, run in its own process: a crash takes nothing from the next."""

    name: str
    limit_s: float
    """Deadline, start of Python included."""
    without_gpu: bool = True
    """Whether it has something to do on a CPU."""


STAGES = (
    Stage(name="machine", limit_s=35),
    Stage(name="compiling", limit_s=70, without_gpu=False),
    Stage(name="correctness", limit_s=90),
    Stage(name="attention", limit_s=120),
    Stage(name="kernel_table", limit_s=30),
    Stage(name="trainer_steps", limit_s=150),
    Stage(name="tile_sweep", limit_s=90, without_gpu=False),
    Stage(name="other_dtypes", limit_s=180, without_gpu=False),
)
"""In order of value: who ends the command early keeps what matters most."""


def allowance_s(stage: Stage, spent_s: float, total_s: float = TOTAL_S) -> float:
    """Return how long a stage may take now; 0.0 if that is too short to begin."""
    left_s = min(stage.limit_s, total_s - spent_s - GRACE_S)
    return left_s if left_s >= LEAST_S else 0.0


def hangs(last: Mapping[str, Any] | None, silent_s: float) -> bool:
    """Whether the row written `silent_s` ago began a thing that is past its deadline."""
    return last is not None and last.get("row") == "begin" and silent_s > last["limit_s"]


def exit_code(rows: Iterable[Mapping[str, Any]], planned: Iterable[str]) -> int:
    """Return `RIGHT` only if every planned comparison was made and held."""
    held: dict[str, bool] = {}
    for row in rows:
        if row.get("row") == "correctness":
            name = str(row.get("name"))
            held[name] = held.get(name, True) and row.get("right") is True
    return RIGHT if all(held.get(name, False) for name in {*planned, *held}) else WRONG
