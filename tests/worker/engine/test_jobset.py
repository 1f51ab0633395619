"""The engine `jobset`: what it asks Kubernetes for, and what the answers come to.

The API server is a stub of ours that the real client library speaks to over HTTP.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from gonogo.contract.errors import Rejected, Unavailable
from gonogo.rundir import save_json
from tests.supervise.orders import make_order
from worker.__main__ import build_engine
from worker.engine.engine import Ended, Handle, Running, Unknown, load_submission, save_submission
from worker.engine.jobset import (
    GPU,
    JobSets,
    KubernetesApi,
    fill_template,
    jobset_name,
    judge_jobset,
    load_template,
)
from worker.settings import load_settings

ROOT = Path(__file__).parents[3]
TOKEN = 7
ORDER = make_order(nodes=2, world_size=4, token=TOKEN)
NAME = jobset_name(ORDER.run, TOKEN)
HANDLE = Handle(engine="jobset", name=NAME, run=ORDER.run, token=TOKEN)
PATH = re.compile(r"/apis/jobset\.x-k8s\.io/v1alpha2/namespaces/ml/jobsets(?:/([a-z0-9-]+))?")


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    text = (ROOT / "deploy/kubernetes/run.yaml").read_text()
    path.write_text(text.replace("metadata:\n", "metadata:\n  namespace: ml\n", 1))
    return path


class Server:
    """An API server with JobSets and pods of the namespace `ml`."""

    def __init__(self) -> None:
        self.jobsets: dict[str, dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.fails: tuple[int, str] | None = None
        """Status and message of every answer from now on."""
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self._answer("POST", body)

            def do_GET(self) -> None:
                self._answer("GET", {})

            def do_DELETE(self) -> None:
                self._answer("DELETE", {})

            def _answer(self, method: str, body: dict[str, Any]) -> None:
                stub.asked.append(f"{method} {self.path}")
                status, found = stub.answer(method, self.path, body)
                text = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.fails is not None:
            return self.fails[0], _status(*self.fails)
        parts = urlsplit(path)
        if parts.path == "/api/v1/namespaces/ml/pods":
            (wanted,) = parse_qs(parts.query)["labelSelector"]
            name = wanted.removeprefix("jobset.sigs.k8s.io/jobset-name=")
            rows = [row for row in self.pods if row["metadata"]["labels"]["set"] == name]
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": rows}
        match = PATH.fullmatch(parts.path)
        assert match is not None, path
        name = match[1] or body["metadata"]["name"]
        if method == "POST":
            if name in self.jobsets:
                return 409, _status(409, f'jobsets "{name}" already exists')
            self.jobsets[name] = body
            return 201, body
        if name not in self.jobsets:
            return 404, _status(404, f'jobsets "{name}" not found')
        if method == "DELETE":
            assert parse_qs(parts.query)["propagationPolicy"] == ["Foreground"]
            return 200, self.jobsets.pop(name)
        return 200, self.jobsets[name]


def _status(code: int, message: str) -> dict[str, Any]:
    reason = "NotFound" if code == 404 else "Other"
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": reason, "message": message}  # fmt: skip


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    stub = Server()
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": stub.url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}
        ],
    }  # fmt: skip
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    yield stub
    stub.close()


@pytest.fixture
def engine(server: Server, template: Path, tmp_path: Path) -> JobSets:
    return JobSets(load_template(template), KubernetesApi(), tmp_path)


def pod(number: int, phase: str = "Running", node: str | None = "a", **more: Any) -> dict[str, Any]:
    ended = phase in ("Succeeded", "Failed")
    state = {"terminated": {"exitCode": 0}} if ended else {"running": {}}
    status = {"phase": phase, "containerStatuses": [_container(state)]}
    return {
        "metadata": {"name": f"{NAME}-node-0-{number}", "labels": {"set": NAME}},
        "spec": {"containers": [], **({} if node is None else {"nodeName": node})},
        "status": {**status, **more},
    }


def _container(state: dict[str, Any]) -> dict[str, Any]:
    return {"name": "node", "image": "", "imageID": "", "ready": False, "restartCount": 0,
            "state": state}  # fmt: skip


def jobset(*conditions: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": NAME,
            "labels": {"gonogo.dev/run": ORDER.run, "gonogo.dev/token": str(TOKEN)},
        },
        "spec": spec,
        "status": {"conditions": [{"type": name, "status": "True"} for name in conditions]},
    }


def test_an_attempt_is_one_jobset_of_the_template_with_its_run_filled_in(
    engine: JobSets, server: Server, template: Path
) -> None:
    handle = engine.submit(ORDER, TOKEN)
    assert handle == HANDLE
    made = server.jobsets[NAME]
    assert made == fill_template(load_template(template), ORDER, TOKEN)
    spec = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (2, 2, 0)
    (container,) = spec["template"]["spec"]["containers"]
    words = ["python", "-m", "worker.node", ORDER.run, "--token", "7"]
    assert container["args"] == words
    assert made["spec"]["network"]["subdomain"] == NAME


def test_asked_again_for_a_token_it_makes_no_second_one(engine: JobSets, server: Server) -> None:
    assert engine.submit(ORDER, TOKEN) == engine.submit(ORDER, TOKEN)
    assert len(server.jobsets) == 1
    assert engine.submit(ORDER, TOKEN + 1).name != NAME
    assert len(server.jobsets) == 2


def test_a_jobset_of_somebody_else_is_not_taken_for_ours(engine: JobSets, server: Server) -> None:
    server.jobsets[NAME] = {"metadata": {"name": NAME, "labels": {}}, "spec": {}}
    with pytest.raises(Rejected, match="not this attempt's"):
        engine.submit(ORDER, TOKEN)
    assert isinstance(engine.find(HANDLE), Unknown)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (None, {"requests": {GPU: "2"}, "limits": {GPU: "2"}}),
        (
            {"requests": {"cpu": "8", GPU: "8"}},
            {"requests": {"cpu": "8", GPU: "2"}, "limits": {GPU: "2"}},
        ),
        (
            {"claims": [{"name": "gpus"}], "limits": {"memory": "64Gi"}},
            {"claims": [{"name": "gpus"}], "limits": {"memory": "64Gi"}},
        ),
    ],
    ids=["nothing", "requests alone", "by claims"],
)
def test_devices_are_asked_for_beside_what_else_the_container_asks_for(
    template: Path, asked: dict[str, Any] | None, wanted: dict[str, Any]
) -> None:
    row = yaml.safe_load(template.read_text())
    job = row["spec"]["replicatedJobs"][0]["template"]["spec"]
    job["template"]["spec"]["containers"][0]["resources"] = asked
    row["metadata"]["labels"] = None
    template.write_text(yaml.safe_dump(row))
    order = make_order(nodes=2, world_size=4, profile="h100")
    made = fill_template(load_template(template), order, TOKEN)
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["template"]["spec"]["containers"][0]["resources"] == wanted
    assert made["metadata"]["labels"] == {"gonogo.dev/run": order.run, "gonogo.dev/token": "7"}
    on_cpu = fill_template(load_template(template), make_order(nodes=2, world_size=4), TOKEN)
    job = on_cpu["spec"]["replicatedJobs"][0]["template"]["spec"]
    resources = job["template"]["spec"]["containers"][0]["resources"]
    assert GPU not in {name for part in ("requests", "limits") for name in resources.get(part, {})}


def test_the_name_is_a_dns_label_that_pods_names_can_begin_with() -> None:
    names = {jobset_name("run_01KDQ4V3Q9T7Y8Z6X5W4V3U2T1", token) for token in (1, 2, 12345)}
    assert len(names) == 3
    for name in names:
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
        assert len(f"{name}-node-0-00000") <= 63


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        ((403, "jobsets is forbidden"), Rejected),
        ((403, "forbidden: exceeded quota: runs"), Unavailable),
        ((503, "try later"), Unavailable),
    ],
)
def test_a_refusal_is_told_from_a_server_that_cannot_now(
    engine: JobSets, server: Server, fails: tuple[int, str], error: type[Exception]
) -> None:
    real, answers = server.answer, iter([(404, _status(404, "not found")), None])

    def answer(*asked: Any) -> tuple[int, dict[str, Any]]:
        return next(answers) or (fails[0], _status(*fails))

    server.answer = answer  # type: ignore[method-assign]
    with pytest.raises(error, match=fails[1]):
        engine.submit(ORDER, TOKEN)
    server.answer = real  # type: ignore[method-assign]
    server.fails = fails
    assert isinstance(engine.find(HANDLE), Unknown)


def test_a_server_that_is_away_proves_nothing(engine: JobSets, server: Server) -> None:
    server.close()
    assert isinstance(engine.find(HANDLE), Unknown)
    for ask in (lambda: engine.submit(ORDER, TOKEN), lambda: engine.stop(HANDLE)):
        with pytest.raises(Unavailable):
            ask()


def test_one_that_is_being_deleted_may_still_get_pods() -> None:
    row = jobset()
    row["metadata"]["deletionTimestamp"] = "2026-11-01T00:00:00Z"
    assert isinstance(judge_jobset(HANDLE, row, []), Unknown)


def test_a_jobset_that_was_made_elsewhere_is_not_gone_for_not_being_here(
    engine: JobSets, server: Server, template: Path, tmp_path: Path
) -> None:
    """KUBECONFIG's context is another one by now, and so the cluster, or its namespace."""
    save_submission(tmp_path, "jobset", NAME, engine.submit(ORDER, TOKEN).where)
    submission = load_submission(tmp_path)
    assert submission is not None
    handle = submission.handle(ORDER)
    assert handle == HANDLE
    config = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    elsewhere = Server()
    config["clusters"][0]["cluster"]["server"] = elsewhere.url
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    other = JobSets(load_template(template), KubernetesApi(), tmp_path)
    found = other.find(handle)
    assert isinstance(found, Unknown)
    assert f"made at {server.url}/ml, and {elsewhere.url}/ml is asked" in found.text
    elsewhere.jobsets = server.jobsets  # the same cluster by another address
    assert isinstance(other.find(handle), Running)
    elsewhere.close()
    server.jobsets = {}
    assert isinstance(engine.find(handle), Ended)


