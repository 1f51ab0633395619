"""Start the applications (`service`, `worker`, `lab`) with `python -m` from the checkout.

They are never installed, because their names exist on PyPI.
"""

import os
import shutil
import sys
from collections.abc import Mapping

from gonogo.contract.cluster import EngineName
from gonogo.planning.resolve import checkout_root

SLURM_COMMANDS = ("sbatch", "squeue", "scontrol", "scancel")


def application_argv(module: str, *arguments: str) -> list[str]:
    """Return the command line of an application."""
    return [sys.executable, "-m", module, *arguments]


def application_env(environ: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return the environment of an application: the checkout is first on its path."""
    path = os.pathsep.join(filter(None, [str(checkout_root()), environ.get("PYTHONPATH")]))
    return {**environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


def replace_process(module: str, *arguments: str, environ: Mapping[str, str]) -> None:
    """Become an application, in the checkout's folder.

    Raises:
        NotFound: gonogo is installed without a checkout.
    """
    env = application_env(environ)
    os.chdir(checkout_root())
    os.execve(sys.executable, application_argv(module, *arguments), env)


def missing_commands(engine: EngineName, path: str | None) -> str | None:
    """Return a sentence about commands of Slurm that its engine needs and PATH lacks.

    Args:
        engine: what starts the runs of the worker.
        path: the worker's PATH; None: the usual one.
    """
    needed = SLURM_COMMANDS if engine is EngineName.SLURM else ()
    missing = [name for name in needed if shutil.which(name, path=path) is None]
    if not missing:
        return None
    return (
        f"engine {engine}: {', '.join(missing)} not found on PATH; use a login node of the"
        " cluster, or add the folder of Slurm's commands to PATH"
    )
