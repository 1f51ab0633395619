"""A stack names the place where a rank stands, and who stands outside of what others wait for."""

from __future__ import annotations

import faulthandler
from pathlib import Path

import pytest

from gonogo.contract.stack_trace import Frame, PlaceKind, classify, describe_places, parse_frames

MAIN = "main (train.py:9)"
REDUCE = "all_reduce (torch/distributed/distributed_c10d.py:3252)"
NATIVE = ("pthread_cond_wait (libc.so.6)", "c10d::Work::wait (libtorch_cpu.so)")
SLEEP = ("clock_nanosleep (libc.so.6)", "time_sleep (libpython3.11.so.1.0)")

WAITING = (*NATIVE, REDUCE, MAIN)
WAITING_ON_WORK = (*NATIVE, MAIN)
SLEEPING = (*SLEEP, "evaluate (train.py:6)", MAIN)
LOADING = ("__getitem__ (train.py:30)", "fetch (torch/utils/data/_utils/fetch.py:54)", MAIN)
BACKWARD = ("_engine_run_backward (torch/autograd/graph.py:829)", MAIN)


def frames(*rows: str) -> tuple[Frame, ...]:
    return parse_frames("MainThread (thread 7)\n" + "".join(f"    {row}\n" for row in rows))


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (WAITING, "collective"),
        (WAITING_ON_WORK, "collective"),
        ((REDUCE, MAIN), "collective"),
        ((REDUCE, "save (torch/distributed/checkpoint/utils.py:70)", MAIN), "collective"),
        (("cudaStreamSynchronize (libcudart.so.12)", MAIN), "wait for the device"),
        (("0x7f12 (libcuda.so.550)", MAIN), "wait for the device"),
        (("synchronize (torch/cuda/__init__.py:985)", MAIN), "wait for the device"),
        (BACKWARD, "forward, backward or optimizer"),
        (("step (torch/optim/adamw.py:232)", MAIN), "forward, backward or optimizer"),
        (LOADING, "data loader"),
        (("_MapDatasetFetcher.fetch (fetch.py:54)", MAIN), "data loader"),
        (
            ("select (selectors.py:415)", "_next_data (torch/utils/data/dataloader.py:1300)", MAIN),
            "data loader"),
        (("_save (torch/serialization.py:900)", MAIN), "checkpoint"),
        (("save_file (safetensors/torch.py:286)", MAIN), "checkpoint"),
        (("wait (threading.py:327)", "log (wandb/sdk/wandb_run.py:9)", MAIN), "tracker"),
        (("add_scalar (torch/utils/tensorboard/writer.py:380)", MAIN), "tracker"),
        (("log_metric (mlflow/tracking/fluent.py:8)", MAIN), "tracker"),
        (("read (ssl.py:1166)", "get (huggingface_hub/hf_api.py:4)", MAIN), "download"),
        (("from_pretrained (transformers/tokenization_utils_base.py:2)", MAIN), "download"),
        (
            ("run (torch/_inductor/graph.py:2)", "call (torch/_dynamo/eval_frame.py:1)", MAIN),
            "compilation"),
        (("gomp_team_barrier_wait (libgomp.so.1)", MAIN), "user code"),
        (("call (torch/_dynamo/eval_frame.py:1)", MAIN), "user code"),
        (("make (triton/compiler/compiler.py:2)", MAIN), "compilation"),
        (SLEEPING, "user code"),
        (("evaluate (train.py:6)", MAIN), "user code"),
        (("get (requests/api.py:73)", MAIN), "user code"),
        (("broadcast_weights (train.py:3)", MAIN), "user code"),
        (("wait (threading.py:320)",), "unknown"),
        ((), "unknown"),
    ],
)  # fmt: skip
def test_the_innermost_known_frame_names_the_place(rows: tuple[str, ...], kind: str) -> None:
    assert classify(frames(*rows)).kind.value == kind


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (SLEEPING, "time.sleep, called from evaluate (train.py:6), user code"),
        (("evaluate (train.py:6)", MAIN), "evaluate (train.py:6), user code"),
        (LOADING, "data loader: fetch (fetch.py:54), from __getitem__ (train.py:30)"),
        (WAITING, "collective: all_reduce (distributed_c10d.py:3252), from main (train.py:9)"),
        (("wait (threading.py:320)",), ""),
    ],
)
def test_a_place_is_told_in_words(rows: tuple[str, ...], text: str) -> None:
    assert classify(frames(*rows)).text() == text


def test_installed_packages_and_python_s_own_modules_are_no_user_code() -> None:
    rows = (
        "wait (/usr/lib/python3.11/threading.py:320)",
        "apply (/env/lib/python3.11/site-packages/einops/einops.py:5)",
        "step (/home/me/project/train.py:40)",
    )
    user = classify(frames(*rows)).user
    assert user is not None
    assert user.text() == "step (train.py:40)"


def test_all_forms_of_a_listing_are_read(tmp_path: Path) -> None:
    text = 'Thread 12 (idle): "worker"\n    a (b.py:1)\n'
    text += 'Thread 1 (idle): "MainThread"\n    c (d.py:2)\n'
    assert parse_frames(text) == (Frame(function="c", file="d.py", line=2),)
    with (tmp_path / "dump").open("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        found = parse_frames(file.read())
    assert found[0].function == "test_all_forms_of_a_listing_are_read"
    assert found[0].file == __file__
    several = 'Thread 0x01 (most recent call first):\n  File "a.py", line 1 in x\n\n'
    several += 'Thread 0x02 (most recent call first):\n  File "b.py", line 2 in y\n'
    assert parse_frames(several) == (Frame(function="y", file="b.py", line=2),)
    assert parse_frames("py-spy is not installed\n") == ()
    assert parse_frames("") == ()


def test_where_ranks_stand_is_told_in_one_line() -> None:
    stacks = {rank: frames(*WAITING) for rank in range(4)}
    assert describe_places(stacks) == ""
    stacks[1] = frames("evaluate (train.py:6)", MAIN)
    assert describe_places(stacks) == (
        "rank 1 is in evaluate (train.py:6), user code; ranks 0, 2-3 wait in all_reduce"
    )
    stacks[3] = ()
    assert describe_places(stacks).endswith("ranks 0, 2 wait in all_reduce")
    assert describe_places({0: frames(*LOADING), 1: frames(*SLEEPING)}) == ""


def test_every_kind_has_a_word_of_its_own() -> None:
    assert len({kind.value for kind in PlaceKind}) == len(PlaceKind)
