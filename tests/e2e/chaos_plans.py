"""The experiments that run while things are killed. Small programs without torch, of a few
kinds."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Any


class Kind(StrEnum):
    """What an experiment is, and so how it must end."""

    HEALTHY = "healthy"
    """Two phases, attached, with checkpoints: GO."""
    PRINTS = "prints"
    """One phase of a program that knows nothing of us: CONDITIONAL_GO, by what is waived."""
    FAILS = "fails"
    """It ends with 3 by itself: NO_GO, once."""


ENDS = {Kind.HEALTHY: "GO", Kind.PRINTS: "CONDITIONAL_GO", Kind.FAILS: "NO_GO"}

_ATTACHED = """
import json, sys, time
import gonogo.trainer

fails_at = int(sys.argv[1])
with gonogo.trainer.attach(identity={"params": 1000}) as beat:
    begun = 0
    if beat.resume_from is not None:
        begun = json.loads((beat.resume_from / "state.json").read_text())["step"]
    for step in range(begun + 1, beat.steps + 1):
        time.sleep(0.1)
        if step == fails_at:
            sys.exit(3)
        beat.step(loss=5 - step / 1000, tokens=64)
        halts = beat.should_halt()
        if halts or beat.should_save():
            with beat.section("checkpoint"):
                folder = beat.checkpoint_path()
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "state.json").write_text(json.dumps({"step": step}))
                beat.checkpoint(folder)
        if halts:
            break
"""
_PRINTS = """
import sys, time

for step in range(int(sys.argv[1])):
    time.sleep(0.1)
    print(f"iter {step}: loss {5 - step / 1000:.4f}", flush=True)
"""
_STEPS = 80
_FAILS_AT = 40


def plan_of(kind: Kind, folder: Path) -> dict[str, Any]:
    """Return the plan of an experiment of a kind; its script is written where it is not yet."""
    prints = kind is Kind.PRINTS
    script = folder / ("prints.py" if prints else "attached.py")
    if not script.exists():
        script.write_text(_PRINTS if prints else _ATTACHED)
    argument = _STEPS if prints else _FAILS_AT if kind is Kind.FAILS else 0
    phase = {"name": "one", "steps": _STEPS, "checkpoint": {"every_steps": 20, "every_s": 600}}
    finite = {"id": "finite", "metric": "loss", "aggregate": "all_finite"}
    phases = [phase if prints else {**phase, "gate": [finite]}]
    if kind is Kind.HEALTHY:
        phases.append({**phases[0], "name": "two"})
    return {
        "v": 1,
        "name": f"chaos-{kind}",
        "profile": "cpu",
        "workload": {"command": [sys.executable, script.name, str(argument)], "cwd": str(folder)},
        "train": {"lr": 0.1},
        "retry": {"infra": 4},
        "phases": phases,
        **({"waive": ["identity", "coverage"]} if prints else {}),
    }
