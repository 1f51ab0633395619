"""Are wrong settings refused at once, and do keys stay out of sight?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gonogo.contract.errors import Rejected
from gonogo.contract.workload import EngineName
from worker.__main__ import identity_of
from worker.settings import OnStop, keeper_environ, load_settings, node_environ


def environ(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"GONOGO_HOME": str(tmp_path), "PATH": "/bin", **more}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GONOGO_WORKER_METRICS_PORT", "http"), ("GONOGO_WORKER_METRICS_PORT", "70000"),
        ("GONOGO_WORKER_LABELS", "gpu"), ("GONOGO_WORKER_LABELS", "gpu=,a=b"),
        ("GONOGO_WORKER_ON_STOP", "explode"), ("GONOGO_LOG", "loud"), ("GONOGO_ENGINE", "ray"),
        ("GONOGO_WORKER_LABLES", "a=b"), ("GONOGO_HOME", "/srv/\udcff"),
        ("GONOGO_HOME", "~nobody-of-this-name/gonogo"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_by_name(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(Rejected, match=name):
        load_settings({**environ(tmp_path), name: value})


def test_defaults_are_those_of_the_table(tmp_path: Path) -> None:
    settings = load_settings(environ(tmp_path))
    assert settings.on_stop is OnStop.LEAVE
    assert settings.engine is EngineName.LOCAL
    assert settings.metrics_port == 8751
    assert settings.labels == {}
    assert settings.runs == tmp_path / "runs"


def test_the_workers_own_key_comes_before_the_local_one(tmp_path: Path) -> None:
    settings = load_settings(environ(tmp_path))
    assert settings.key() is None
    (tmp_path / "key").write_text("admin\n")
    assert settings.key() == "admin"
    (tmp_path / "worker_key").write_text("worker\n")
    assert settings.key() == "worker"
    (tmp_path / "secret").write_text("in a file\n")
    more = {"GONOGO_API_KEY_FILE": str(tmp_path / "secret")}
    assert load_settings(environ(tmp_path, **more)).key() == "in a file"
    assert load_settings(environ(tmp_path, GONOGO_API_KEY="given", **more)).key() == "given"


def test_settings_do_not_show_their_secrets(tmp_path: Path) -> None:
    settings = load_settings(
        environ(tmp_path, GONOGO_API_KEY="s3cret", REDIS_URL="redis://:s3cret@host/0")
    )
    assert "s3cret" not in repr(settings)


def test_a_keeper_gets_only_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("k")
    settings = load_settings(
        environ(
            tmp_path,
            REDIS_URL="redis://:pw@host/0",
            GONOGO_WORKER_LABELS="a=b",
            GONOGO_API_KEY_FILE=str(tmp_path / "secret"),
            NOTIFY_SOCKET="/run/x",
            HOME="/root",
        )
    )
    found = keeper_environ(settings, "k")
    assert found["GONOGO_API_KEY"] == "k"
    assert found["HOME"] == "/root"
    assert not {"REDIS_URL", "GONOGO_WORKER_LABELS", "NOTIFY_SOCKET"} & found.keys()


@pytest.mark.parametrize("named", [False, True], ids=["home", "file"])
def test_a_renewed_key_is_read_during_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    file = tmp_path / ("credential" if named else "worker_key")
    file.write_text("former\n")
    more = {"GONOGO_API_KEY_FILE": file.name} if named else {}
    monkeypatch.chdir(tmp_path)
    worker = load_settings(environ(tmp_path, **more))
    found = keeper_environ(worker, worker.key())
    monkeypatch.chdir("/")  # a keeper works elsewhere
    watcher = load_settings(found)
    assert (watcher.key(), watcher.renewed_key()) == ("former", "former")
    file.write_text("renewed\n")
    assert (watcher.key(), watcher.renewed_key()) == ("former", "renewed")
    monkeypatch.chdir(tmp_path)
    assert worker.key() == "renewed"
    file.unlink()
    assert watcher.renewed_key() is None


def test_an_engines_worker_belongs_to_the_home(tmp_path: Path) -> None:
    homes = [tmp_path / "a", tmp_path / "b"]
    seen = [
        identity_of(replace(load_settings(environ(home, GONOGO_ENGINE="slurm")), host=host))
        for home in homes
        for host in ("login1", "login2")
    ]
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert seen[0] != seen[2]
    local = identity_of(replace(load_settings(environ(homes[0])), host="login1"))
    assert local[1] == "login1"


def test_a_node_finds_home_service_and_programs_and_a_script_that_many_read_holds_no_secret(
    tmp_path: Path,
) -> None:
    settings = load_settings(
        {
            "GONOGO_HOME": str(tmp_path),
            "GONOGO_URL": "http://login:8750",
            "GONOGO_API_KEY": "hush",
            "GONOGO_WORKER_ALLOW": "train.py",
            "GONOGO_ENGINE": "slurm",
            "HF_TOKEN": "hush",
            "PATH": "/opt/slurm/bin:/bin",
            "SLURM_CONF": "/etc/slurm.conf",
            "SLURM_JOB_ID": "7",
        }
    )
    found = node_environ(settings)
    assert load_settings(found).allow == ("train.py",)
    assert found["GONOGO_HOME"] == str(tmp_path)
    assert found["GONOGO_URL"] == "http://login:8750"
    assert (found["PATH"], found["SLURM_CONF"]) == ("/opt/slurm/bin:/bin", "/etc/slurm.conf")
    assert "hush" not in found.values()
    assert not {"SLURM_JOB_ID", "GONOGO_ENGINE"} & found.keys()
