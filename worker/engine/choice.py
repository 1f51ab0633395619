"""The engine that the settings of a worker name, and the environment of its nodes."""

import os

from gonogo.contract.cluster import EngineName, SlurmCluster
from gonogo.contract.errors import Rejected
from worker.engine.engine import Engine
from worker.engine.jobset import JobSets, KubernetesApi, load_template
from worker.engine.slurm import Slurm, load_defaults
from worker.settings import Settings, keeper_environ

_KEPT = frozenset(
    {
        "CONDA_PREFIX", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "OMP_NUM_THREADS",
        "PATH", "SHELL", "SLURM_CONF", "TZ", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME",
        "GONOGO_HOME", "GONOGO_URL", "GONOGO_LOG", "GONOGO_DEVICES_SCRIPT", "PYTHONPATH",
    }
)  # fmt: skip


def build_engine(settings: Settings) -> Engine | None:
    """Return the engine; None: the worker starts runs itself.

    Raises:
        Rejected: a setting of the engine is missing or wrong.
    """
    if settings.engine is EngineName.LOCAL:
        return None
    if settings.engine is EngineName.SLURM:
        file = settings.slurm_defaults
        defaults = SlurmCluster() if file is None else load_defaults(file)
        return Slurm(settings.runs, defaults, node_environ(settings))
    if settings.jobset_template is None:
        raise Rejected(
            "GONOGO_ENGINE=jobset needs GONOGO_JOBSET_TEMPLATE, such as deploy/kubernetes/run.yaml"
        )
    template = load_template(settings.jobset_template)
    api = KubernetesApi(template["metadata"].get("namespace"))
    return JobSets(template, api, settings.runs)


def node_environ(settings: Settings) -> dict[str, str]:
    """Return the environment of `python -m worker.node`.

    The script of a job can be read by others, so no key is in it: the key lies in the home.
    """
    kept = {name: value for name, value in keeper_environ(settings, None).items() if name in _KEPT}
    more = {
        "GONOGO_WORKER_ALLOW": ",".join(settings.allow),
        "GONOGO_WORKER_ALLOW_ENV": ",".join(settings.allow_env),
        "GONOGO_LOCKS": "" if settings.locks is None else os.fspath(settings.locks),
    }
    return {**kept, **{name: value for name, value in more.items() if value}}
