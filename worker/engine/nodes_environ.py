"""What does a node's keeper get of the environment of the worker that submitted it?

A job's script lies in the run directory, which many may read, so it holds what a node needs to find
programs and the home, and no key: that one lies in the home, for its owner alone.
"""

import os

from worker.settings import Settings, keeper_environ

_KEPT = frozenset(
    {
        "CONDA_PREFIX", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "OMP_NUM_THREADS",
        "PATH", "SHELL", "SLURM_CONF", "TZ", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME",
    }
)  # fmt: skip


def nodes_environ(settings: Settings) -> dict[str, str]:
    """Return the environment of `python -m worker.once` on a node."""
    ours = {"GONOGO_HOME", "GONOGO_URL", "GONOGO_LOG", "GONOGO_DEVICES_SCRIPT", "PYTHONPATH"}
    found = {
        name: value
        for name, value in keeper_environ(settings, None).items()
        if name in ours or name in _KEPT
    }
    more = {
        "GONOGO_WORKER_ALLOW": ",".join(settings.allow),
        "GONOGO_WORKER_ALLOW_ENV": ",".join(settings.allow_env),
        "GONOGO_LOCKS": "" if settings.locks is None else os.fspath(settings.locks),
    }
    return {**found, **{name: value for name, value in more.items() if value}}
