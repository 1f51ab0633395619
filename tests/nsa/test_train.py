import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nsa.errors import BadConfig
from nsa.launch import launch_from_order
from nsa.settings import load_settings
from nsa.train import main, parse_launch


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--config", "demo"],
        ["--out", "/nowhere"],
        ["--config", "demo", "--out", "{tmp}", "--seq-len", "128"],
        ["--config", "demo", "--out", "{tmp}", "--step", "4"],
        ["--config", "demo", "--out", "{tmp}", "--steps", "four"],
        ["--config", "demo", "--out", "{tmp}", "extra"],
        ["--config", "no-such-file", "--out", "{tmp}"],
        ["--config", "demo", "--out", "{tmp}", "--checkpoint-every", "0"],
        ["--config", "demo", "--out", "/dev/null/out"],
        ["--order", "{tmp}/order.json"],
        ["--order", "{tmp}/order.json", "--steps", "4"],
    ],
    ids=" ".join,
)
def test_arguments_that_make_no_sense_are_errors(arguments: list[str], tmp_path: Path) -> None:
    filled = [argument.format(tmp=tmp_path) for argument in arguments]
    with pytest.raises(BadConfig):
        parse_launch(filled, load_settings({}))


def test_the_command_line_overrides_steps_and_data_only(tmp_path: Path) -> None:
    arguments = ["--config", "demo", "--steps", "7", "--data", "synthetic", "--out", str(tmp_path)]
    launch = parse_launch(arguments, load_settings({}))
    assert (launch.config.steps, launch.config.data) == (7, "synthetic")
    assert (launch.config.parallel, launch.supervised) == ("single", False)
    assert (
        launch.config.model
        == parse_launch(arguments[:2] + arguments[6:], load_settings({})).config.model
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"steps": 5}, "steps"),
        ({"world_size": 2}, "world_size"),
        ({"train": {"extra": 1}}, "unknown key"),
        ({"heartbeat": {"alive_every_s": 0}}, "alive_every_s"),
        ({"checkpoint": {"every_steps": "20"}}, "every_steps"),
        ({"checkpoint": 20}, "checkpoint"),
        ({"checkpoint": {"every_steps": 0.5}}, "every_steps"),
        ({"resume_from": "there"}, "resume_from"),
        ({"resume_from": {"step": 3}}, "resume_from"),
        ({"resume_from": {"path": "there", "step": "3"}}, "resume_from"),
        ({"fault": 3}, "fault"),
    ],
)
def test_an_order_that_disagrees_with_itself_or_the_world_is_refused(
    make_order: Callable[..., Path], change: dict[str, Any], text: str
) -> None:
    with pytest.raises(BadConfig, match=text):
        launch_from_order(make_order(**change), load_settings({}))


@pytest.mark.parametrize(
    ("environ", "fits"),
    [
        ({"CONFIG": "tiny"}, True),
        ({"CONFIG": "m7c_125m"}, False),
        ({"NSA_LR": "0.01"}, True),
        ({"NSA_LR": "0.02"}, False),
        ({"NSA_ACCUM": "2"}, False),
    ],
    ids=str,
)
def test_the_environment_may_repeat_the_order_but_not_change_it(
    make_order: Callable[..., Path], environ: dict[str, str], fits: bool
) -> None:
    order = make_order()
    if fits:
        assert launch_from_order(order, load_settings(environ)).config.optim.lr == 0.01
        return
    with pytest.raises(BadConfig):
        launch_from_order(order, load_settings(environ))


def test_without_an_order_the_toggles_change_the_configuration_and_so_its_digest(
    tmp_path: Path,
) -> None:
    arguments = ["--config", "demo", "--out", str(tmp_path)]
    launch = parse_launch(arguments, load_settings({"NSA_LR": "0.5", "NSA_ACCUM": "2"}))
    assert (launch.config.optim.lr, launch.config.batch.accumulate) == (0.5, 2)


def _nsa(module: str, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-m", f"nsa.{module}", *arguments],
        cwd=root,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", **environ},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.long
def test_training_by_hand_is_told_line_by_line_and_goes_on_from_a_runs_folder(
    tmp_path: Path, tiny: dict[str, Any], helpers: Any
) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny | {"eval": {"every_steps": 4, "batches": 1}}))
    first = ["train", "--config", str(file), "--out", str(tmp_path / "first")]
    done = _nsa(*first, "--steps", "4", "--checkpoint-every", "2")
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()
    assert told[0].startswith("step 1/4  loss ")
    assert told[-2].startswith("step 4/4  loss ")
    assert told[-2].endswith("done")
    assert re.fullmatch(r"validation after step 4: loss \d\.\d{4}", told[-1])
    second = ["train", "--config", str(file), "--out", str(tmp_path / "second")]
    done = _nsa(*second, "--steps", "6", "--resume", str(tmp_path / "first"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("step 5/6  loss ")
    steps = [
        line["step"]
        for line in helpers.read_lines(tmp_path / "second")
        if line["msg"] == "progress"
    ]
    assert steps == [5, 6]


def test_by_hand_nothing_is_done_whose_last_checkpoint_was_not_written(
    tmp_path: Path,
    tiny: dict[str, Any],
    helpers: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, out = tmp_path / "tiny.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(tiny))
    arguments = ["--config", str(file), "--steps", "2", "--checkpoint-every", "1"]

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("nsa.checkpoint_writer.save_checkpoint", refuse)
    assert main([*arguments, "--out", str(out)]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == "NotSaved: trained to step 2, whose checkpoint was not written"
    lines = helpers.told(helpers.read_lines(out))
    assert [line["msg"] for line in lines[-2:]] == ["error", "error"]
    assert lines[-1]["type"] == "NotSaved"
    monkeypatch.undo()
    assert main([*arguments, "--out", str(tmp_path / "again")]) == 0


@pytest.mark.long
def test_a_reader_that_breaks_in_its_thread_ends_the_process_with_code_5_and_its_traceback(
    tmp_path: Path, helpers: Any
) -> None:
    bad = pa.array([b"fine", b"\xff\xfe"] * 40, pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": bad}), tmp_path / "a.parquet")
    out = tmp_path / "out"
    done = _nsa("train", "--config", "demo", "--data", f"parquet:{tmp_path}", "--out", str(out))
    assert done.returncode == 5
    assert "in _packed" in done.stderr
    assert "UnicodeDecodeError" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("DataFailure: cannot read the texts in row ")
    lines = helpers.told(helpers.read_lines(out))
    assert [line["msg"] for line in lines[-2:]] == ["loader_error", "error"]
    assert lines[-1]["type"] == "DataFailure"
