"""Are the compose file and the images sound, as far as can be told without a Docker daemon?"""

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

from gonogo.settings import TABLE
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
#: The wheel's own entry point always exits 0; the program inside tells the truth.
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


def test_the_check_sees_a_mistake(tmp_path: Path) -> None:
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(
        FILE.read_text().replace("depends_on: [prometheus]", "depends_on: [promteus]")
    )
    assert run(COMPOSE, "-f", broken, "config", "-q").returncode != 0


def test_the_file_follows_the_compose_specification() -> None:
    command = ["--builtin-schema", "vendor.compose-spec", str(FILE)]
    checked = run(TOOLS / "check-jsonschema", *command)
    assert checked.returncode == 0, checked.stdout


def test_every_part_of_the_system_is_there(
    project: Project,
) -> None:
    expected = {"api", "worker", "redis", "postgres", "prometheus", "alertmanager", "grafana"}
    assert expected <= project["services"].keys()


def test_the_worker_gets_the_gpus_an_init_and_the_time_for_a_checkpoint() -> None:
    worker = yaml.safe_load(FILE.read_text())["services"]["worker"]
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert worker["init"] is True
    assert worker["environment"]["GONOGO_WORKER_ON_STOP"] == "checkpoint"
    assert int(worker["stop_grace_period"].removesuffix("s")) > 300


def test_every_port_is_published_on_loopback_only(
    project: Project,
) -> None:
    ports = [port for service in project["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 4
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


def test_every_mounted_file_exists(project: Project) -> None:
    volumes = [
        one for service in project["services"].values() for one in service.get("volumes", [])
    ]
    binds = [Path(volume["source"]) for volume in volumes if volume["type"] == "bind"]
    assert len(binds) >= 4
    assert [path for path in binds if not path.exists()] == []


def test_every_variable_of_ours_is_a_known_setting(
    project: Project,
) -> None:
    named = {
        name
        for service in project["services"].values()
        for name in service.get("environment", {}) or {}
        if name.startswith("GONOGO_")
    }
    for dockerfile in DOCKERFILES:
        named |= set(re.findall(r"\b(GONOGO_\w+)=", dockerfile.read_text()))
    assert named
    assert named <= {row.env for row in TABLE}


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


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_images_do_not_run_as_root(dockerfile: Path) -> None:
    users = re.findall(r"^USER (\d+)", dockerfile.read_text(), re.M)
    assert users
    assert users[-1] != "0"


def test_the_health_check_tells_a_server_that_is_gone(tmp_path: Path) -> None:
    checked = run(sys.executable, ROOT / "docker/health.py", f"http://127.0.0.1:{free_port()}/")
    assert checked.returncode == 1
