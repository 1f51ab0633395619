"""Which files does `gonogo render k8s` write? A table; each file is a stream of objects."""

from collections.abc import Callable, Mapping, Sequence

import yaml

from gonogo.kubernetes.cluster import Cluster, Object
from gonogo.kubernetes.control_plane import build_control_plane
from gonogo.kubernetes.monitoring import build_monitoring
from gonogo.kubernetes.run import build_queue, build_run

_FILES: Mapping[str, Callable[[Cluster], list[Object]]] = {
    "control-plane.yaml": build_control_plane,
    "monitoring.yaml": build_monitoring,
    "queue.yaml": build_queue,
    "run.yaml": build_run,
}


class _Plain(yaml.SafeDumper):
    """Writes every object out: an alias would surprise who reads a manifest."""

    def ignore_aliases(self, data: object) -> bool:
        """Say that nothing is written as a reference to what stood before."""
        return True


def build_manifests(cluster: Cluster) -> dict[str, list[Object]]:
    """Return file name → its objects, in the order in which they are applied."""
    return {name: build(cluster) for name, build in _FILES.items()}


def manifest_text(objects: Sequence[Object]) -> str:
    """Return objects as a stream of YAML documents."""
    return yaml.dump_all(
        objects, Dumper=_Plain, sort_keys=False, explicit_start=True, width=100, allow_unicode=True
    )
