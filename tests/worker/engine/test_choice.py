"""What does a node's keeper get of the environment of the worker that submitted it?"""

from __future__ import annotations

from pathlib import Path

from worker.engine.choice import node_environ
from worker.settings import load_settings


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
