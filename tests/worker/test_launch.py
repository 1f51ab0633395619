"""What torchrun is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.launch import LaunchRefused, build_command, build_environment

RUN_DIR = Path("/runs/run_1")
ORDER = {"run": "run_1", "world_size": 2, "entry": "nsa.train", "env": {"NSA_TB_DISABLE": "1"}}


def test_ranks_run_behind_the_wrapper_and_never_restart() -> None:
    command = build_command(ORDER, RUN_DIR)
    wrapper = command.index("worker.rank")
    assert command[wrapper - 2 : wrapper + 3][1:] == ["-m", "worker.rank", "--dir", str(RUN_DIR)]
    assert command[-4:] == ["-m", "nsa.train", "--order", f"{RUN_DIR}/order.json"]
    assert command[command.index("--max-restarts") + 1] == "0"
    assert command[command.index("--nproc-per-node") + 1] == "2"


@pytest.mark.parametrize("entry", ["os", "nsa.train; rm", "worker.keeper", ""])
def test_entry_point_off_the_list_is_refused(entry: str) -> None:
    with pytest.raises(LaunchRefused, match="not allowed"):
        build_command({**ORDER, "entry": entry}, RUN_DIR)


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "PYTHONPATH", "GONOGO_RUN", "nsa_x"])
def test_environment_name_off_the_list_is_refused(name: str) -> None:
    with pytest.raises(LaunchRefused, match=name):
        build_environment({**ORDER, "env": {name: "1"}}, RUN_DIR, {}, [])


def test_ranks_get_the_token_and_what_is_ordered_and_no_key() -> None:
    environ = {
        "PATH": "/bin",
        "GONOGO_API_KEY": "secret",
        "NSA_LEFT_OVER": "1",
        "PYTHONPATH": "/elsewhere",
    }
    found = build_environment(ORDER, RUN_DIR, environ, [])
    assert (found["GONOGO_RUN"], found["NSA_TB_DISABLE"], found["PATH"]) == ("run_1", "1", "/bin")
    assert not {"GONOGO_API_KEY", "NSA_LEFT_OVER", "PYTHONPATH"} & found.keys()


def test_gpus_of_the_run_are_the_ones_whose_locks_it_holds() -> None:
    found = build_environment(ORDER, RUN_DIR, {"CUDA_VISIBLE_DEVICES": "7"}, ["cuda:10", "cuda:2"])
    assert found["CUDA_VISIBLE_DEVICES"] == "2,10"
    assert "CUDA_VISIBLE_DEVICES" not in build_environment(ORDER, RUN_DIR, {}, ["cpu:0"])
