"""What differs from cluster to cluster? The settings of `gonogo render k8s`, and the names."""

import re
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import urlsplit

from gonogo import __version__
from gonogo.contract.errors import Rejected

Object = dict[str, Any]
"""A Kubernetes object."""

NAME = "gonogo"
WORKER = f"{NAME}-worker"
"""The worker's Service, and what its pod is called from within, whichever pod it is."""
SECRET = "gonogo"
"""The Secret that has to be there: worker_key, webhook_secret, and database_password if used."""
SECRETS_AT = "/run/secrets/gonogo"
HOME_AT = "/var/lib/gonogo"
RUNS_AT = f"{HOME_AT}/runs"
HOME_CLAIM, RUNS_CLAIM = "gonogo-home", "gonogo-runs"
WORKER_HOME_CLAIM = "gonogo-worker-home"
HTTP_PORT, METRICS_PORT = 8750, 8751
USER = 10001
"""Of the images."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_A_LABEL = (_LABEL, "a DNS label (a-z, 0-9, -)")
_AN_IMAGE = (re.compile(r"[A-Za-z0-9][\w.:/@-]*"), "an image such as HOST/NAME:TAG")
_TEXTS = {
    "namespace": _A_LABEL,
    "queue": _A_LABEL,
    "cluster_queue": _A_LABEL,
    "api_image": _AN_IMAGE,
    "worker_image": _AN_IMAGE,
    "public_url": (re.compile(r"https?://[^/\s]\S*"), "http://HOST… or https://HOST…"),
    "storage": (
        re.compile(r"(?=[0-9.]*[1-9])[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?"),
        "a size such as 100Gi",
    ),
    "storage_class": (
        re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9.]*[a-z0-9])?"),
        "a DNS name (a-z, 0-9, -, .)",
    ),
}
"""Setting → how its text looks, and that in words."""
_DATABASE = "postgresql+psycopg://USER@HOST/NAME, its password in the Secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What `gonogo render k8s` is told.

    Raises:
        Rejected: a name that is no DNS label, an image, address or size that Kubernetes does not
            read, a number below 1, or a database that the Secret's password does not open. A
            password in its address is not repeated.
    """

    namespace: str = "gonogo"
    api_image: str = f"gonogo-api:{__version__}"
    worker_image: str = f"gonogo-worker:{__version__}"
    database_url: str | None = None
    """None: SQLite in the home's volume. Its password is the Secret's database_password."""
    public_url: str | None = None
    storage_class: str | None = None
    """Of the volume of run directories, which all pods mount; None: the cluster's default."""
    storage: str = "100Gi"
    queue: str = "gonogo"
    """LocalQueue of Kueue in the namespace."""
    cluster_queue: str = "gonogo"
    nodes: int = 1
    devices: int = 8
    """GPUs of a node."""
    run: str | None = None
    """Run that the JobSet is for; None: a template."""

    def __post_init__(self) -> None:
        for name, (looks, expected) in _TEXTS.items():
            value = getattr(self, name)
            if value is not None and not looks.fullmatch(value):
                raise Rejected(f"{name}: {value!r}; expected {expected}")
        for name in ("nodes", "devices"):
            if getattr(self, name) < 1:
                raise Rejected(f"{name}: {getattr(self, name)}; expected 1 or more")
        if not _LABEL.fullmatch(run_name(self.run)):
            raise Rejected(f"run: {self.run!r}; expected the id of a run (run_…)")
        if self.database_url is not None:
            _check_database(self.database_url)

    def meta(self, name: str, component: str, **more: str) -> Object:
        """Return the metadata of one of our objects; `more` are further labels."""
        labels = {
            "app.kubernetes.io/name": NAME,
            "app.kubernetes.io/component": component,
            "app.kubernetes.io/managed-by": "gonogo-render",
        }
        return {"name": name, "namespace": self.namespace, "labels": {**labels, **more}}

    def for_template(self) -> Self:
        """Return the same of no particular run."""
        return replace(self, run=None)


def _check_database(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may hold the password
        raise Rejected(f"database_url: no address; expected {_DATABASE}") from None
    if parts.password is not None or "password=" in parts.query:
        raise Rejected(f"database_url: it holds a password, for all to read; expected {_DATABASE}")
    if not parts.scheme.startswith("postgresql") or not parts.username or not parts.hostname:
        raise Rejected(f"database_url: {url!r}; expected {_DATABASE}")


def run_name(run: str | None) -> str:
    """Return the JobSet's name for a run, a DNS label."""
    return "gonogo-run" if run is None else run.lower().replace("_", "-")


def selected(component: str) -> dict[str, str]:
    """Return the labels by which objects of a component are found."""
    return {"app.kubernetes.io/name": NAME, "app.kubernetes.io/component": component}
