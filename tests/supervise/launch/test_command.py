"""What torchrun is started with, and what is started without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.supervise.launch.command import LaunchRefused, build_command, build_environment

RUN_DIR = Path("/runs/run_1")
WRAPPER = "gonogo.supervise.launch.rank"
ORDER = {"run": "run_1", "world_size": 2, "entry": "nsa.train", "env": {"NSA_TB_DISABLE": "1"}}


def test_ranks_run_behind_the_wrapper_and_never_restart() -> None:
    command = build_command(ORDER, RUN_DIR)
    wrapper = command.index(WRAPPER)
    assert command[wrapper - 1 : wrapper + 3] == ["-m", WRAPPER, "--dir", str(RUN_DIR)]
    assert command[-4:] == ["-m", "nsa.train", "--order", f"{RUN_DIR}/order.json"]
    assert command[command.index("--max-restarts") + 1] == "0"
    assert command[command.index("--nproc-per-node") + 1] == "2"


def test_one_rank_needs_no_torch_and_more_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    command = build_command({**ORDER, "world_size": 1}, RUN_DIR)
    assert command[1:6] == ["-m", WRAPPER, "--dir", str(RUN_DIR), "--"]
    assert command[-4:] == ["-m", "nsa.train", "--order", f"{RUN_DIR}/order.json"]
    with pytest.raises(LaunchRefused, match="torch is not installed"):
        build_command(ORDER, RUN_DIR)


@pytest.mark.parametrize("entry", ["os", "nsa.train; rm", "gonogo.supervise.keeper", ""])
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
    assert not {"GONOGO_API_KEY", "NSA_LEFT_OVER"} & found.keys()
    assert found["PYTHONPATH"] == "/elsewhere", "the wrapper may be found nowhere else"


def test_gpus_of_the_run_are_the_ones_whose_locks_it_holds() -> None:
    found = build_environment(ORDER, RUN_DIR, {"CUDA_VISIBLE_DEVICES": "7"}, ["cuda:10", "cuda:2"])
    assert found["CUDA_VISIBLE_DEVICES"] == "2,10"
    assert "CUDA_VISIBLE_DEVICES" not in build_environment(ORDER, RUN_DIR, {}, ["cpu:0"])
