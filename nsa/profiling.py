"""Profile some steps: `profile.json` and `profile.txt` name the hot spots (R63).

`engine.profile_steps` steps, from the third on, on rank 0. Times are ranked by the GPU where there
is one. On a GPU the sections are NVTX ranges too.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from nsa.sections import Sections

_SKIPPED_STEPS = 2  # allocations and caches settle
_HOT_SPOTS = 30
_NAME_CHARS = 120
"""`autograd::engine::evaluate_function: …` takes 55 alone, after which torch breaks names off."""
_LABEL = "section:"


class StepProfiler:
    """The profile of one rank; where no steps are asked for, nothing happens."""

    def __init__(self, run_dir: Path, steps: int, device: torch.device, sections: Sections) -> None:
        self._run_dir, self._left, self._device = run_dir, steps, device
        self._sections = sections
        self._until_start = _SKIPPED_STEPS
        self._profile: Any = None
        self._steps: list[int] = []

    def before_step(self, step: int) -> None:
        """Start when it is time."""
        if not self._left:
            return
        if self._until_start:
            self._until_start -= 1
            return
        if self._profile is None:
            activities = [ProfilerActivity.CPU]
            if self._device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities, acc_events=True)
            self._profile.__enter__()
            self._sections.label = _label_on_gpu if self._device.type == "cuda" else _label
        self._steps.append(step)
        self._left -= 1

    def after_step(self) -> None:
        """Write the files after the last step to profile."""
        if not self._left:
            self.close()

    def close(self) -> None:
        """Write the files now: a run may end before it has as many steps as it was to profile."""
        if self._profile is None:
            return
        self._left = 0
        self._profile.__exit__(None, None, None)
        self._sections.label = None
        averages = self._profile.key_averages()
        self._profile = None
        report = {"steps": self._steps, **summarise(averages)}
        by_time = averages.table(
            sort_by=_ranked_by(averages), row_limit=_HOT_SPOTS, max_name_column_width=_NAME_CHARS
        )
        try:
            (self._run_dir / "profile.txt").write_text(by_time, encoding="utf-8")
            (self._run_dir / "profile.json").write_text(
                json.dumps(report, indent=1) + "\n", encoding="utf-8"
            )
        except OSError as error:
            print(f"no profile: {error}", file=sys.stderr)


def summarise(averages: Iterable[Any]) -> dict[str, Any]:
    """Seconds of every section, and the operators with the most time (GPU's, else CPU's)."""
    sections: dict[str, float] = {}
    spots = []
    for row in averages:
        if row.key.startswith(_LABEL):
            sections[row.key.removeprefix(_LABEL)] = round(row.cpu_time_total / 1e6, 6)
            continue
        spots.append((row.self_device_time_total, row.self_cpu_time_total, row))
    on_device = any(device for device, _, _ in spots)
    column = 0 if on_device else 1  # as `_ranked_by`
    total = sum(spot[column] for spot in spots) or 1.0
    spots.sort(key=lambda spot: spot[column], reverse=True)
    return {
        "sections": sections,
        "hot_spots": [
            {
                "name": row.key,
                "calls": row.count,
                "self_cpu_s": round(cpu / 1e6, 6),
                "self_device_s": round(device / 1e6, 6),
                "share": round((device if on_device else cpu) / total, 4),
            }
            for device, cpu, row in spots[:_HOT_SPOTS]
        ],
    }


def _ranked_by(averages: Iterable[Any]) -> str:
    """The column that says where the time went: the GPU's, where it has done anything."""
    on_device = any(row.self_device_time_total for row in averages)
    return "self_device_time_total" if on_device else "self_cpu_time_total"


def _label(section: str) -> AbstractContextManager[Any]:
    return record_function(f"{_LABEL}{section}")


@contextmanager
def _label_on_gpu(section: str) -> Iterator[None]:
    with torch.cuda.nvtx.range(f"{_LABEL}{section}"), _label(section):
        yield