def test_a_run_is_followed_from_its_queue_to_its_end(engine: JobSets, server: Server) -> None:
    engine.submit(ORDER, TOKEN)
    found = engine.find(HANDLE)
    assert isinstance(found, Running)
    assert found.waits
    message = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    unscheduled = {"type": "PodScheduled", "status": "False", "message": message}
    server.pods = [pod(0), pod(1, "Pending", None, conditions=[unscheduled])]
    found = engine.find(HANDLE)
    assert isinstance(found, Running)
    assert found.waits
    assert message in found.text
    server.pods = [pod(0), pod(1, node="b")]
    assert engine.find(HANDLE) == Running(text="Kubernetes: runs on a, b")
    server.pods = [pod(0, "Succeeded"), pod(1, "Succeeded", node="b")]
    server.jobsets[NAME]["status"] = jobset("Completed")["status"]
    assert isinstance(engine.find(HANDLE), Ended)


def test_what_is_stopped_has_ended_once_its_pods_are_gone(engine: JobSets, server: Server) -> None:
    engine.submit(ORDER, TOKEN)
    server.pods = [pod(0)]
    engine.stop(HANDLE)
    engine.stop(HANDLE)  # asked again: it is gone already
    found = engine.find(HANDLE)
    assert isinstance(found, Unknown)
    assert "may train on" in found.text
    server.pods = []
    assert isinstance(engine.find(HANDLE), Ended)


