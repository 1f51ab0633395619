"""Which engine does a worker hand its runs to? The one that its settings name."""

from gonogo.contract.cluster import EngineName, SlurmCluster
from gonogo.contract.errors import Rejected
from worker.engine.engine import Engine
from worker.engine.jobset import JobSets, load_template
from worker.engine.kubernetes_api import KubernetesApi
from worker.engine.nodes_environ import nodes_environ
from worker.engine.slurm import Slurm, load_defaults
from worker.settings import Settings


def build_engine(settings: Settings) -> Engine | None:
    """Return the engine; None: the worker starts runs itself.

    Raises:
        Rejected: what the engine needs to be told is missing or wrong.
    """
    if settings.engine is EngineName.LOCAL:
        return None
    if settings.engine is EngineName.SLURM:
        said = settings.slurm_defaults
        usual = SlurmCluster() if said is None else load_defaults(said)
        return Slurm(settings.runs, usual, nodes_environ(settings))
    if settings.jobset_template is None:
        raise Rejected(
            "GONOGO_ENGINE=jobset needs GONOGO_JOBSET_TEMPLATE, such as deploy/kubernetes/run.yaml"
        )
    template = load_template(settings.jobset_template)
    # Looked for elsewhere than it was made, a run that trains would be called gone.
    api = KubernetesApi(template["metadata"].get("namespace"))
    return JobSets(template, api, settings.runs)
