"""Every file that a run leaves behind can be read later (R46).

The curves in `tb/` are read in `test_tensorboard`.
"""

import csv
import json
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa.attention import counters
from nsa.checkpoint import load_checkpoint
from nsa.model.statistics import COLUMNS

ENGINE = {"fused_adamw": False, "compile": False, "keep_checkpoints": 0, "profile_steps": 1}
STEPS = 4


@pytest.fixture(scope="module")
def left(helpers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with everything that can be asked for."""
    attention = {**helpers.TINY["attention"], "n_sel": 4}
    train = {"engine": ENGINE, "attention": attention, "steps": STEPS, "dtype": "bf16"}
    folder = tmp_path_factory.mktemp("left")
    order: Path = helpers.write_order(folder, train=train, checkpoint={"every_steps": STEPS})
    environ = {"NSA_MEM_DUMP_EVERY": "2", "NCCL_DEBUG": "WARN", "HOME": "/not/recorded"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("nsa.profiling._HOT_SPOTS", 1000)  # all rows: which are hot is chance
        helpers.build_trainer(order, environ).run()
    return order.parent


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_all_of_it_says_what_was_trained(left: Path, helpers: Any, tiny: dict[str, Any]) -> None:
    lines = helpers.read_lines(left)
    boot = lines[0]
    progress = [line for line in lines if line["msg"] == "progress"]

    env = json.loads((left / "env.json").read_text())
    assert (env["python"], env["torch"]) == (platform.python_version(), torch.__version__)
    assert (env["host"], env["device"], env["device_name"]) == (platform.node(), "cpu", None)
    assert env["platform"] == platform.platform()
    assert env["threads"] == 1
    assert env["nsa_env"] == {"NSA_MEM_DUMP_EVERY": "2"}
    assert env["env"] == {"NCCL_DEBUG": "WARN"}
    assert env["argv"]

    model = json.loads((left / "model.json").read_text())
    assert model["params"] == boot["params"] > 10_000
    assert model["config_digest"] == boot["config_digest"]

    assert (left / "dtypes_report.txt").read_text().splitlines() == [
        f"parameters torch.float32 {model['params']}",
        "compute bf16",
    ]

    training = _rows(left / "training.csv")
    assert [int(row["step"]) for row in training] == [1, 2, 3, 4]
    for row, line in zip(training, progress, strict=True):
        assert {name: float(row[name]) for name in row if name != "step"} == {
            name: line[name] for name in row if name != "step"
        }

    gates = _rows(left / "gate_health.csv")
    assert [(row["step"], row["layer"]) for row in gates] == [
        (str(step), str(layer)) for step in range(1, STEPS + 1) for layer in (0, 1)
    ]
    for line in progress:
        own = [row for row in gates if int(row["step"]) == line["step"]]
        assert sum(float(row["entropy"]) for row in own) / 2 == pytest.approx(line["gate_entropy"])
        assert max(float(row["max_share"]) for row in own) == pytest.approx(line["gate_max"])

    (first, second) = _rows(left / "k_stats.csv")
    assert (first["step"], first["layer"], second["layer"]) == ("1", "0", "1")
    assert set(first) == {"step", "layer", *COLUMNS}

    served = _rows(left / "fallback_counters.csv")
    assert set(served[0]) == set(counters.Served._fields)
    assert any(row["operation"] == "attention" for row in served)

    profile = json.loads((left / "profile.json").read_text())
    assert profile["steps"] == [3]
    by_time = (left / "profile.txt").read_text()
    assert [row["name"] for row in profile["hot_spots"] if row["name"] not in by_time] == []
    assert "..." not in by_time, "a name is broken off"

    (place,) = (left / "checkpoints").iterdir()
    saved = load_checkpoint(place, STEPS)
    assert saved.config["attention"]["n_sel"] == 4
    assert saved.config_digest == boot["config_digest"]
    assert saved.corpus


def test_memory_is_reported_before_and_after_every_so_many_steps(left: Path) -> None:
    names = {f"mem_{when}_step{step}" for when in ("pre", "post") for step in (2, 4)}
    found = {file.stem for file in left.glob("mem_*")}
    assert found == names
    for name in names:
        report = json.loads((left / f"{name}.json").read_text())
        assert report["host_peak_rss_mb"] >= report["host_rss_mb"] > 50
        assert (report["gpu_mem_alloc"], report["gpu_mem_reserved"]) == (0, 0)
        text = dict(row.split() for row in (left / f"{name}.txt").read_text().splitlines())
        assert {key: float(value) for key, value in text.items()} == report
