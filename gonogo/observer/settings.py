"""Read and mark the environment of the observed process; nothing else does."""

import os

from gonogo.trainer.settings import Settings, load_settings

_OWNER = "GONOGO_OBSERVED_PID"
"""The process that writes for its rank; its children inherit the name, and write nothing."""
_RANK_NAMES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")

__all__ = ["Settings", "is_launched", "is_of_rank", "launcher_rank", "load_settings", "mark"]


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
