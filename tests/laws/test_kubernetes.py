"""The manifests of deploy/kubernetes, read as kustomize reads them. Nothing is applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gonogo import __version__
from gonogo.settings import TABLE
from tests.supervise.orders import make_order
from worker.engine.jobset import fill_template, load_template

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
OBJECTS = [
    row
    for name in (*KUSTOMIZATION["resources"], "run.yaml")
    for row in yaml.safe_load_all((FOLDER / name).read_text())
]
CORE = ("v1", "apps/v1", "networking.k8s.io/v1", "rbac.authorization.k8s.io/v1")


def named(kind: str, name: str = "gonogo") -> dict[str, Any]:
    (found,) = (r for r in OBJECTS if (r["kind"], r["metadata"]["name"]) == (kind, name))
    return found


def run_job() -> dict[str, Any]:
    """Return the Job of a filled template."""
    order = make_order(nodes=2, world_size=4, profile="h100")
    jobset = fill_template(load_template(FOLDER / "run.yaml"), order, 7)
    (replicated,) = jobset["spec"]["replicatedJobs"]
    found: dict[str, Any] = replicated["template"]["spec"]
    return found


PODS = {
    "service": named("Deployment")["spec"]["template"],
    "worker": named("Deployment", "gonogo-worker")["spec"]["template"],
    "run": run_job()["template"],
}


@pytest.mark.parametrize("row", OBJECTS, ids=lambda r: f"{r['kind']}-{r['metadata']['name']}")
def test_core_objects_are_valid(row: dict[str, Any]) -> None:
    if row["apiVersion"] in CORE:
        kubernetes_validate.validate(row, "1.37", strict=True)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**row, "spek": 1}, "1.37", strict=True)
    else:
        assert row["kind"] in {
            *("JobSet", "LocalQueue", "PrometheusRule", "ScrapeConfig", "ServiceMonitor")
        }


def test_the_filled_template_holds_a_valid_job_that_is_never_restarted() -> None:
    row = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": run_job()}
    kubernetes_validate.validate(row, "1.37", strict=True)
    assert run_job()["backoffLimit"] == 0
    assert named("JobSet", "gonogo-run")["spec"]["failurePolicy"] == {"maxRestarts": 0}
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    grace_s = PODS["run"]["spec"]["terminationGracePeriodSeconds"]
    assert compose["x-worker"]["stop_grace_period"] == f"{grace_s}s"


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_containers_are_confined_and_read_secrets_from_files(pod: dict[str, Any]) -> None:
    spec = pod["spec"]
    known = {row.env for row in TABLE} | {f"{row.env}_FILE" for row in TABLE}
    volumes = {row["name"]: row for row in spec["volumes"]}
    assert spec["securityContext"]["runAsNonRoot"]
    talks = spec.get("serviceAccountName") == "gonogo-worker"
    assert spec.get("automountServiceAccountToken", True) is talks
    for row in [*spec.get("initContainers", []), *spec["containers"]]:
        assert row["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert row["image"] in (f"gonogo-api:{__version__}", f"gonogo-worker:{__version__}")
        assert {place["name"] for place in row["volumeMounts"]} <= volumes.keys()
        ours = {v["name"]: v["value"] for v in row["env"] if v["name"].startswith("GONOGO_")}
        assert ours.keys() <= known
        files = {Path(value).name for name, value in ours.items() if name.endswith("_FILE")}
        assert files <= {item["path"] for item in volumes["secrets"]["secret"]["items"]}


def test_the_worker_may_only_make_read_and_delete_jobsets_and_list_pods() -> None:
    rules = named("Role", "gonogo-worker")["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["jobsets"], ["create", "get", "delete"]),
        (["pods"], ["list"]),
    ]
    assert named("RoleBinding", "gonogo-worker")["roleRef"]["name"] == "gonogo-worker"


def test_only_the_pods_of_runs_reach_the_pods_of_runs() -> None:
    policy = named("NetworkPolicy", "gonogo-run")["spec"]
    runs = policy["podSelector"]
    assert policy["ingress"] == [{"from": [{"podSelector": runs}]}]
    found = [
        n for n, p in PODS.items() if runs["matchLabels"].items() <= p["metadata"]["labels"].items()
    ]
    assert found == ["run"]


def test_services_and_monitors_select_what_they_name() -> None:
    for name, pod in (("gonogo", "service"), ("gonogo-worker", "worker")):
        assert named("Service", name)["spec"]["selector"] == PODS[pod]["metadata"]["labels"]
    monitor, labels = named("ServiceMonitor")["spec"], named("Service")["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    rules = yaml.safe_load((ROOT / "docker/prometheus/rules.yml").read_text())
    assert named("PrometheusRule")["spec"] == rules, "run `make made`"
    for job in (
        labels[monitor["jobLabel"]],
        named("ScrapeConfig", "gonogo-workers")["spec"]["jobName"],
    ):
        assert f'up{{job="{job}"}}' in str(rules)
