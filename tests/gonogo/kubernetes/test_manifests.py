"""Would a cluster take what `gonogo render k8s` writes? By schemas; nothing is applied."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from gonogo import __version__
from gonogo.contract.errors import Rejected
from gonogo.kubernetes.cluster import SECRETS_AT, Cluster
from gonogo.kubernetes.manifests import build_manifests
from gonogo.kubernetes.monitoring import load_rules
from gonogo.kubernetes.objects import write_yaml
from gonogo.settings import TABLE
from tests.conftest import demand
from tests.supervise.orders import make_order
from worker.engine.jobset import fill_template, load_template

ROOT = Path(__file__).parents[3]
SCHEMAS = ROOT / "tests/data/kubernetes"
VERSION = "1.37"
FULL = Cluster(
    namespace="ml", database_url="postgresql+psycopg://gonogo@postgres:5432/gonogo",
    public_url="https://gonogo.example", storage_class="nfs", nodes=4,
    run="run_01J00000000000000000000000",
)  # fmt: skip
CLUSTERS = {"default": Cluster(), "full": FULL}


def objects(cluster: Cluster) -> list[dict[str, Any]]:
    """Every object as it is read back from the text."""
    files = build_manifests(cluster).values()
    return [row for rows in files for row in yaml.safe_load_all(write_yaml(rows))]


def of_kind(cluster: Cluster, kind: str, name: str | None = None) -> dict[str, Any]:
    (found,) = (
        row
        for row in objects(cluster)
        if row["kind"] == kind and name in (None, row["metadata"]["name"])
    )
    return found


def pods(cluster: Cluster) -> Iterator[dict[str, Any]]:
    for name in ("gonogo", "gonogo-worker"):
        yield of_kind(cluster, "Deployment", name)["spec"]["template"]["spec"]
    yield job(cluster)["template"]["spec"]


def job(cluster: Cluster) -> dict[str, Any]:
    (replicated,) = of_kind(cluster, "JobSet")["spec"]["replicatedJobs"]
    found: dict[str, Any] = replicated["template"]["spec"]
    return found


def containers(cluster: Cluster) -> list[dict[str, Any]]:
    return [
        row for pod in pods(cluster) for row in [*pod.get("initContainers", []), *pod["containers"]]
    ]


def is_core(row: dict[str, Any]) -> bool:
    return not (SCHEMAS / f"{row['kind'].lower()}.json").exists()


ALL = [
    pytest.param(row, id=f"{name}-{row['kind']}-{row['metadata']['name']}")
    for name, cluster in CLUSTERS.items()
    for row in objects(cluster)
]


@pytest.mark.parametrize("row", ALL)
def test_every_object_is_valid(row: dict[str, Any]) -> None:
    if is_core(row):
        kubernetes_validate.validate(row, VERSION, strict=True)
        return
    schema = json.loads((SCHEMAS / f"{row['kind'].lower()}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(row)


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_the_job_inside_of_the_jobset_is_valid(cluster: Cluster) -> None:
    inner = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    kubernetes_validate.validate({**inner, "spec": job(cluster)}, VERSION, strict=True)


def test_a_wrong_field_is_seen_by_each_of_the_schemas() -> None:
    for row in objects(FULL):
        wrong = {**row, "spec": {**row.get("spec", {}), "replicass": 1}, "spek": 1}
        if is_core(row):
            with pytest.raises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate(wrong, VERSION, strict=True)
        else:
            del wrong["spek"]
            schema = json.loads((SCHEMAS / f"{row['kind'].lower()}.json").read_text())
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.Draft202012Validator(schema).validate(wrong)


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_no_container_may_more_than_those_of_compose(cluster: Cluster) -> None:
    for pod in pods(cluster):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        told = pod.get("automountServiceAccountToken", True)
        assert told is (pod.get("serviceAccountName") == "gonogo-worker")
    for row in containers(cluster):
        security = row["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert row["resources"]["limits"]["memory"]
        assert row["resources"]["requests"]["cpu"]


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_secrets_are_files_and_every_volume_that_is_mounted_is_there(cluster: Cluster) -> None:
    for pod in pods(cluster):
        volumes = {row["name"]: row for row in pod["volumes"]}
        keys = {item["path"] for item in volumes["secrets"]["secret"]["items"]}
        for row in [*pod.get("initContainers", []), *pod["containers"]]:
            assert {place["name"] for place in row["volumeMounts"]} <= set(volumes)
            named = [v["value"] for v in row["env"] if v["value"].startswith(SECRETS_AT)]
            assert named
            assert {Path(path).name for path in named} <= keys
            assert not any("valueFrom" in v for v in row["env"])


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_every_setting_of_ours_is_one_that_the_process_knows(cluster: Cluster) -> None:
    known = {row.env for row in TABLE} | {f"{row.env}_FILE" for row in TABLE}
    named = {v["name"] for row in containers(cluster) for v in row["env"]}
    assert {name for name in named if name.startswith("GONOGO_")} <= known


def test_the_service_is_probed_where_it_answers() -> None:
    (row,) = of_kind(FULL, "Deployment", "gonogo")["spec"]["template"]["spec"]["containers"]
    assert row["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert row["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert row["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert of_kind(FULL, "Deployment", "gonogo")["spec"]["strategy"] == {"type": "Recreate"}


def test_what_has_ended_is_removed_a_day_later() -> None:
    assert of_kind(FULL, "JobSet")["spec"]["ttlSecondsAfterFinished"] == 24 * 3600


def test_kubernetes_never_starts_a_run_again_and_gives_it_time_to_leave() -> None:
    found = of_kind(FULL, "JobSet")
    assert found["spec"]["failurePolicy"] == {"maxRestarts": 0}
    assert found["spec"]["network"]["enableDNSHostnames"]
    assert found["metadata"]["name"] == found["spec"]["network"]["subdomain"]
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gonogo"
    assert job(FULL)["backoffLimit"] == 0
    assert (job(FULL)["completions"], job(FULL)["parallelism"]) == (4, 4)
    pod = job(FULL)["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 330
    assert pod["restartPolicy"] == "Never"
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert compose["x-worker"]["stop_grace_period"] == "330s"


def test_no_autoscaler_ends_a_run_to_tidy_up_its_nodes() -> None:
    assert job(FULL)["template"]["metadata"]["annotations"] == {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }


def test_only_a_run_s_pods_may_connect_to_a_run_s_pods() -> None:
    """torch's rendezvous takes what anybody writes there."""
    policy = of_kind(FULL, "NetworkPolicy")["spec"]
    runs, labels = policy["podSelector"], job(FULL)["template"]["metadata"]["labels"]
    assert runs["matchLabels"] == labels
    assert policy["ingress"] == [{"from": [{"podSelector": runs}]}]
    assert policy["policyTypes"] == ["Ingress"], "they reach the service, and what they load from"
    for name in ("gonogo", "gonogo-worker"):
        template = of_kind(FULL, "Deployment", name)["spec"]["template"]
        assert not runs["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_images_are_those_of_this_version() -> None:
    """`latest` would be another one on each node, and is asked for anew at each start."""
    images = {row["image"] for row in containers(Cluster())}
    assert images == {f"gonogo-api:{__version__}", f"gonogo-worker:{__version__}"}


def test_the_worker_may_make_read_and_end_jobsets_and_nothing_else() -> None:
    assert of_kind(FULL, "Role")["rules"] == [
        {
            "apiGroups": ["jobset.x-k8s.io"],
            "resources": ["jobsets"],
            "verbs": ["create", "get", "delete"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]
    bound = of_kind(FULL, "RoleBinding")
    assert bound["roleRef"]["name"] == of_kind(FULL, "Role")["metadata"]["name"]
    (subject,) = bound["subjects"]
    pod = of_kind(FULL, "Deployment", "gonogo-worker")["spec"]["template"]["spec"]
    assert (subject["name"], subject["namespace"]) == (pod["serviceAccountName"], "ml")


def test_the_worker_and_the_runs_share_a_home_where_the_secrets_of_claims_lie() -> None:
    worker = of_kind(FULL, "Deployment", "gonogo-worker")["spec"]["template"]["spec"]
    for pod in (worker, job(FULL)["template"]["spec"]):
        claims = {
            row["name"]: row["persistentVolumeClaim"]["claimName"]
            for row in pod["volumes"]
            if "persistentVolumeClaim" in row
        }
        assert claims == {"home": "gonogo-worker-home", "runs": "gonogo-runs"}
    volume = of_kind(FULL, "PersistentVolumeClaim", "gonogo-worker-home")
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]


def test_a_worker_s_pod_that_is_made_anew_is_the_same_worker_and_is_scraped() -> None:
    """A worker's key and its runs are those of its host's name, and a pod's own is another each
    time; Prometheus is told that name, too."""
    pod = of_kind(FULL, "Deployment", "gonogo-worker")["spec"]["template"]
    assert pod["spec"]["hostname"] == "gonogo-worker"
    service = of_kind(FULL, "Service", "gonogo-worker")["spec"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    (port,) = service["ports"]
    assert port["port"] == pod["spec"]["containers"][0]["ports"][0]["containerPort"]
    (found,) = (
        row for row in of_kind(FULL, "ScrapeConfig")["spec"]["relabelings"] if "regex" in row
    )
    template = found["replacement"].replace("$1", r"\1")
    assert re.sub(found["regex"], template, "gonogo-worker:8751") == "gonogo-worker.ml.svc:8751"


def test_the_worker_makes_runs_from_the_template_that_is_written_too(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(of_kind(FULL, "ConfigMap")["data"]["run.yaml"])
    made = fill_template(load_template(path), make_order(nodes=2, world_size=4, profile="h100"), 7)
    schema = json.loads((SCHEMAS / "jobset.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(made)
    (replicated,) = made["spec"]["replicatedJobs"]
    inner = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    spec = replicated["template"]["spec"]
    kubernetes_validate.validate({**inner, "spec": spec}, VERSION, strict=True)


def test_the_monitor_finds_the_service_and_gives_it_the_job_that_the_rules_name() -> None:
    service, monitor = of_kind(FULL, "Service", "gonogo"), of_kind(FULL, "ServiceMonitor")["spec"]
    labels = service["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["jobLabel"]] == "gonogo-service"
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    rules = (ROOT / "docker/prometheus/rules.yml").read_text()
    assert 'up{job="gonogo-service"}' in rules
    assert f'up{{job="{of_kind(FULL, "ScrapeConfig")["spec"]["jobName"]}"}}' in rules


def test_the_rules_are_those_of_the_repository() -> None:
    source = (ROOT / "docker/prometheus/rules.yml").read_text()
    copied = (ROOT / "gonogo/kubernetes/rules.yaml").read_text()
    assert copied == source, "run `make made`"
    assert of_kind(FULL, "PrometheusRule")["spec"] == yaml.safe_load(source) == load_rules()


@pytest.mark.needs("prometheus")
def test_promtool_takes_the_rules_as_they_are_rendered(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    demand("prometheus")
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(of_kind(FULL, "PrometheusRule")["spec"], allow_unicode=True))
    checked = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert "SUCCESS" in checked.stdout


def test_names_and_numbers_that_no_cluster_takes_are_refused() -> None:
    with pytest.raises(Rejected, match="namespace"):
        Cluster(namespace="My Namespace")
    with pytest.raises(Rejected, match="nodes"):
        Cluster(nodes=0)


@pytest.mark.parametrize(
    "url",
    ["mysql://gonogo@db/gonogo", "postgresql://db/gonogo", "postgresql+psycopg://gonogo@/x", "db"],
)
def test_a_database_that_the_secret_s_password_does_not_open_is_refused(url: str) -> None:
    with pytest.raises(Rejected, match="database_url"):
        Cluster(database_url=url)


@pytest.mark.parametrize(
    "place", ["gonogo:hunter2@db/x", "gonogo@db/x?password=hunter2", "gonogo:hunter2@[db/x"]
)
def test_a_password_is_written_into_no_manifest_and_into_no_error(place: str) -> None:
    with pytest.raises(Rejected, match="Secret") as refused:
        Cluster(database_url=f"postgresql+psycopg://{place}")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("run", ["nightly.v2", "run_../x y", "-", ""])
def test_what_can_name_no_run_is_refused(run: str) -> None:
    with pytest.raises(Rejected, match="run"):
        Cluster(run=run)


@pytest.mark.parametrize(
    ("size", "taken"), [("1.5Ti", True), ("200G", True), ("much", False), ("0", False)]
)
def test_a_size_is_one_that_kubernetes_reads(size: str, taken: bool) -> None:
    if taken:
        assert Cluster(storage=size).storage == size
    else:
        with pytest.raises(Rejected, match="storage"):
            Cluster(storage=size)


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("public_url", "javascript:alert(1)", False), ("public_url", "gonogo.example", False),
        ("public_url", "https://gonogo.example/x", True), ("storage_class", "Fast SSD", False),
        ("storage_class", "fast-ssd.example", True), ("api_image", "foo bar", False),
        ("worker_image", "-x", False), ("api_image", "h:5000/team/gonogo@sha256:0a1b", True),
    ],
)  # fmt: skip
def test_what_a_cluster_would_refuse_later_is_refused_here(
    name: str, value: str, taken: bool
) -> None:
    if taken:
        assert getattr(Cluster(**{name: value}), name) == value
    else:
        with pytest.raises(Rejected, match=name):
            Cluster(**{name: value})


@pytest.mark.parametrize("name", ["1e3", "0x1f", "12", "n", "y", "0", "1-2", "e3"])
def test_a_name_that_kubectl_takes_for_a_number_is_written_as_text(name: str) -> None:
    """Its reader knows 1e3 and y for what Python's does not."""
    text = write_yaml([{"metadata": {"namespace": name}}])
    quoted = f"namespace: '{name}'" in text
    assert quoted is (name not in ("1-2", "e3"))
    assert yaml.safe_load(text)["metadata"]["namespace"] == name
