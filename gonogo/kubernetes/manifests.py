"""Which files does `gonogo render k8s` write? A table; each file is a stream of objects."""

from collections.abc import Callable, Mapping

from gonogo.kubernetes.cluster import Cluster, Object
from gonogo.kubernetes.control_plane import build_control_plane
from gonogo.kubernetes.monitoring import build_monitoring
from gonogo.kubernetes.run import build_queue, build_run
from gonogo.kubernetes.worker import build_worker

_FILES: Mapping[str, Callable[[Cluster], list[Object]]] = {
    "control-plane.yaml": build_control_plane,
    "monitoring.yaml": build_monitoring,
    "queue.yaml": build_queue,
    "jobset-worker.yaml": build_worker,
    "run.yaml": build_run,
}


def build_manifests(cluster: Cluster) -> dict[str, list[Object]]:
    """Return file name → its objects, in the order in which they are applied."""
    return {name: build(cluster) for name, build in _FILES.items()}
