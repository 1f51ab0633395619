"""Is NSA right and fast on this GPU?

Python, PyTorch, Triton, numpy and PyYAML are enough, and a C compiler, which Triton asks for:

    python -m bench.gpu                              # everything, nine minutes at most
    python -m bench.gpu --only correctness,attention
    python -m bench.gpu --device cpu                 # a smoke test: tiny, and no figure of a GPU

Each stage is a process with a deadline, in order of value:

- `machine`: versions;
- `correctness`: against the plain equations, against the torch backend at 8k to 64k, and repeated;
- `attention`: forward and backward at 2k to 64k beside flash and cuDNN, with the break-even;
- `trainer_steps`: real steps of the trainer at 2 and 32 sequences;
- `kernels`: the time of each kernel, and tiles around those of the table.

Every row goes to `gpu.jsonl` in `--out FOLDER` (else `$OUT` or `.`) the moment it is measured.
`gpu.md` shows the same as tables.

Exit codes: 0 every planned comparison held · 1 one failed or was not made · 2 bad arguments ·
3 no GPU. Without the stage `correctness` the code is 0.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.gpu.attention import break_evens, tables
from bench.gpu.correctness import comparisons
from bench.gpu.rows import Context, append_row, read_rows

ROOT = Path(__file__).parents[2]
NO_GPU = 3
TOTAL_S, GRACE_S = 530.0, 10.0
"""For everything, and what a stage gets beyond its deadline to come to its end."""
STAGES = {
    "machine": 35.0,
    "correctness": 120.0,
    "attention": 120.0,
    "trainer_steps": 150.0,
    "kernels": 100.0,
}
"""Stage → its deadline in seconds, start of Python included."""

Row = Mapping[str, Any]


def run_stage(name: str, context: Context) -> None:
    """Measure one stage in this process."""
    torch.manual_seed(0)
    if context.tiny:
        torch.set_num_threads(1)
    importlib.import_module(f"bench.gpu.{name}").run(context)


def _start_stage(name: str, device: str, out: Path, limit_s: float) -> None:
    """Run one stage in a process of its own, and write how it ended."""
    command = [sys.executable, "-m", "bench.gpu", "--stage", name, "--device", device]
    command += ["--out", str(out), "--total", f"{limit_s:.1f}"]
    process, code = subprocess.Popen(command, cwd=ROOT), None
    try:
        code = process.wait(limit_s + GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the GPU's driver may hold it
            process.wait(2)
    append_row(out / "gpu.jsonl", "stage", stage=name, code=code)


def exit_code(rows: Iterable[Row], planned: Collection[str]) -> int:
    """Return 0 only if every planned comparison was made, and all that were made held."""
    held = {row["name"]: row["right"] is True for row in rows if row["row"] == "correctness"}
    return 0 if {*planned} <= {*held} and all(held.values()) else 1


def report(rows: Sequence[Row], planned: Collection[str]) -> str:
    """Return the rows as Markdown."""
    lines = ["# NSA on this machine"]
    made = {row["name"] for row in rows if row["row"] == "correctness"}
    lines += [f"- not made: {name}" for name in planned if name not in made]
    for title, table in tables(rows).items():
        lines += ["", f"## {title}", "", *_table(table)]
    lines += ["", *break_evens(rows)]
    for kind in dict.fromkeys(row["row"] for row in rows if row["row"] != "attention"):
        lines += ["", f"## {kind}", "", *_table([row for row in rows if row["row"] == kind])]
    lines += [f"- {row}" for row in rows if row["row"] == "attention" and "error" in row]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name != "row"]
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(str(row.get(name, '–')) for name in names)} |"


def main(arguments: list[str] | None = None) -> int:
    """Measure stage by stage; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--only", default=",".join(STAGES), help="stages, separated by commas")
    parser.add_argument("--total", type=float, default=TOTAL_S, help="seconds for everything")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a smoke test")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    stages, out, until = given.only.split(","), given.out.resolve(), time.monotonic() + given.total
    device, file = torch.device(given.device), out / "gpu.jsonl"
    if given.stage:
        run_stage(given.stage, Context(device=device, file=file, until=until))
        return 0
    if unknown := {*stages} - {*STAGES}:
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    if device.type != "cpu" and not torch.cuda.is_available():
        print("No CUDA device here: nothing was measured, and no GPU figure is claimed.")
        return NO_GPU
    out.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    planned = list(comparisons(device)) if "correctness" in stages else []
    text = "Nothing was measured."
    for name in STAGES:
        left_s = until - time.monotonic()
        if name in stages and left_s > GRACE_S:
            _start_stage(name, given.device, out, min(STAGES[name], left_s))
            text = report(read_rows(file), planned)
            (out / "gpu.md").write_text(text)
    print(text)
    return exit_code(read_rows(file), planned)


if __name__ == "__main__":
    sys.exit(main())
