"""How does a run get its nodes? A JobSet of one pod a node, that Kueue admits whole or not at all.

Kubernetes never starts a run again by itself (`maxRestarts: 0`, `backoffLimit: 0`): an attempt is
the service's decision, under a new fencing token. A pod that is evicted has the time to leave with
a checkpoint. What has ended is removed a day later, its pods with it: what a run had to say
lies in its directory.
"""

from gonogo.kubernetes.cluster import (
    HOME_AT,
    HTTP_PORT,
    METRICS_PORT,
    NAME,
    RUNS_AT,
    RUNS_CLAIM,
    SECRETS_AT,
    WORKER_HOME_CLAIM,
    Cluster,
    Object,
    run_name,
    selected,
)
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

COMPONENT = "run"
GRACE_S = 330
"""At most 300 s until the ranks have agreed on a step to leave at, then the kill."""
KEPT_S = 86_400
"""How long what has ended stays to be looked at; a pod on a node that is away stays longer."""
PLACEHOLDER = "RUN"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
STAYS = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations: to tidy up its nodes is no reason for a cluster to end an attempt."""


def build_queue(cluster: Cluster) -> list[Object]:
    """Return the queue of the namespace; the ClusterQueue behind it is the cluster's own."""
    return [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "LocalQueue",
            "metadata": cluster.meta(cluster.queue, "queue"),
            "spec": {"clusterQueue": cluster.cluster_queue},
        }
    ]


def build_run(cluster: Cluster) -> list[Object]:
    """Return the JobSet of a run, or a template in which RUN stands for one."""
    name = run_name(cluster.run)
    return [
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": cluster.meta(name, COMPONENT, **{QUEUE_LABEL: cluster.queue}),
            "spec": {
                "failurePolicy": {"maxRestarts": 0},
                "ttlSecondsAfterFinished": KEPT_S,
                # A headless service of this name, made by the JobSet: where ranks meet.
                "network": {
                    "enableDNSHostnames": True,
                    "subdomain": name,
                    "publishNotReadyAddresses": True,
                },
                "replicatedJobs": [
                    {"name": "node", "replicas": 1, "template": {"spec": _job(cluster)}}
                ],
            },
        }
    ]


def build_run_policy(cluster: Cluster) -> Object:
    """Return who may connect to a run's pods: one another, for nothing there asks for a key."""
    runs = {"matchLabels": selected(COMPONENT)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": cluster.meta(f"{NAME}-run", COMPONENT),
        "spec": {
            "podSelector": runs,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": runs}]}],
        },
    }


def _job(cluster: Cluster) -> Object:
    return {
        "completionMode": "Indexed",
        "completions": cluster.nodes,
        "parallelism": cluster.nodes,
        "backoffLimit": 0,
        "template": {
            "metadata": {"labels": selected(COMPONENT), "annotations": STAYS},
            "spec": _pod(cluster),
        },
    }


def _pod(cluster: Cluster) -> Object:
    devices = {"nvidia.com/gpu": str(cluster.devices)}
    container = {
        "name": "node",
        "image": cluster.worker_image,
        "args": ["python", "-m", "worker.once", cluster.run or PLACEHOLDER],
        "env": variables(
            {
                "GONOGO_HOME": HOME_AT,
                "HOME": HOME_AT,
                "GONOGO_URL": f"http://{NAME}.{cluster.namespace}.svc:{HTTP_PORT}",
                "GONOGO_API_KEY_FILE": f"{SECRETS_AT}/worker_key",
                "GONOGO_WORKER_ON_STOP": "checkpoint",
            }
        ),
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "volumeMounts": [
            mount("home", HOME_AT),
            mount("runs", RUNS_AT),
            mount("shm", "/dev/shm"),
            SECRETS_MOUNT,
            TMP_MOUNT,
        ],
        "securityContext": CONTAINER_SECURITY,
        "resources": {
            "requests": {"cpu": "8", "memory": "64Gi", **devices},
            "limits": {"memory": "64Gi", **devices},
        },
    }
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "terminationGracePeriodSeconds": GRACE_S,
        "containers": [container],
        "volumes": [
            claim_volume("home", WORKER_HOME_CLAIM),
            claim_volume("runs", RUNS_CLAIM),
            secret_volume("worker_key"),
            empty_volume("shm", "16Gi", memory=True),
            empty_volume("tmp", "10Gi"),
        ],
    }
