import errno
import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nsa.assignment import launch_from_order
from nsa.errors import BadConfig
from nsa.settings import load_settings
from nsa.train import main, parse_launch
from tests.nsa.runs import ROOT, of, read_lines, told

DEMO = ["--config", "demo", "--out", "{tmp}"]


@pytest.mark.parametrize(
    "arguments",
    [
        [], DEMO[:2], ["--out", "/nowhere"], [*DEMO, "--seq-len", "128"], [*DEMO, "--step", "4"],
        [*DEMO, "--steps", "four"], [*DEMO, "extra"], [*DEMO, "--checkpoint-every", "0"],
        ["--config", "no-such-file", "--out", "{tmp}"],
        ["--config", "demo", "--out", "/dev/null/out"], ["--order", "{tmp}/order.json"],
        ["--order", "{tmp}/order.json", "--steps", "4"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_arguments_that_make_no_sense_are_errors(arguments, tmp_path):
    with pytest.raises(BadConfig):
        parse_launch([word.format(tmp=tmp_path) for word in arguments], load_settings({}))


def test_the_command_line_and_toggles_override_what_they_name_only(tmp_path):
    given = ["--config", "demo", "--out", str(tmp_path)]
    plain = parse_launch(given, load_settings({}))
    launch = parse_launch([*given, "--steps", "7", "--data", "synthetic"], load_settings({}))
    assert (launch.config.steps, launch.config.data) == (7, "synthetic")
    assert (launch.config.parallel, launch.supervised) == ("single", False)
    assert launch.config.model == plain.config.model
    toggled = parse_launch(given, load_settings({"NSA_LR": "0.5", "NSA_ACCUM": "2"}))
    assert (toggled.config.optim.lr, toggled.config.batch.accumulate) == (0.5, 2)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"steps": 5}, "steps"), ({"world_size": 2}, "world_size"),
        ({"train": {"extra": 1}}, "unknown key"),
    ],
)  # fmt: skip
def test_an_order_that_disagrees_with_itself_or_the_world_is_refused(make_order, change, text):
    with pytest.raises(BadConfig, match=text):
        launch_from_order(make_order(**change), load_settings({}))


def _train(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "nsa.train", *map(str, arguments)], cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_training_by_hand_is_told_line_by_line_and_goes_on_from_a_runs_folder(tmp_path, tiny):
    file, one, two = (tmp_path / name for name in ("tiny.yaml", "one", "two"))
    file.write_text(yaml.safe_dump(tiny | {"eval": {"every_steps": 4, "batches": 1}}))
    done = _train("--config", file, "--out", one, "--steps", 4, "--checkpoint-every", 2)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("step 1/4  loss ")
    assert lines[-2].startswith("step 4/4  loss ")
    assert lines[-2].endswith("done")
    assert re.fullmatch(r"validation after step 4: loss \d\.\d{4}", lines[-1])
    done = _train("--config", file, "--out", two, "--steps", 6, "--resume", one)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step 5/6  loss ")
    assert [line["step"] for line in of(read_lines(two), "progress")] == [5, 6]


def test_by_hand_nothing_is_done_whose_last_checkpoint_was_not_written(
    tmp_path, tiny, capsys, monkeypatch
):
    file, out = tmp_path / "tiny.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(tiny))
    arguments = ["--config", str(file), "--steps", "2", "--checkpoint-every", "1"]

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("nsa.checkpoint_writer.save_checkpoint", refuse)
    assert main([*arguments, "--out", str(out)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "NotSaved: trained to step 2, whose checkpoint was not written"
    lines = told(read_lines(out))
    assert [line["msg"] for line in lines[-2:]] == ["error", "error"]
    assert lines[-1]["type"] == "NotSaved"
    monkeypatch.undo()
    assert main([*arguments, "--out", str(tmp_path / "again")]) == 0


@pytest.mark.long
def test_a_reader_that_breaks_in_its_thread_ends_the_process_with_code_5_and_its_traceback(
    tmp_path,
):
    bad = pa.array([b"fine", b"\xff\xfe"] * 40, pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": bad}), tmp_path / "a.parquet")
    out = tmp_path / "out"
    done = _train("--config", "demo", "--data", f"parquet:{tmp_path}", "--out", out)
    assert done.returncode == 5
    assert "in _packed" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("DataFailure: cannot read the texts in row ")
    assert "UnicodeDecodeError" in last
    lines = told(read_lines(out))
    assert [line["msg"] for line in lines[-2:]] == ["loader_error", "error"]
    assert lines[-1]["type"] == "DataFailure"
