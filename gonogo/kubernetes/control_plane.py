"""What runs the service? One pod with its home in a volume, and the address it is reached by.

One replica that is replaced, never two at once: SQLite has one writer, and a home one service. With
`database_url` (PostgreSQL) that stays so; a second one would only answer requests.
"""

from gonogo.kubernetes.cluster import (
    HOME_AT,
    HOME_CLAIM,
    HTTP_PORT,
    NAME,
    RUNS_AT,
    RUNS_CLAIM,
    SECRETS_AT,
    Cluster,
    Object,
    selected,
)
from gonogo.kubernetes.objects import build_claim, build_deployment
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

COMPONENT = "service"
JOB_LABEL = "gonogo.dev/job"
"""Label whose value Prometheus calls the job: the alert rules name it."""
_MIGRATE = (
    "gonogo db upgrade && gonogo keys create kubernetes-worker --role worker"
    f" --file {SECRETS_AT}/worker_key"
)


def build_control_plane(cluster: Cluster) -> list[Object]:
    """Return the service's objects."""
    return [
        _account(cluster),
        build_claim(cluster, HOME_CLAIM, COMPONENT, "10Gi", "ReadWriteOnce", None),
        build_claim(
            cluster, RUNS_CLAIM, COMPONENT, cluster.storage, "ReadWriteMany", cluster.storage_class
        ),
        _deployment(cluster),
        _service(cluster),
    ]


def _account(cluster: Cluster) -> Object:
    """Return an account that may nothing: the service asks nothing of Kubernetes."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": cluster.meta(NAME, COMPONENT),
        "automountServiceAccountToken": False,
    }


def _deployment(cluster: Cluster) -> Object:
    password = cluster.database_url and f"{SECRETS_AT}/database_password"
    environment = variables(
        {
            "GONOGO_HOME": HOME_AT,
            "MPLCONFIGDIR": "/tmp/matplotlib",
            "GONOGO_DATABASE_URL": cluster.database_url,
            "GONOGO_DATABASE_PASSWORD_FILE": password,
            "GONOGO_PUBLIC_URL": cluster.public_url,
            "GONOGO_WEBHOOK_SECRET_FILE": f"{SECRETS_AT}/webhook_secret",
        }
    )
    mounts = [
        mount("home", HOME_AT),
        mount("runs", RUNS_AT, read_only=True),
        SECRETS_MOUNT,
        TMP_MOUNT,
    ]
    shared = {
        "image": cluster.api_image,
        "env": environment,
        "volumeMounts": mounts,
        "securityContext": CONTAINER_SECURITY,
        "resources": {
            "requests": {"cpu": "500m", "memory": "512Mi", "ephemeral-storage": "1Gi"},
            "limits": {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "4Gi"},
        },
    }
    keys = ["worker_key", "webhook_secret", *(["database_password"] if password else [])]
    pod = {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "terminationGracePeriodSeconds": 30,
        "initContainers": [{"name": "migrate", "command": ["sh", "-c", _MIGRATE], **shared}],
        "containers": [
            {
                "name": "service",
                "args": ["gonogo", "serve", "--host", "0.0.0.0", "--port", str(HTTP_PORT)],
                "ports": [{"name": "http", "containerPort": HTTP_PORT}],
                "startupProbe": _probe("/healthz", every_s=2, failures=150),
                "livenessProbe": _probe("/healthz", every_s=10, failures=6),
                "readinessProbe": _probe("/readyz", every_s=5, failures=3),
                **shared,
            }
        ],
        "volumes": [
            claim_volume("home", HOME_CLAIM),
            claim_volume("runs", RUNS_CLAIM),
            secret_volume(*keys),
            empty_volume("tmp", "2Gi"),
        ],
    }
    return build_deployment(cluster, NAME, COMPONENT, pod)


def _probe(path: str, *, every_s: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": every_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _service(cluster: Cluster) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": cluster.meta(NAME, COMPONENT, **{JOB_LABEL: "gonogo-service"}),
        "spec": {
            "type": "ClusterIP",
            "selector": selected(COMPONENT),
            "ports": [{"name": "http", "port": HTTP_PORT, "targetPort": "http"}],
        },
    }
