"""Checks of the compose file and the images that need no Docker daemon."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import compose
import pytest
import yaml

from gonogo.settings import known_names
from gonogo.supervise.locks import HOST_FOLDER
from service.settings import check_secret
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
#: The wheel's own entry point always exits 0; the program inside reports the truth.
COMPOSE = Path(compose.__file__).with_name("docker-compose")
TOOLS = Path(sys.executable).parent
Project = dict[str, dict[str, dict[str, Any]]]
DOCKERFILES = sorted(ROOT.glob("docker/*.Dockerfile"), key=str)


def run(*command: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], cwd=folder, check=False, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def project() -> Project:
    """The compose project with all profiles, resolved."""
    resolved = run(COMPOSE, "-f", FILE, "--profile", "*", "config", "--format", "json")
    assert resolved.returncode == 0, resolved.stderr
    answer: Project = json.loads(resolved.stdout)
    return answer


@pytest.mark.parametrize("profile", ["", "cpu"])
def test_compose_accepts_the_file(profile: str) -> None:
    checked = run(COMPOSE, "-f", FILE, "--profile", profile, "config", "-q")
    assert checked.returncode == 0, checked.stderr


def test_no_stranger_ends_what_wakes_people(project: Project) -> None:
    """Prometheus asks for no key: what a plan starts, and every user of the host, reaches it."""
    assert "--web.enable-lifecycle" not in project["services"]["prometheus"]["command"]


def test_the_file_follows_the_compose_specification() -> None:
    command = ["--builtin-schema", "vendor.compose-spec", str(FILE)]
    checked = run(TOOLS / "check-jsonschema", *command)
    assert checked.returncode == 0, checked.stdout


def test_the_worker_gets_the_gpus_an_init_and_the_time_for_a_checkpoint() -> None:
    worker = yaml.safe_load(FILE.read_text())["services"]["worker"]
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert worker["init"] is True
    assert worker["environment"]["GONOGO_WORKER_ON_STOP"] == "checkpoint"
    assert int(worker["stop_grace_period"].removesuffix("s")) > 300


def test_gpu_workers_share_the_hosts_device_locks(project: Project) -> None:
    for name in ("locks", "worker"):
        binds = [v for v in project["services"][name]["volumes"] if v["type"] == "bind"]
        assert [(v["source"], v["target"]) for v in binds] == [(str(HOST_FOLDER),) * 2], name
        assert not binds[0].get("read_only"), name
    before = project["services"]["worker"]["depends_on"]["locks"]
    assert before["condition"] == "service_completed_successfully"
    assert project["services"]["locks"]["network_mode"] == "none"


def test_every_port_is_published_on_loopback_only(project: Project) -> None:
    ports = [port for service in project["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 4
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


def test_every_mounted_file_exists(project: Project) -> None:
    volumes = [
        one for service in project["services"].values() for one in service.get("volumes", [])
    ]
    made = str(HOST_FOLDER)  # by Docker, where it is not there
    sources = [volume["source"] for volume in volumes if volume["type"] == "bind"]
    binds = [Path(source) for source in sources if source != made]
    assert len(binds) >= 4
    assert [path for path in binds if not path.exists()] == []


def test_every_variable_of_ours_is_a_known_setting(project: Project) -> None:
    named = {
        name
        for service in project["services"].values()
        for name in service.get("environment", {}) or {}
        if name.startswith("GONOGO_")
    }
    for dockerfile in DOCKERFILES:
        named |= set(re.findall(r"\b(GONOGO_\w+)=", dockerfile.read_text()))
    assert named
    assert named <= known_names()


def test_nothing_writes_but_in_volumes_and_nobody_has_or_gains_a_capability(
    project: Project,
) -> None:
    for name, service in project["services"].items():
        assert service.get("read_only") is True, name
        assert service.get("cap_drop") == ["ALL"], name
        assert not service.get("cap_add"), name
        assert service.get("security_opt") == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name


def test_every_image_that_is_not_built_here_is_pinned_by_digest(project: Project) -> None:
    pulled = [one["image"] for one in project["services"].values() if "build" not in one]
    assert len(pulled) == 5
    bases = [re.findall(r"^ARG \w+_IMAGE=(\S+)", one.read_text(), re.M) for one in DOCKERFILES]
    begins = [re.findall(r"^FROM (.+)", one.read_text(), re.M) for one in DOCKERFILES]
    assert begins == [["${PYTHON_IMAGE}"]] * 2
    built = {
        one["build"]["args"]["PYTHON_IMAGE"]
        for one in project["services"].values()
        if "build" in one
    }
    assert {base for found in bases for base in found} == built
    for image in (*pulled, *built):
        assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image), image


def test_secrets_are_files_that_the_script_makes(project: Project, tmp_path: Path) -> None:
    for name, service in project["services"].items():
        for variable, value in (service.get("environment") or {}).items():
            if re.search("PASSWORD|SECRET|KEY", variable):
                assert variable.endswith("_FILE"), (name, variable)
                assert value.startswith("/run/secrets/"), (name, variable)
                mounted = {row["source"] for row in service["secrets"]}
                assert value.removeprefix("/run/secrets/") in mounted, (name, variable)
    folder = tmp_path / "secrets"
    assert run(sys.executable, "docker/make_secrets.py", folder).returncode == 0
    made = {path.name: path.read_text() for path in folder.iterdir()}
    assert made.keys() == project["secrets"].keys()
    assert {Path(row["file"]).parent for row in project["secrets"].values()} == {
        ROOT / "docker" / "secrets"
    }
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o444}
    check_secret(made["webhook_secret"])
    (folder / "worker_key").unlink()
    assert run(sys.executable, "docker/make_secrets.py", folder).returncode == 0
    again = {path.name: path.read_text() for path in folder.iterdir()}
    assert {name for name in made if made[name] != again[name]} == {"worker_key"}
    for file in (".dockerignore", ".gitignore"):
        assert "docker/secrets/" in (ROOT / file).read_text().splitlines()


@pytest.mark.parametrize("name", ["worker", "worker-cpu"])
def test_what_plans_start_cannot_read_the_admins_key(project: Project, name: str) -> None:
    worker, api = project["services"][name], project["services"]["api"]
    homes = {row["source"]: row for row in api["volumes"]}
    shared = homes.keys() & {row["source"] for row in worker["volumes"]}
    assert shared == {"runs"}
    assert homes["runs"]["read_only"] is True
    assert homes["service"]["target"] == "/var/lib/gonogo"
    assert [row["source"] for row in worker["secrets"]] == ["worker_key"]
    assert worker["networks"].keys() == {"workers"}
    assert "workers" not in project["services"]["postgres"]["networks"]


def test_the_database_is_migrated_once_before_the_service_starts(project: Project) -> None:
    migrate, api = project["services"]["migrate"], project["services"]["api"]
    assert migrate["restart"] == "no"
    assert "gonogo db upgrade && gonogo keys create" in migrate["command"][-1]
    assert api["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    checked = run(TOOLS / "hadolint", dockerfile)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_every_file_that_an_image_copies_exists(dockerfile: Path) -> None:
    copied = re.findall(r"^COPY (.+) \S+$", dockerfile.read_text(), re.M)
    sources = [source for line in copied for source in line.split()]
    assert len(sources) >= 5
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_health_check_tells_a_server_that_is_gone(tmp_path: Path) -> None:
    checked = run(sys.executable, ROOT / "docker/health.py", f"http://127.0.0.1:{free_port()}/")
    assert checked.returncode == 1
