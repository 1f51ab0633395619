"""What an unchanged program logs: names and numbers, their steps, section log, and what fails.

The packages wandb, MLflow, trackio and tensorboardX are stood in for by modules of the same names
and shapes; TensorBoard's own writer is used where it is installed.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gonogo.observer import hooks
from gonogo.observer.own_numbers import OwnNumbers, Sum, numbers_in
from gonogo.observer.training import Training
from gonogo.trainer.encoding import MOST_NAMES
from tests.observer.observed import Observed, Parent
from tests.trainer.runs import said

STAND_INS = {
    "wandb/__init__.py": "from .sdk.wandb_run import Run\nlog = Run().log\n",
    "wandb/sdk/__init__.py": "",
    "wandb/sdk/wandb_run.py": (
        "class Run:\n    def log(self, data, step=None, commit=None):\n        assert data\n"
    ),
    "trackio/__init__.py": "from .run import Run\ndef log(metrics): Run().log(metrics=metrics)\n",
    "trackio/run.py": "class Run:\n    def log(self, metrics, step=None): pass\n",
    "tensorboardX/__init__.py": "from .writer import SummaryWriter\n",
    "tensorboardX/writer.py": (
        "class SummaryWriter:\n"
        "    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None): pass\n"
        "    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None): pass\n"
    ),
    "mlflow/__init__.py": "from .tracking.fluent import log_metric, log_metrics\n",
    "mlflow/tracking/__init__.py": "",
    "mlflow/tracking/client.py": (
        "class MlflowClient:\n"
        "    def log_metric(self, run_id, key, value, timestamp=None, step=None): pass\n"
        "    def log_batch(self, run_id, metrics=(), params=(), tags=()): pass\n"
    ),
    "mlflow/tracking/fluent.py": (
        "from types import SimpleNamespace\n"
        "from .client import MlflowClient\n"
        "def log_metric(key, value, step=None): MlflowClient().log_metric('r', key, value)\n"
        "def log_metrics(metrics, step=None):\n"
        "    rows = [SimpleNamespace(key=name, value=metrics[name]) for name in metrics]\n"
        "    MlflowClient().log_batch('r', rows)\n"
    ),
}
"""Modules in place of third-party packages: file → text."""


def test_each_tracker_is_heard_with_the_step_that_it_logs_after(
    tmp_path: Path, parent: Parent
) -> None:
    for name, text in STAND_INS.items():
        file = tmp_path / "packages" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = Observed(tmp_path, "logs", parent, PACKAGES=str(tmp_path / "packages"))
    assert found.code == 0, found.output
    rows = {row.step: row.user for row in said(found.lines(), "metrics")}
    assert list(rows) == list(range(7))
    assert rows[0] == {"before": 1.0}
    assert rows[6] == {
        "wandb/loss": pytest.approx(found.told[-1]),
        "wandb/deep/n": 6.0,
        "board": 6.0,
        "group/a": 6.0,
        "mlflow": 6.0,
        "also": 6.0,
        "trackio": 6.0,
        "in_backward": 6.0,
    }
    assert found.losses() == pytest.approx(found.told)


def test_the_real_tensorboard_is_heard(tmp_path: Path, parent: Parent) -> None:
    lines = Observed(tmp_path, "logs_to_tensorboard", parent, FOLDER=str(tmp_path)).lines()
    assert {row.step: row.user for row in said(lines, "metrics")}[6] == {"n": 6.0}


def test_numbers_are_read_and_nothing_else() -> None:
    data = {
        "int": 3,
        "big": 10**400,
        "nan": math.nan,
        "numpy": np.float32(0.5),
        "arrays": np.ones(2),
        "word": "x",
        "true": True,
        "none": None,
        "a": {"b": {"c": 1.0}},
        7: 7,
        "new\nline": 1,
        "x" * 121: 1,
    }
    found = {name: row.total for name, row in numbers_in(data).items()}
    assert math.isnan(found.pop("nan"))
    assert found == {"int": 3.0, "numpy": 0.5, "a/b/c": 1.0, "7": 7.0}


def test_names_are_bounded_and_the_program_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    own = OwnNumbers()
    for step in (1, 2):
        own.note(step, {f"m{n}": Sum(1.0) for n in range(MOST_NAMES + 2)})
    assert {step: len(rows) for step, rows in own.take()} == {1: MOST_NAMES, 2: MOST_NAMES}
    assert capsys.readouterr().err.count("gonogo:") == 1
    assert own.take() == []


class Rank:
    """As much of a rank as trackers use; `rows` are the sections it was in."""

    is_ours, may_log, logged_step = True, True, 4

    def __init__(self) -> None:
        self.section: str | None = "backward"
        self.rows: list[str | None] = []

    def enter(self, section: str | None) -> None:
        self.section = section
        self.rows.append(section)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for wandb's module that is listened to, with its rank and what was noted."""
    training, rank, own = Training(), Rank(), OwnNumbers()
    training.rank = rank  # type: ignore[assignment]
    monkeypatch.setattr("gonogo.observer.training.OWN", own)
    monkeypatch.setattr(hooks, "training", training)
    module = ModuleType("wandb.sdk.wandb_run")

    class Run:
        def log(self, data: Any, step: Any = None) -> Any:
            calls.append(rank.section)
            if data == {}:
                raise ValueError("nothing to log")
            if data.get("again"):
                self.log({"inner": 1})
            return "logged"

    calls: list[str | None] = []
    module.Run = Run  # type: ignore[attr-defined]
    hooks.listen(module)
    return SimpleNamespace(run=Run(), training=training, rank=rank, own=own, calls=calls)


def test_a_call_is_section_log_while_it_lasts(heard: Any) -> None:
    assert heard.run.log({"acc": 1, "again": 1}) == "logged"
    assert heard.calls == ["log", "log"]
    assert heard.rank.rows == ["log", "backward"]
    assert heard.own.take() == [(4, {"acc": 1.0, "again": 1.0})], "the inner call counts no more"


def test_an_error_of_the_tracker_is_the_programs(heard: Any) -> None:
    with pytest.raises(ValueError, match="nothing to log"):
        heard.run.log({})
    assert heard.rank.rows == ["log", "backward"]
    with pytest.raises(TypeError):
        heard.run.log()
    assert not heard.training.is_over
