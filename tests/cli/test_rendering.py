"""Does `gonogo render k8s` write what it says, to a folder, to stdout and as JSON?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gonogo.cli.app import app, run
from gonogo.cli.exits import Exit
from gonogo.kubernetes.cluster import Cluster
from gonogo.kubernetes.manifests import build_manifests

RUNNER = CliRunner()
KINDS = [row["kind"] for rows in build_manifests(Cluster()).values() for row in rows]


def test_without_a_folder_the_manifests_are_on_stdout() -> None:
    done = RUNNER.invoke(app, ["render", "k8s"])
    assert done.exit_code == 0
    assert [row["kind"] for row in yaml.safe_load_all(done.stdout)] == KINDS


def test_without_a_kind_of_cluster_one_line_says_what_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["render"]) == Exit.BAD_INPUT
    assert capsys.readouterr().err == (
        "gonogo render: missing command (see gonogo render --help)\n"
    )


def test_files_are_written_and_named_and_json_is_one_object(tmp_path: Path) -> None:
    folder = tmp_path / "k8s"
    done = RUNNER.invoke(
        app, ["render", "k8s", "--out", str(folder), "--namespace", "ml", "--json"]
    )
    found = json.loads(done.stdout)
    assert found["folder"] == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(found["files"])
    written = list(yaml.safe_load_all((folder / "control-plane.yaml").read_text()))
    assert written == found["files"]["control-plane.yaml"]
    assert {row["metadata"]["namespace"] for row in written} == {"ml"}