@pytest.mark.parametrize(
    ("row", "pods"),
    [
        pytest.param(jobset("Failed"), [pod(0, "Failed"), pod(1)], id="one runs"),
        pytest.param(
            jobset("Failed"),
            [pod(0, "Failed", containerStatuses=[_container({"running": {}})])],
            id="its node is away: failed by the word of a controller alone",
        ),
        pytest.param(
            jobset("Failed"), [pod(0, "Failed", containerStatuses=[])], id="nobody saw it end"
        ),
        pytest.param(None, [pod(0)], id="the JobSet is gone, a pod is not"),
        pytest.param(
            jobset("Failed"), [pod(0, "Pending", None)], id="a pod that may be scheduled yet"
        ),
    ],
)
def test_an_attempt_of_which_a_pod_may_train_on_is_unknown(
    row: dict[str, Any] | None, pods: list[dict[str, Any]]
) -> None:
    assert isinstance(judge_jobset(HANDLE, row, pods), Unknown)


def test_a_pod_that_its_kubelet_turned_away_trains_nowhere() -> None:
    """Its status has no container: a node's devices are taken, or not back after a boot."""
    told = "Pod was rejected: Allocate failed due to no healthy devices present"
    why = {"reason": "UnexpectedAdmissionError", "message": told}
    turned_away = pod(1, "Failed", containerStatuses=[], **why)
    found = judge_jobset(HANDLE, jobset("Failed"), [pod(0, "Failed"), turned_away])
    assert isinstance(found, Ended)
    assert f"{NAME}-node-0-1: {told}" in found.proof
    assert isinstance(judge_jobset(HANDLE, jobset("Failed"), [pod(0), turned_away]), Unknown)
    evicted = pod(1, "Failed", containerStatuses=[], reason="Evicted", message="low on memory")
    assert isinstance(judge_jobset(HANDLE, jobset("Failed"), [evicted]), Unknown)


