"""How is an API server of Kubernetes asked? The four requests of `worker.engine.jobset`.

Which server, and as whom, is lightkube's to find: the account of the pod, or KUBECONFIG.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from gonogo.contract.errors import Rejected, Unavailable
from worker.engine.jobset import JOBSET_LABEL, Object, Refused

_JOBSET = ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
_TIMEOUT_S = 20.0
_NOT_FOUND = 404
_LATER = frozenset({401, 408, 429, 500, 502, 503, 504})
"""What says nothing of the request: 401, too, while an account's token is renewed."""
T = TypeVar("T")


class KubernetesApi:
    """JobSets and pods of one namespace.

    Args:
        namespace: that of the template, in which JobSets are made; None: it names none, so that
            of the account or of KUBECONFIG's context.

    Raises:
        Rejected: lightkube is not installed, or nothing says which server to ask.
    """

    def __init__(self, namespace: str | None = None) -> None:
        try:
            import httpx2
            import lightkube
            import msgspec
            from lightkube.generic_resource import create_namespaced_resource
            from lightkube.resources.core_v1 import Pod
            from lightkube.types import CascadeType
        except ImportError as error:
            raise Rejected(
                "GONOGO_ENGINE=jobset needs lightkube: pip install 'gonogo[kubernetes]'"
            ) from error
        self._kind: Any = create_namespaced_resource(*_JOBSET)
        self._pod: Any = Pod
        self._pods_first = CascadeType.FOREGROUND
        self._refusal = lightkube.ApiError
        self._silence = (
            *(httpx2.HTTPError, msgspec.MsgspecError),
            *(lightkube.ConfigError, OSError),
            *(ValueError, LookupError, TypeError, AttributeError),
        )
        """What the library raises if nobody answers, or if KUBECONFIG's program or file gives no
        token (an expired sign-in). Also if an answer has another shape, such as a load balancer's
        page."""
        try:
            timeout = httpx2.Timeout(_TIMEOUT_S)
            self._client = lightkube.Client(namespace=namespace, timeout=timeout)
        except (lightkube.ConfigError, OSError, ValueError) as error:
            raise Rejected(f"GONOGO_ENGINE=jobset: no cluster to ask: {error}") from error

    @property
    def where(self) -> str:
        """Return which server and namespace are asked, such as `https://10.0.0.1:6443/ml`."""
        return f"{self._client.config.cluster.server}/{self._client.namespace}"

    def create(self, jobset: Object) -> None:
        """See `worker.engine.jobset.Api`, here and below."""
        self._ask(lambda: self._client.create(self._kind(jobset)))

    def get(self, name: str) -> Object | None:
        """Return a JobSet, or None."""
        try:
            found: Object = self._ask(lambda: self._client.get(self._kind, name).to_dict())
        except Refused as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        if self._ask(lambda: found["metadata"]["name"]) != name:
            raise Unavailable("the API server answers with something else than was asked for")
        return found

    def pods(self, name: str) -> list[Object]:
        """Return its pods."""
        labels: dict[str, Any] = {JOBSET_LABEL: name}
        return self._ask(
            lambda: [row.to_dict() for row in self._client.list(self._pod, labels=labels)]
        )

    def delete(self, name: str) -> None:
        """Delete it, its pods first."""
        self._ask(lambda: self._client.delete(self._kind, name, cascade=self._pods_first))

    def _ask(self, request: Callable[[], T]) -> T:
        try:
            return request()
        except self._refusal as error:
            status, text = int(error.response.status_code), str(error)
            # A proxy's 404 knows nothing of what there is: only the API server gives the reason.
            is_proxys = status == _NOT_FOUND and error.status.reason != "NotFound"
            if status in _LATER or is_proxys:
                raise Unavailable(f"{status} {text}") from error
            raise Refused(status=status, text=text) from error
        except self._silence as error:
            raise Unavailable(f"the API server does not answer as one: {error}") from error
