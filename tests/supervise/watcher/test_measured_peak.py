"""The peak that the preflight measured goes through one tick."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.rundir import RunDir
from gonogo.supervise.watcher.look import MeasuredPeak


def written(folder: Path, text: str) -> RunDir:
    run_dir = RunDir(folder)
    run_dir.preflight.parent.mkdir(parents=True, exist_ok=True)
    run_dir.preflight.write_text(text)
    return run_dir


def test_it_is_told_once_when_it_is_there(tmp_path: Path) -> None:
    peak = MeasuredPeak(RunDir(tmp_path))
    assert peak.look(0.0) is None
    written(tmp_path, '{"v": 1, "passed": true, "peak_flops": 9.1e11}')
    assert peak.look(5.0) == {"flops": 9.1e11, "of": None}
    assert peak.look(10.0) is None


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ('"peak_flops": 5e11, "peak_of": "cpu"', {"flops": 14e11, "of": "cpu"}),
        ('"peak_flops": 5e11, "peak_of": "cuda"', {"flops": 14e11, "of": None}),
        ('"peak_flops": null', None),
        ('"peak_flops": -1', None),
    ],
)
def test_several_nodes_reach_what_all_of_them_reach(
    tmp_path: Path, second: str, told: dict[str, object] | None
) -> None:
    """Held against one node's peak, every healthy run on several would be too fast."""
    text = '{"v": 1, "passed": true, "peak_flops": 9e11, "peak_of": "cpu"}'
    run_dir = written(tmp_path, text)
    peak = MeasuredPeak(run_dir, nodes=2)
    assert peak.look(0.0) is None
    run_dir.preflight_of(1).parent.mkdir()
    run_dir.preflight_of(1).write_text(f'{{"v": 1, "passed": true, {second}}}')
    assert peak.look(5.0) == told
    assert peak.look(10.0) is None


def test_a_watcher_after_the_first_tells_it_no_second_time(tmp_path: Path) -> None:
    peak = MeasuredPeak(written(tmp_path, '{"v": 1, "passed": true, "peak_flops": 9.1e11}'))
    peak.resume({"flops": 9.1e11})
    assert peak.look(0.0) is None


@pytest.mark.parametrize(
    "text",
    [
        "{", '{"passed": true}', '{"passed": true, "peak_flops": 0}',
        '{"passed": true, "peak_flops": NaN}',
    ],
)  # fmt: skip
def test_no_peak_is_told_as_none(tmp_path: Path, text: str) -> None:
    peak = MeasuredPeak(written(tmp_path, text))
    assert peak.look(0.0) is None
    assert peak.look(5.0) is None