def test_an_attempt_of_which_no_pod_is_left_does_not_run_on() -> None:
    """JobSet's controller is down: what the run wrote about its end is taken without it."""
    found = judge_jobset(HANDLE, jobset(), [pod(0, "Succeeded"), pod(1, "Succeeded", node="b")])
    assert isinstance(found, Unknown)
    assert "all pods" in found.text
    leaves = pod(1, node="b")
    assert isinstance(judge_jobset(HANDLE, jobset(), [pod(0, "Succeeded"), leaves]), Running)


def test_what_its_queue_has_not_admitted_waits() -> None:
    found = judge_jobset(HANDLE, jobset(suspend=True), [])
    assert isinstance(found, Running)
    assert (found.waits, found.again) == (True, False)


def test_what_its_queue_has_preempted_is_not_to_be_admitted_again(
    engine: JobSets, server: Server, tmp_path: Path
) -> None:
    """Kueue suspends what it preempts, and admits it another time: the attempt is over by then."""
    engine.submit(ORDER, TOKEN)
    save_json(tmp_path / ORDER.run / "keeper.json", {"v": 1})
    server.jobsets[NAME]["spec"]["suspend"] = True
    leaving = pod(0)
    leaving["metadata"]["deletionTimestamp"] = "2026-11-01T00:00:00Z"
    for pods in ([leaving], []):
        server.pods = pods
        found = engine.find(HANDLE)
        assert isinstance(found, Running)
        assert (found.waits, found.again) == (True, True)
        assert "after it had begun" in found.text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("RUN", "run_1"), "no argument"),
        (("backoffLimit: 0", "backoffLimit: 3"), "ours to decide"),
        (("maxRestarts: 0", "maxRestarts: 1"), "ours to decide"),
        (("restartPolicy: Never", "restartPolicy: OnFailure"), "ours to decide"),
        (("replicas: 1", "replicas: 2"), "must be one"),
        (("completionMode: Indexed", "completionMode: NonIndexed"), "must be one, and Indexed"),
        (("kind: JobSet", "kind: Job"), "holds 0 JobSets"),
        (("replicatedJobs", "jobs"), "no template"),
        (("spec:", "spec: ["), "cannot be read"),
    ],
)
def test_a_template_that_cannot_be_a_runs_is_refused_in_one_line(
    template: Path, change: tuple[str, str], why: str
) -> None:
    text = template.read_text()
    template.write_text(text.replace(*change))
    assert template.read_text() != text
    with pytest.raises(Rejected, match=why):
        load_template(template)


def test_the_worker_needs_a_template_and_a_cluster(
    tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"GONOGO_HOME": str(tmp_path), "GONOGO_ENGINE": "jobset"}
    with pytest.raises(Rejected, match="needs GONOGO_JOBSET_TEMPLATE"):
        build_engine(load_settings(environ))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(Rejected, match="no cluster"):
        build_engine(load_settings({**environ, "GONOGO_JOBSET_TEMPLATE": str(template)}))
