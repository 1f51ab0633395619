"""Who hands runs to Kubernetes? A worker of the engine `jobset`, and what its account may.

It holds no GPU: it claims runs, makes a JobSet of each from the template in its ConfigMap, and
looks after them. Its home is a volume that the runs' pods mount, too: the secret of each claim lies
there.
"""

from gonogo.kubernetes.cluster import (
    HOME_AT,
    HTTP_PORT,
    METRICS_PORT,
    NAME,
    RUNS_AT,
    RUNS_CLAIM,
    SECRETS_AT,
    WORKER,
    WORKER_HOME_CLAIM,
    Cluster,
    Object,
    selected,
)
from gonogo.kubernetes.objects import build_claim, build_deployment, write_yaml
from gonogo.kubernetes.pods import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    SECRETS_MOUNT,
    TMP_MOUNT,
    claim_volume,
    empty_volume,
    mount,
    secret_volume,
    variables,
)
from gonogo.kubernetes.run import build_run, build_run_policy

COMPONENT = "worker"
_TEMPLATE = f"{NAME}-run"
_TEMPLATE_AT = "/etc/gonogo"
_TEMPLATE_FILE = "run.yaml"


def build_worker(cluster: Cluster) -> list[Object]:
    """Return the worker's objects."""
    template = write_yaml(build_run(cluster.for_template()))
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": cluster.meta(WORKER, COMPONENT),
        },
        _role(cluster),
        _binding(cluster),
        build_claim(
            cluster, WORKER_HOME_CLAIM, COMPONENT, "50Gi", "ReadWriteMany", cluster.storage_class
        ),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": cluster.meta(_TEMPLATE, COMPONENT),
            "data": {_TEMPLATE_FILE: template},
        },
        build_run_policy(cluster),
        _deployment(cluster),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": cluster.meta(WORKER, COMPONENT),
            "spec": {
                "type": "ClusterIP",
                "selector": selected(COMPONENT),
                "ports": [{"name": "metrics", "port": METRICS_PORT, "targetPort": "metrics"}],
            },
        },
    ]


def _role(cluster: Cluster) -> Object:
    """Return what the worker may: make, read and end JobSets, and read their pods."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": cluster.meta(WORKER, COMPONENT),
        "rules": [
            {
                "apiGroups": ["jobset.x-k8s.io"],
                "resources": ["jobsets"],
                "verbs": ["create", "get", "delete"],
            },
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        ],
    }


def _binding(cluster: Cluster) -> Object:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": cluster.meta(WORKER, COMPONENT),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": WORKER},
        "subjects": [{"kind": "ServiceAccount", "name": WORKER, "namespace": cluster.namespace}],
    }


def _deployment(cluster: Cluster) -> Object:
    container = {
        "name": "worker",
        "image": cluster.worker_image,
        "args": ["gonogo", "worker"],
        "env": variables(
            {
                "GONOGO_HOME": HOME_AT,
                "HOME": HOME_AT,
                "GONOGO_URL": f"http://{NAME}.{cluster.namespace}.svc:{HTTP_PORT}",
                "GONOGO_API_KEY_FILE": f"{SECRETS_AT}/worker_key",
                "GONOGO_WORKER_METRICS_PORT": str(METRICS_PORT),
                "GONOGO_WORKER_ON_STOP": "leave",
                "GONOGO_ENGINE": "jobset",
                "GONOGO_JOBSET_TEMPLATE": f"{_TEMPLATE_AT}/{_TEMPLATE_FILE}",
            }
        ),
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "volumeMounts": [
            mount("home", HOME_AT),
            mount("runs", RUNS_AT),
            mount("template", _TEMPLATE_AT, read_only=True),
            SECRETS_MOUNT,
            TMP_MOUNT,
        ],
        "securityContext": CONTAINER_SECURITY,
        "resources": {
            "requests": {"cpu": "200m", "memory": "256Mi", "ephemeral-storage": "1Gi"},
            "limits": {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "2Gi"},
        },
    }
    pod = {
        "hostname": WORKER,  # who a worker is rests on its host's name: its key, and its runs
        "serviceAccountName": WORKER,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "terminationGracePeriodSeconds": 30,
        "containers": [container],
        "volumes": [
            claim_volume("home", WORKER_HOME_CLAIM),
            claim_volume("runs", RUNS_CLAIM),
            {"name": "template", "configMap": {"name": _TEMPLATE}},
            secret_volume("worker_key"),
            empty_volume("tmp", "2Gi"),
        ],
    }
    return build_deployment(cluster, WORKER, COMPONENT, pod)
