"""Which commands of a scheduler does an engine call, and are they on PATH?"""

import shutil

from gonogo.contract.cluster import EngineName

COMMANDS = {EngineName.SLURM: ("sbatch", "squeue", "scontrol", "scancel")}
"""What the worker of an engine calls (`worker.engine`); jobset calls the API server itself."""


def missing_commands(engine: EngineName, path: str | None) -> str | None:
    """Return a sentence about the commands that an engine needs and PATH does not have.

    Args:
        engine: who starts the worker's runs.
        path: the worker's PATH; None: the usual one.
    """
    needed = COMMANDS.get(engine, ())
    missing = [name for name in needed if shutil.which(name, path=path) is None]
    if not missing:
        return None
    return (
        f"engine {engine}: {', '.join(missing)} not found on PATH; use a login node of the"
        " cluster, or add the folder of Slurm's commands to PATH"
    )
