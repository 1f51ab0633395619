"""The environment of a rank; read only here."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The environment of one rank; None: not set."""

    run_dir: Path | None
    run: str | None
    rank: int | None
    world_size: int | None
    nsa_env: dict[str, str]


def load_settings() -> Settings:
    """Return the settings of this process.

    Raises:
        ValueError: RANK or WORLD_SIZE is no number.
    """
    said = os.environ
    run_dir = said.get("GONOGO_RUN_DIR")
    return Settings(
        run_dir=Path(run_dir) if run_dir else None,
        run=said.get("GONOGO_RUN") or None,
        rank=_number(said, "RANK"),
        world_size=_number(said, "WORLD_SIZE"),
        nsa_env={name: text for name, text in said.items() if name.startswith("NSA_")},
    )


def _number(said: Mapping[str, str], name: str) -> int | None:
    text = said.get(name)
    return int(text) if text else None


_OWNER = "GONOGO_OBSERVED_PID"
"""The process that writes for its rank; its children inherit the name, and write nothing."""
_RANK_NAMES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


def is_of_rank() -> bool:
    """Whether a process above this one writes for its rank."""
    return os.environ.get(_OWNER, str(os.getpid())) != str(os.getpid())


def mark() -> None:
    """Let the children of this process know that it writes for its rank."""
    os.environ[_OWNER] = str(os.getpid())


def is_launched() -> bool:
    """Whether a launcher has given this process a rank."""
    return bool(os.environ.get("RANK"))


def launcher_rank() -> int:
    """Return the rank that a launcher without `RANK` names (MPI, Slurm); 0 where none does."""
    told = (os.environ.get(name, "") for name in _RANK_NAMES)
    return next((int(text) for text in told if text.isdigit()), 0)
