"""The recipe of docs/reference/heartbeats.md, run word by word."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gonogo.contract.records import ExitRecord
from gonogo.rundir import RunDir

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/heartbeats.md"
INCONCLUSIVE = 12
PASSED = ["completed", "identity", "coverage", "no_halt_finding"]


def run_recipe(cwd: Path, environ: Mapping[str, str], scratch: Path) -> RunDir:
    """Run the page's shell blocks as they stand and check what they promise.

    Args:
        cwd: where the example trainer lies below docs/.
        environ: environment whose PATH finds `python` and `gonogo`.
        scratch: an empty folder for the run directory.
    """
    script = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.S))
    env = {**environ, "TMPDIR": str(scratch), "GONOGO_HOME": str(scratch / "home")}
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == INCONCLUSIVE, said
    (folder,) = scratch.glob("run_*")
    run = RunDir(folder)
    ended = ExitRecord.model_validate_json(run.exit.read_bytes())
    assert (ended.reason, ended.ended_by, ended.code) == ("completed", "trainer", 0)
    judged = subprocess.run(
        ["gonogo", "judge", str(folder), "--json"], cwd=cwd, env=env, capture_output=True, text=True
    )
    criteria: list[dict[str, Any]] = json.loads(judged.stdout)["criteria"]
    assert [row["id"] for row in criteria if row["outcome"] == "pass"] == PASSED, judged.stdout
    return run
