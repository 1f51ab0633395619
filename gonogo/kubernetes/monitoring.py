"""Who is scraped, and what calls a person? For the Prometheus operator.

The rules are those of docker/prometheus/rules.yml; `make made` copies them beside this module.
"""

from functools import cache
from importlib.resources import files

import yaml

from gonogo.kubernetes.cluster import HTTP_PORT, NAME, WORKER, Cluster, Object, selected
from gonogo.kubernetes.control_plane import COMPONENT, JOB_LABEL

EVERY = "15s"


def build_monitoring(cluster: Cluster) -> list[Object]:
    """Return what tells the operator of the service, of the workers' exporters and of the rules."""
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": cluster.meta(NAME, "monitoring"),
            "spec": {
                "jobLabel": JOB_LABEL,
                "selector": {"matchLabels": selected(COMPONENT)},
                "endpoints": [{"port": "http", "path": "/metrics", "interval": EVERY}],
            },
        },
        {
            "apiVersion": "monitoring.coreos.com/v1alpha1",
            "kind": "ScrapeConfig",
            "metadata": cluster.meta("gonogo-workers", "monitoring"),
            "spec": {
                "jobName": "gonogo-workers",
                "scrapeInterval": EVERY,
                "httpSDConfigs": [
                    {
                        "url": f"http://{NAME}.{cluster.namespace}.svc:{HTTP_PORT}/sd/prometheus",
                        "refreshInterval": EVERY,
                    }
                ],
                "relabelings": [
                    {"targetLabel": "job", "replacement": "gonogo-workers"},
                    {  # a worker tells its host's name, which Prometheus' own namespace lacks
                        "sourceLabels": ["__address__"],
                        "regex": f"{WORKER}:(.*)",
                        "targetLabel": "__address__",
                        "replacement": f"{WORKER}.{cluster.namespace}.svc:$1",
                    },
                ],
            },
        },
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": cluster.meta(NAME, "monitoring"),
            "spec": load_rules(),
        },
    ]


@cache
def load_rules() -> Object:
    """Return the recording and alert rules that this package holds."""
    text = files("gonogo.kubernetes").joinpath("rules.yaml").read_text()
    found: Object = yaml.safe_load(text)
    return found
