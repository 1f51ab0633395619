"""Does the report read the very files that the trainer writes? Names and columns are said twice.

The trainer knows no service and the service no torch, so only a test sees both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from nsa.artifacts import RunArtifacts  # noqa: E402 - torch may be missing
from nsa.attention import counters  # noqa: E402
from nsa.profiling import summarise  # noqa: E402
from nsa.settings import load_settings  # noqa: E402
from service.report.health import COLUMNS, FILES, SERVED, read_layers, read_served  # noqa: E402
from service.report.profile import read_profile  # noqa: E402
from worker.shipping.evidence import TOLD_AT_THE_END  # noqa: E402


@dataclass
class Average:
    """A row of torch's `key_averages()`, times in µs."""

    key: str
    count: int
    self_cpu_time_total: float
    self_device_time_total: float
    cpu_time_total: float


def test_the_hot_spots_are_read() -> None:
    rows = [
        Average("section:forward", 2, 0.0, 0.0, 1_500_000.0),
        Average("aten::mm", 4, 250_000.0, 750_000.0, 0.0),
        Average("aten::add", 8, 100_000.0, 250_000.0, 0.0),
    ]
    found = read_profile(json.dumps({"steps": [3, 4], **summarise(rows)}).encode(), None)
    assert found is not None
    assert found.table is not None
    assert found.table.sections == {"forward": 1.5}
    spot = found.table.hot_spots[0]
    assert (spot.name, spot.calls, spot.self_cpu_s, spot.self_device_s, spot.share) == (
        "aten::mm", 4, 0.25, 0.75, 0.75,
    )  # fmt: skip


def test_gates_selection_and_paths_are_read_by_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "_counts", counters.Counter())
    counters.count("attention", "torch", "flash kernels need CUDA, not cpu")
    settings = load_settings({"NSA_TB_DISABLE": "1"})
    files = RunArtifacts(tmp_path, settings, torch.device("cpu"))
    fields = dict.fromkeys(("loss", "lr", "grad_norm", "toks_per_s", "dt_fetch_s"), 1.0)
    files.log_step({"step": 1, **fields}, [(0.9, 0.4), (0.8, 0.5)], [(6.5, 0.8, 0.5)])
    files.close()
    layers = read_layers((tmp_path / name).read_text().splitlines() for name in FILES)
    assert [row.layer for row in layers] == [0, 1]
    assert {name: row.last for name, row in layers[0].columns.items()} == dict(
        zip(COLUMNS, (0.9, 0.4, 6.5, 0.8, 0.5), strict=True)
    )
    (served,) = read_served((tmp_path / SERVED).read_text().splitlines())
    assert (served.operation, served.path, served.calls) == ("attention", "torch", 1)
    assert served.reason == "flash kernels need CUDA, not cpu"
    written = {path.name for path in tmp_path.glob("*.csv")}
    assert {*FILES, SERVED} <= written & set(TOLD_AT_THE_END)
