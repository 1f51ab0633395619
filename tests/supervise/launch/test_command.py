"""The command line and the environment of ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gonogo.contract.watch import Watch
from gonogo.supervise.launch.command import Allowed, LaunchRefused, build_command, build_environment

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
    told = ["--dir", str(RUN_DIR), "--keeper", str(os.getpid()), "--"]
    assert command[1:9] == ["-P", "-m", WRAPPER, *told]
    assert command[-4:] == ["-m", "nsa.train", "--order", f"{RUN_DIR}/order.json"]
    with pytest.raises(LaunchRefused, match="torch is not installed"):
        build_command(ORDER, RUN_DIR)


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


def test_ranks_record_their_collectives_and_nccl_outlasts_our_longest_deadline() -> None:
    found = build_environment(ORDER, RUN_DIR, {"TORCH_FR_BUFFER_SIZE": "0"}, [])
    assert int(found["TORCH_FR_BUFFER_SIZE"]) >= 1000
    assert int(found["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]) > Watch().section_deadline.eval.halt_s


def test_gpus_of_the_run_are_the_ones_whose_locks_it_holds() -> None:
    found = build_environment(
        ORDER, RUN_DIR, {"CUDA_VISIBLE_DEVICES": "7"}, ["GPU-b", "cpu:0", "GPU-a"]
    )
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a", "in the order of the ranks"
    assert "CUDA_VISIBLE_DEVICES" not in build_environment(ORDER, RUN_DIR, {}, ["cpu:0"])


@pytest.mark.parametrize("said", ["GPU-of-another-run", "0", "-1,0"])
def test_no_plan_takes_the_gpu_of_another_run(said: str) -> None:
    order = {**ORDER, "env": {"CUDA_VISIBLE_DEVICES": said}}
    for allowed in (None, ANY, Allowed(names=frozenset({"CUDA_VISIBLE_DEVICES"}))):
        with pytest.raises(LaunchRefused, match="CUDA_VISIBLE_DEVICES"):
            build_environment(order, RUN_DIR, {}, ["GPU-a"], allowed)
    with pytest.raises(LaunchRefused, match="is not allowed"):
        build_environment(order, RUN_DIR, {}, ["cpu:0"])
    found = build_environment(order, RUN_DIR, {}, ["cpu:0"], ANY)
    assert found["CUDA_VISIBLE_DEVICES"] == said, "where no GPU is held, a host may allow it"


ANY = Allowed(programs=frozenset({"any"}), names=frozenset({"any"}))


def test_a_command_is_started_once_as_it_is_written() -> None:
    order = {**ORDER, "entry": None, "command": ["python", "train.py", "--lr", "1"]}
    command = build_command(order, RUN_DIR, ANY)
    told = ["--dir", str(RUN_DIR), "--keeper", str(os.getpid()), "--"]
    assert command[1:] == ["-P", "-m", WRAPPER, *told, *order["command"]]


def test_a_plans_folder_stands_in_for_nothing_of_the_hosts_own(tmp_path: Path) -> None:
    for name in ("nsa", "secrets"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a stand-in was imported')")
    (tmp_path / "mine.py").write_text("")
    order = {**ORDER, "cwd": str(tmp_path), "world_size": 1}
    command = build_command(order, RUN_DIR)
    module = command.index("nsa.train")
    assert command[module - 3 : module] == [sys.executable, "-P", "-m"]
    wrapper = command[: command.index("--dir")]
    said = subprocess.run([*wrapper, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert (said.returncode, "stand-in" in said.stderr) == (0, False), said.stderr
    mine = build_command({**order, "entry": "mine"}, RUN_DIR, ANY)
    assert mine[mine.index("mine") - 2 : mine.index("mine")] == [sys.executable, "-m"]


@pytest.mark.parametrize(
    ("allowed", "program", "starts"),
    [
        ("my.trainer", "my.trainer", True), ("my.trainer", "my", False),
        ("train.py", "train.py", True), ("{cwd}/train.py", "train.py", True),
        ("{cwd}/train.py", "./train.py", True), ("{cwd}/train.py", "sub/../train.py", True),
        ("{cwd}/train.py", "{cwd}/linked.py", True), ("{cwd}/train.py", "other.py", False),
        ("train.py", "/elsewhere/train.py", False), ("any", "whatever", True),
        ("sh", "/bin/sh", True),
    ],
)  # fmt: skip
def test_what_is_allowed_starts_by_whatever_path_it_is_called(
    allowed: str, program: str, starts: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "other.py").touch()
    (tmp_path / "linked.py").symlink_to("train.py")
    listed = Allowed(programs=frozenset({allowed.format(cwd=tmp_path)}))
    assert listed.starts(program.format(cwd=tmp_path), tmp_path) is starts


def test_where_any_name_is_allowed_the_whole_environment_is_passed_but_our_keys() -> None:
    environ = {"WANDB_MODE": "offline", "GONOGO_API_KEY": "secret", "OMP_NUM_THREADS": "8"}
    order = {**ORDER, "command": ["x"], "env": {"MY_NAME": "1"}}
    found = build_environment(order, RUN_DIR, environ, [], ANY)
    assert (found["WANDB_MODE"], found["MY_NAME"], found["OMP_NUM_THREADS"]) == (
        "offline",
        "1",
        "8",
    )
    assert "GONOGO_API_KEY" not in found
    with pytest.raises(LaunchRefused):
        build_environment({**order, "env": {"GONOGO_RUN": "1"}}, RUN_DIR, {}, [], ANY)


@pytest.mark.parametrize(
    ("point", "words", "value"),
    [
        (None, ["--out", f"{RUN_DIR}/o"], ""),
        ("/old/step_3", ["--out", f"{RUN_DIR}/o", "--from", "/old/step_3"], "/old/step_3"),
        ("checkpoints/s", [*["--out", f"{RUN_DIR}/o", "--from"], f"{RUN_DIR}/checkpoints/s"], None),
    ],
)
def test_the_place_of_the_run_and_of_its_checkpoint_are_filled_at_the_start(
    point: str | None, words: list[str], value: str | None
) -> None:
    order = {
        **ORDER,
        "world_size": 1,
        "command": ["/bin/echo", "--out", "{run_dir}/o", "--from", "{resume}"],
        "env": {"NSA_A": "{resume}", "NSA_B": "{run_dir}"},
        "resume_from": None if point is None else {"path": point, "step": 3},
    }
    allowed = Allowed(programs=frozenset({"/bin/echo"}))
    assert build_command(order, RUN_DIR, allowed)[-4:] == order["command"][-4:]
    order["filled_at_start"] = ["command", "env"]
    command = build_command(order, RUN_DIR, allowed)
    assert command[command.index("/bin/echo") + 1 :] == words
    environ = build_environment(order, RUN_DIR, {}, [])
    assert environ["NSA_B"] == str(RUN_DIR)
    assert environ["NSA_A"] == (f"{RUN_DIR}/{point}" if value is None else value)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"command": ["/usr/bin/env"]}, "GONOGO_WORKER_ALLOW"),
        ({"command": ["/bin/sh"], "cwd": "/none"}, "there is no folder"),
        ({"command": ["/bin/sh"], "patterns": ["("]}, "unterminated"),
        ({"command": ["/bin/sh"], "cwd": "/", "files": ["model.py"]}, r"model\.py: no such file"),
    ],
)
def test_an_order_that_this_host_cannot_start_is_refused(
    order: dict[str, object], words: str
) -> None:
    allowed = Allowed(programs=frozenset({"/bin/sh"}))
    with pytest.raises(LaunchRefused, match=words):
        build_command({**ORDER, **order}, RUN_DIR, allowed)
