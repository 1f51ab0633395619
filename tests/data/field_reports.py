"""What did the field reports' runs leave? Directories of the predecessor's lines, from their figures.

The reports are known by their figures alone, so these are syntheses: each says what it assumes.
The predecessor logged at step 1 and at every 20th, on rank 0 only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.data.make_runs import EPOCH, Line, predecessor_line, save_lines

PLAN, PHASE, STEPS = "m7c-125m", "smoke", 300
LOG_EVERY = 20
LOADER_READY_S = 11.3
FIRST_LOSS = 5.6877
LOOKED_AFTER_S = 3600.0
"""When the directory is looked at: an hour after its last line."""

Make = Callable[[], list[Line]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldReport:
    """One run of a report, what the report made of it, and the lines that its figures imply."""

    name: str
    report: str
    concluded: str
    figures: str
    assumed: str
    make: Make

    def save(self, parent: Path) -> tuple[Path, float]:
        """Write the directory and return it with the clock at which it is looked at."""
        lines = self.make()
        save_lines(parent / self.name, lines)
        return parent / self.name, max(line["ts"] for line in lines) + LOOKED_AFTER_S


def _started(reserved_mb: int) -> list[Line]:
    """Boot (610 MB reserved, 298 MB allocated) and the loader, ready after 11.3 s."""
    return [
        predecessor_line(0.0, 0, "boot"),
        predecessor_line(
            LOADER_READY_S, 0, "fineweb_loader_ready", dt_fetch_s=LOADER_READY_S,
            gpu_mem_reserved=reserved_mb,
        ),
    ]  # fmt: skip


def _trained(*, tokens: int, tok_s: float, reserved_mb: int, until: int = STEPS) -> list[Line]:
    """Lines of a run at a steady speed: `tokens` a step at `tok_s` tokens per second."""
    lines = _started(reserved_mb)
    step_s = tokens / tok_s
    for step in (1, *range(LOG_EVERY, until + 1, LOG_EVERY)):
        second = LOADER_READY_S + step * step_s
        fields: dict[str, Any] = {
            "loss": FIRST_LOSS * math.exp(-(step - 1) / 400), "toks_per_s": tok_s,
            "dt_fetch_s": 0.0005, "grad_norm": 0.0, "gpu_mem_reserved": reserved_mb,
        }  # fmt: skip
        lines.append(predecessor_line(second, step, "progress", **fields))
        lines.append(predecessor_line(second + 0.001, step, "step_end"))
    return lines


def _hung() -> list[Line]:
    """Step 1 and then nothing but the stall dump's own heartbeats, for half an hour (R73)."""
    lines = _trained(tokens=4096, tok_s=37.0, reserved_mb=27_000, until=1)
    last = lines[-1]["ts"] - EPOCH
    lines += [predecessor_line(last + 180.0 * beat, 4, "beat") for beat in range(1, 11)]
    return lines


def _marked_ready_twice() -> list[Line]:
    text = (
        "Expected to mark a variable ready only once. Parameter at index 192 with name"
        " blocks.11.mlp.fc2.weight has been marked as ready twice."
    )
    error = {"type": "RuntimeError", "text": text, "gpu_mem_reserved": 18_900}
    return [*_started(18_900), predecessor_line(160.0, 0, "error", **error)]


TOY = "steps of 2 sequences of 128 tokens (the reports give the length, not the batch)"

FIELD_REPORTS = (
    FieldReport(
        name="runbook_125m",
        report="runbook, 50k",
        concluded="45 to 55 tokens/s expected on PCIe Gen4 (runbook); at 38, 50 000 steps promised"
        " in 35 to 40 h (50k)",
        figures="125M, 4096 tokens a step, 38 tokens/s, 18.9 GB a GPU",
        assumed="a steady pace over the 300 steps of the smoke phase",
        make=lambda: _trained(tokens=4096, tok_s=38.0, reserved_mb=18_900),
    ),
    FieldReport(
        name="a100_hang",
        report="A100",
        concluded="hang at step 5, put down to the sequential prefill; CONDITIONAL GO",
        figures="125M, hang at step 5",
        assumed="37 tokens/s until then; beats at step 4 every 180 s, as its stall dump wrote them",
        make=_hung,
    ),
    FieldReport(
        name="a100_125m",
        report="A100",
        concluded="CONDITIONAL GO (stable through 100 steps, 50 tokens/s, no memory leak)",
        figures="125M, 110 to 120 s a step, 37 tokens/s, 27 GB a GPU",
        assumed="a steady pace over the 300 steps of the smoke phase",
        make=lambda: _trained(tokens=4096, tok_s=37.0, reserved_mb=27_000),
    ),
    FieldReport(
        name="ddp_crash",
        report="DDP",
        concluded="DDP cannot train this model with gradient checkpointing; FSDP",
        figures='"marked as ready twice" (index 192) in the first backward, 160 s after launch',
        assumed="the message, which stood on the console, as an `error` line",
        make=_marked_ready_twice,
    ),
    FieldReport(
        name="50k_toy",
        report="50k",
        concluded="more than 970 tokens/s, celebrated",
        figures="a toy of 128 dimensions (`CONFIG` not exported), 970 tokens/s",
        assumed=TOY,
        make=lambda: _trained(tokens=256, tok_s=970.0, reserved_mb=610),
    ),
    FieldReport(
        name="v4_toy",
        report="v4",
        concluded="847 tokens/s as the performance of DDP",
        figures="254 499 parameters (1 layer, fp32, length 128; `CONFIG` unset), 847 tokens/s",
        assumed=TOY,
        make=lambda: _trained(tokens=256, tok_s=847.0, reserved_mb=610),
    ),
)
