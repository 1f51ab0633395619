"""What is written alike for every part: volume claims, deployments, and their text."""

import re
from collections.abc import Sequence

import yaml

from gonogo.kubernetes.cluster import Cluster, Object, selected

_NO_TEXT_FOR_GO = re.compile(r"[-+]?[0-9.][0-9_.]*([eE][-+]?[0-9]+)?|0[xob][0-9a-fA-F_]+|[yYnN]")
"""What the reader of kubectl takes for a number or a truth, and Python's writer for a word."""


def build_claim(
    cluster: Cluster,
    name: str,
    component: str,
    size: str,
    access: str,
    storage_class: str | None,
) -> Object:
    """Return a claim of a volume; without a storage class the cluster's default."""
    spec: Object = {"accessModes": [access], "resources": {"requests": {"storage": size}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": cluster.meta(name, component),
        "spec": spec,
    }


def build_deployment(cluster: Cluster, name: str, component: str, pod: Object) -> Object:
    """Return one pod that is replaced, never two at once: a home has one owner."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": cluster.meta(name, component),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selected(component)},
            "template": {"metadata": {"labels": selected(component)}, "spec": pod},
        },
    }


class _Plain(yaml.SafeDumper):
    """Writes every object out: an alias would surprise who reads a manifest."""

    def ignore_aliases(self, data: object) -> bool:
        """Say that nothing is written as a reference to what stood before."""
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if _NO_TEXT_FOR_GO.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Plain.add_representer(str, _write_text)


def write_yaml(objects: Sequence[Object]) -> str:
    """Return objects as a stream of YAML documents."""
    return yaml.dump_all(
        objects, Dumper=_Plain, sort_keys=False, explicit_start=True, width=100, allow_unicode=True
    )
