"""The bundled plan of the 125M model in small: its gates, conditions and answers, tiny steps."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gonogo.planning.source import bundled_plan

STEPS = {"sanity": 1, "synthetic": 5, "smoke": 12, "extended": 16, "production": 24}
WARMUP = 4
STEP_CV = 2.0
"""A pair of busy cores is not as steady as a pair of GPUs."""


def miniature(**changes: Any) -> dict[str, Any]:
    """Return the plan with a small model, few steps and short windows.

    Its gates, conditions, confirmation, remedies and approvals are the plan's own.
    """
    plan = bundled_plan("m7c-125m")
    plan["allow_faults"] = True
    plan["train"] = {"config": "demo", "seed": 1337, "dtype": "fp32"}
    for phase in plan["phases"]:
        phase["steps"] = STEPS[phase["name"]]
        if phase["data"] != "synthetic":
            phase["data"] = "local_text"
        if "checkpoint" in phase:
            phase["checkpoint"] = {"every_steps": phase["steps"] // 2, "every_s": 3600}
        for criterion in phase["gate"]:
            if "warmup_steps" in criterion:
                criterion["warmup_steps"] = WARMUP
            if "min_samples" in criterion:
                criterion["min_samples"] = phase["steps"] - WARMUP
            if criterion["id"] == "steady_steps":
                criterion["pass_below"] = STEP_CV
    return {**plan, **changes}


def script_of(folder: Path, second: Mapping[str, Any] = {}, **readings: Any) -> Path:
    """Write what two healthy A100s would say, or `readings`, and the second besides; its file."""
    devices = [
        {"uuid": f"GPU-{index}", "index": index, "name": "NVIDIA A100 80GB PCIe"}
        for index in (0, 1)
    ]
    healthy = {
        "util": 94.0,
        "mem_used_mb": 21_000.0,
        "throttle": [],
        "ecc_uncorrected": 0,
        "remap_pending": False,
        "nvlink_errors": 0,
        "temp_c": 61.0,
    }
    samples = [
        {"at_s": 0, "uuid": row["uuid"], **healthy, **readings, **(second if row["index"] else {})}
        for row in devices
    ]
    path = folder / "devices.json"
    path.write_text(json.dumps({"devices": devices, "samples": samples}))
    return path
