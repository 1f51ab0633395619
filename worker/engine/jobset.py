"""The engine `jobset`: an attempt is one JobSet of Kubernetes, and every node of it one pod.

The template, deploy/kubernetes/run.yaml, is a team's to adapt. The engine fills in the run, its
token, its nodes and its devices. Kubernetes restarts nothing. An attempt has ended when every pod
is terminated, gone, or was rejected by its kubelet; a failed JobSet alone proves nothing.
"""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gonogo.contract.errors import Corrupt, Rejected, Unavailable
from gonogo.contract.order import Order
from gonogo.contract.plan import hardware_profiles
from worker.engine.engine import (
    Ended,
    Found,
    Handle,
    Running,
    Unknown,
)

NAME = "jobset"
PLACEHOLDER = "RUN"
"""The word in the template's container that a run's id replaces."""
RUN_LABEL, TOKEN_LABEL = "gonogo.dev/run", "gonogo.dev/token"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
"""JobSet puts it on every pod."""
GPU = "nvidia.com/gpu"
_LONGEST_NAME = 63
_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409
_QUOTA = "exceeded quota"
"""What the server says of a namespace that holds as many objects as it may just now."""
_REJECTED = "Pod was rejected: "
"""How the message of a pod begins that its kubelet has turned away."""
_MADE_UP = re.compile(r"[^a-z0-9-]")
_KIND = ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
_TIMEOUT_S = 20.0
_LATER = frozenset({401, 408, 429, 500, 502, 503, 504})
"""What says nothing of the request: 401, too, while an account's token is renewed."""

Object = dict[str, Any]
_T = TypeVar("_T")


