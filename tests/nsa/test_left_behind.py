"""Every file that a run leaves behind can be read later (R46).

The curves in `tb/` are read in `test_tensorboard`.
"""

import csv
import json
import platform

import pytest
import torch

from nsa.checkpoint import load_checkpoint
from nsa.model.statistics import COLUMNS
from tests.nsa.runs import ENGINE, build_trainer, of, read_lines, write_order


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """A run directory with everything that can be asked for."""
    engine = ENGINE | {"profile_steps": 1}
    train = {"engine": engine, "attention": {"n_sel": 4}, "dtype": "bf16"}
    folder = tmp_path_factory.mktemp("left")
    order = write_order(folder, train=train, checkpoint={"every_steps": 4})
    environ = {"NSA_MEM_DUMP_EVERY": "2", "NCCL_DEBUG": "WARN", "HOME": "/not/recorded"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("nsa.artifacts._HOT_SPOTS", 1000)  # all rows: which are hot is chance
        build_trainer(order, environ).run()
    return order.parent


def _rows(file):
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_json_files_say_where_and_what_was_trained(left):
    boot = read_lines(left)[0]
    env = json.loads((left / "env.json").read_text())
    assert (env["python"], env["torch"]) == (platform.python_version(), torch.__version__)
    assert (env["host"], env["device"], env["device_name"]) == (platform.node(), "cpu", None)
    assert env["threads"] == 1
    assert env["nsa_env"] == {"NSA_MEM_DUMP_EVERY": "2"}
    assert env["env"] == {"NCCL_DEBUG": "WARN"}
    assert env["argv"]
    model = json.loads((left / "model.json").read_text())
    assert model["params"] == boot["params"] > 10_000
    report = (left / "dtypes_report.txt").read_text().splitlines()
    assert report == [f"parameters torch.float32 {model['params']}", "compute bf16"]
    profile = json.loads((left / "profile.json").read_text())
    assert profile["steps"] == [3]
    by_time = (left / "profile.txt").read_text()
    assert [row["name"] for row in profile["hot_spots"] if row["name"] not in by_time] == []
    assert "..." not in by_time, "a name is broken off"
    (place,) = (left / "checkpoints").iterdir()
    saved = load_checkpoint(place, 4)
    assert saved.config["attention"]["n_sel"] == 4
    assert saved.config_digest == boot["config_digest"]
    assert saved.corpus


def test_tables_hold_the_numbers_of_the_progress_lines(left):
    progress = of(read_lines(left), "progress")
    training = _rows(left / "training.csv")
    assert [int(row.pop("step")) for row in training] == [1, 2, 3, 4]
    for row, line in zip(training, progress, strict=True):
        assert {name: float(text) for name, text in row.items()} == {n: line[n] for n in row}
    gates = _rows(left / "gate_health.csv")
    assert [row["layer"] for row in gates] == ["0", "1"] * 4
    for line in progress:
        own = [row for row in gates if int(row["step"]) == line["step"]]
        assert sum(float(row["entropy"]) for row in own) / 2 == pytest.approx(line["gate_entropy"])
        assert max(float(row["max_share"]) for row in own) == pytest.approx(line["gate_max"])
    first, second = _rows(left / "k_stats.csv")
    assert (first["step"], first["layer"], second["layer"]) == ("1", "0", "1")
    assert set(first) == {"step", "layer", *COLUMNS}
    assert any(row["operation"] == "attention" for row in _rows(left / "fallback_counters.csv"))


def test_memory_is_reported_before_and_after_every_so_many_steps(left):
    names = {f"mem_{when}_step{step}" for when in ("pre", "post") for step in (2, 4)}
    assert {file.stem for file in left.glob("mem_*")} == names
    for name in names:
        report = json.loads((left / f"{name}.json").read_text())
        assert report["host_peak_rss_mb"] >= report["host_rss_mb"] > 50
        assert (report["gpu_mem_alloc"], report["gpu_mem_reserved"]) == (0, 0)
        text = dict(row.split() for row in (left / f"{name}.txt").read_text().splitlines())
        assert {key: float(value) for key, value in text.items()} == report