class Refused(Exception):
    """The API server's answer is a refusal: HTTP's status, and its message."""

    def __init__(self, *, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status, self.text = status, text


class JobSets:
    """Kubernetes, through JobSet; all pods share the folder `runs`."""

    def __init__(self, template: Object, api: "KubernetesApi", runs: Path) -> None:
        self._template, self._api, self._runs = template, api, runs

    def submit(self, order: Order, token: int) -> Handle:
        """Make the attempt's JobSet, unless it is there already."""
        jobset = fill_template(self._template, order, token)
        name = jobset["metadata"]["name"]
        handle = Handle(engine=NAME, name=name, run=order.run, token=token, where=self._api.where)
        try:
            known = self._api.get(name)
        except Refused as error:
            raise Unavailable(f"Kubernetes: {error}") from error
        if known is None:
            self._create(jobset)
        elif not is_ours(known, handle):
            raise Rejected(f"there is a JobSet {name} that is not this attempt's")
        return handle

    def _create(self, jobset: Object) -> None:
        try:
            self._api.create(jobset)
        except Refused as error:
            full = error.status == _FORBIDDEN and _QUOTA in error.text
            if full or error.status == _CONFLICT:
                raise Unavailable(f"Kubernetes: {error.text}") from error
            raise Rejected(f"Kubernetes does not take this order: {error.text}") from error

    def find(self, handle: Handle) -> Found:
        """Return what Kubernetes says of the attempt's JobSet and of its pods."""
        run_dir = self._runs / handle.run
        try:
            began = (run_dir / "keeper.json").exists()  # before it is asked: its word is later
            jobset, pods = self._api.get(handle.name), self._api.pods(handle.name)
        except OSError as error:
            return Unknown(text=f"{run_dir}: {error}")
        except Refused as error:
            return Unknown(text=f"Kubernetes: {error}")
        except Unavailable as error:
            return Unknown(text=f"Kubernetes: {error.detail}")
        where = self._api.where
        if jobset is None and handle.where not in ("", where):
            return Unknown(
                text=f"Kubernetes: JobSet {handle.name} was made at {handle.where}, "
                f"and {where} is asked, which has none of that name"
            )
        return judge_jobset(handle, jobset, pods, began=began)

    def stop(self, handle: Handle) -> None:
        """Delete the JobSet: TERM to its keepers, and KILL after the pods' grace."""
        try:
            self._api.delete(handle.name)
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise Unavailable(f"Kubernetes: {error}") from error


def load_template(path: Path) -> Object:
    """Return the JobSet that runs are made from; Rejected where it is no template of a run."""
    try:
        found = [row for row in yaml.safe_load_all(path.read_text()) if row is not None]
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Rejected(f"GONOGO_JOBSET_TEMPLATE: {path} cannot be read: {error}") from error
    jobsets = [row for row in found if isinstance(row, dict) and row.get("kind") == "JobSet"]
    if len(jobsets) != 1:
        raise Rejected(f"GONOGO_JOBSET_TEMPLATE: {path} holds {len(jobsets)} JobSets; expected one")
    try:
        _check_template(jobsets[0])
    except (Corrupt, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise Rejected(
            f"GONOGO_JOBSET_TEMPLATE: {path} is no template of a run ({error}); "
            "deploy/kubernetes/run.yaml is one"
        ) from error
    return jobsets[0]


def _check_template(jobset: Object) -> None:
    """Raise an error unless `fill_template` can fill a template in, and it is started once."""
    job, words = _job(jobset), _container(jobset)["args"]
    if PLACEHOLDER not in words:
        raise Corrupt(f"no argument of its first container is {PLACEHOLDER}")
    (replicated,) = jobset["spec"]["replicatedJobs"]
    if replicated.get("replicas", 1) != 1 or job.get("completionMode") != "Indexed":
        raise Corrupt("its job must be one, and Indexed: the index is the pod's node number")
    policy = jobset["spec"].get("failurePolicy") or {}
    if policy.get("maxRestarts", 0) or job.get("backoffLimit") != 0:
        raise Corrupt("maxRestarts and backoffLimit must be 0: an attempt is ours to decide")
    if job["template"]["spec"].get("restartPolicy") != "Never":
        raise Corrupt("restartPolicy must be Never: an attempt is ours to decide")


def fill_template(template: Object, order: Order, token: int) -> Object:
    """Return the JobSet of an attempt; each rank gets a device where the profile has any."""
    jobset = copy.deepcopy(template)
    jobset["metadata"]["name"] = jobset_name(order.run, token)
    labels = jobset["metadata"].get("labels") or {}
    jobset["metadata"]["labels"] = {**labels, RUN_LABEL: order.run, TOKEN_LABEL: str(token)}
    network = jobset["spec"].get("network")
    if network is not None:
        network["subdomain"] = jobset["metadata"]["name"]
    job, container = _job(jobset), _container(jobset)
    job["completions"] = job["parallelism"] = order.nodes
    at = container["args"].index(PLACEHOLDER)
    container["args"][at : at + 1] = [order.run, "--token", str(token)]
    profile = hardware_profiles().get(order.profile)
    has_devices = profile is not None and profile.has_devices
    _ask_devices(container, order.ranks_per_node if has_devices else 0)
    return jobset


def _ask_devices(container: Object, devices: int) -> None:
    """Ask for so many GPUs and no other number, unless a container gets them by `claims`."""
    resources = container["resources"] = container.get("resources") or {}
    for part in ("requests", "limits"):
        asked = {name: much for name, much in (resources.get(part) or {}).items() if name != GPU}
        if devices and not resources.get("claims"):
            asked[GPU] = str(devices)
        if asked:
            resources[part] = asked
        else:
            resources.pop(part, None)


def jobset_name(run: str, token: int) -> str:
    """Return what an attempt's JobSet is called: a DNS label that pods' names can begin with."""
    tail = f"-{token}"
    made = _MADE_UP.sub("-", f"gonogo-{run.lower()}")
    # JobSet adds "-node-0-" and the number of the pod.
    return made[: _LONGEST_NAME - len(tail) - len("-node-0-00000")].rstrip("-") + tail


def is_ours(jobset: Object, handle: Handle) -> bool:
    """Say whether a JobSet is that of an attempt."""
    labels = (jobset.get("metadata") or {}).get("labels") or {}
    return (labels.get(RUN_LABEL), labels.get(TOKEN_LABEL)) == (handle.run, str(handle.token))


def judge_jobset(
    handle: Handle, jobset: Object | None, pods: Sequence[Object], *, began: bool = False
) -> Found:
    """Return what a JobSet (None: gone) and its pods come to; `began`: it had a keeper."""
    if jobset is not None and not is_ours(jobset, handle):
        return Unknown(text=f"JobSet {handle.name} is another one's")
    left = {_name(pod): _where(pod) for pod in pods if not _is_terminated(pod)}
    outcome = None if jobset is None else _outcome(jobset)
    deleted = jobset is not None and bool(jobset["metadata"].get("deletionTimestamp"))
    over = jobset is None or deleted or outcome is not None
    if deleted and outcome is None and not left:
        return Unknown(text=f"Kubernetes: JobSet {handle.name} is being deleted")
    if over and not left:
        state = outcome or "gone"
        proof = f"Kubernetes: JobSet {handle.name} is {state}, and none of its pods runs"
        told = [f"{_name(pod)}: {pod['status']['message']}" for pod in pods if _is_rejected(pod)]
        return Ended(proof=f"{proof} ({'; '.join(told)})" if told else proof)
    if over:
        text = ", ".join(f"{name} on {where}" for name, where in sorted(left.items()))
        return Unknown(text=f"Kubernetes: JobSet {handle.name} is over, but {text} may train on")
    assert jobset is not None
    if jobset["spec"].get("suspend"):
        why = "after it had begun" if began else "not admitted by its queue yet"
        return Running(text=f"Kubernetes: suspended, {why}", waits=True, again=began)
    waiting = [reason for pod in pods if (reason := _waits_for(pod)) is not None]
    if waiting or not pods:
        why = waiting[0] if waiting else "its pods are not made yet"
        return Running(text=f"Kubernetes: {why}", waits=True)
    if not left:
        return Unknown(text=f"Kubernetes: all pods of JobSet {handle.name} ended, it has not yet")
    nodes = ", ".join(sorted({_where(pod) for pod in pods}))
    return Running(text=f"Kubernetes: runs on {nodes}")


def _job(jobset: Object) -> Object:
    (replicated,) = jobset["spec"]["replicatedJobs"]
    found: Object = replicated["template"]["spec"]
    return found


def _container(jobset: Object) -> Object:
    found: Object = _job(jobset)["template"]["spec"]["containers"][0]
    return found


def _outcome(jobset: Object) -> str | None:
    """Return how a JobSet ended, in lower case; None: it has not."""
    for row in (jobset.get("status") or {}).get("conditions") or []:
        if row.get("type") in ("Completed", "Failed") and row.get("status") == "True":
            return str(row["type"]).lower()
    return None


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def _where(pod: Object) -> str:
    return str(pod.get("spec", {}).get("nodeName") or "no node")


def _is_terminated(pod: Object) -> bool:
    """Say whether a pod's kubelet says that its containers ended, or no node ever had it."""
    if not pod.get("spec", {}).get("nodeName"):
        return bool(pod["metadata"].get("deletionTimestamp") or _phase(pod) == "Failed")
    rows = pod.get("status", {}).get("containerStatuses", [])
    ended = bool(rows) and all("terminated" in (row.get("state") or {}) for row in rows)
    return _is_rejected(pod) or (_phase(pod) in ("Succeeded", "Failed") and ended)


def _is_rejected(pod: Object) -> bool:
    """Say whether a pod's kubelet has turned it away, and ended what it may have had of it."""
    status = pod.get("status", {})
    message = str(status.get("message", ""))
    told = status.get("containerStatuses")
    return _phase(pod) == "Failed" and not told and message.startswith(_REJECTED)


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", "Unknown"))


def _waits_for(pod: Object) -> str | None:
    """Return what a pod that has not begun waits for, in its scheduler's or kubelet's words."""
    if _phase(pod) != "Pending":
        return None
    status: Mapping[str, Any] = pod.get("status", {})
    for row in status.get("conditions", []):
        if row.get("type") == "PodScheduled" and row.get("status") == "False":
            return str(row.get("message") or row.get("reason"))
    for row in status.get("containerStatuses") or []:
        waiting = (row.get("state") or {}).get("waiting")
        if waiting:
            why = ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
            return f"{_name(pod)}: {why}"
    return f"{_name(pod)} is pending"


class KubernetesApi:
    """JobSets and pods of one namespace, through lightkube; raises Refused or Unavailable."""

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
        self._kind: Any = create_namespaced_resource(*_KIND)
        self._pod: Any = Pod
        self._pods_first = CascadeType.FOREGROUND
        self._refusal = lightkube.ApiError
        self._silence = (
            *(httpx2.HTTPError, msgspec.MsgspecError),
            *(lightkube.ConfigError, OSError),
            *(ValueError, LookupError, TypeError, AttributeError),
        )
        """Nobody answers, a sign-in has expired, or a load balancer answers with a page."""
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
        """Make a JobSet."""
        self._ask(lambda: self._client.create(self._kind(jobset)))

    def get(self, name: str) -> Object | None:
        """Return a JobSet, or None."""
        try:
            found: Object = self._ask(lambda: self._client.get(self._kind, name).to_dict())
        except Refused as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return found

    def pods(self, name: str) -> list[Object]:
        """Return the pods of a JobSet that there are."""
        labels: dict[str, Any] = {JOBSET_LABEL: name}
        return self._ask(
            lambda: [row.to_dict() for row in self._client.list(self._pod, labels=labels)]
        )

    def delete(self, name: str) -> None:
        """Delete a JobSet, its pods first and with their grace."""
        self._ask(lambda: self._client.delete(self._kind, name, cascade=self._pods_first))

    def _ask(self, request: Callable[[], _T]) -> _T:
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
