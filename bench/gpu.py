"""Is NSA right and fast on this GPU?

Run from the repository root on a machine with a CUDA device; Python, PyTorch, Triton, numpy and
PyYAML are enough, and a C compiler, which Triton asks for:

    python -m bench.gpu                              # everything, nine minutes at most
    python -m bench.gpu --only correctness,attention
    python -m bench.gpu --device cpu                 # a smoke test: tiny, and no figure of a GPU

Every row goes to `$OUT/gpu.jsonl` (else `./gpu.jsonl`, or `--out FOLDER`) the moment it is
measured, so an early end loses nothing. Each stage is a process with a deadline
(bench/on_gpu/plan.py); if a kernel crashes or hangs, the stage resumes with what comes next. In
order of value:

- the machine and its ceilings (copy, bf16 product); all bf16 kernels compiled at once;
- correctness: against the plain equations, against the torch backend at 8k, 32k and 64k, and
  repeated bit by bit;
- attention forward and forward + backward at 2k to 64k, eager and as a CUDA graph, beside
  FLASH_ATTENTION and cuDNN, with the break-even;
- a table of kernels; real steps of the trainer at 2 and 32 sequences; tiles around those of the
  table; and the proofs for `backend="auto"`.

After every stage `gpu.md` shows the same as tables, with failures and omissions.

Exit codes: 0 every planned comparison held · 1 a comparison failed or was not made · 2 bad
arguments · 3 no GPU. Without the stage `correctness` the code is 0.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

if not __package__:  # named as a file
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.on_gpu.plan import (
    BAD_ARGUMENTS,
    GRACE_S,
    NO_GPU,
    STAGES,
    TOTAL_S,
    Stage,
    allowance_s,
    exit_code,
    hangs,
)

_ROOT = Path(__file__).parents[1]
_KILL_S = 2.0
_LOOK_S = 1.0


def _run_stage(name: str, device: str, file: Path, run: str, limit_s: float) -> None:
    """The process of one stage."""
    began = time.monotonic()
    import torch

    from bench.on_gpu.rows import Context, begun, read_rows

    torch.manual_seed(0)
    if device == "cpu":
        torch.set_num_threads(1)
    context = Context(
        device=torch.device(device),
        file=file,
        run=run,
        left_s=lambda: limit_s - (time.monotonic() - began),
        begun=frozenset(begun(read_rows(file, run))),
    )
    importlib.import_module(f"bench.on_gpu.{name}").run(context)


def _command(stage: Stage, given: argparse.Namespace, run: str, limit_s: float) -> list[str]:
    command = [sys.executable, "-m", "bench.gpu", "--stage", stage.name, "--run", run]
    command += ["--limit", f"{limit_s:.1f}", "--device", given.device]
    return [*command, "--out", str(given.out)]


def _start(stage: Stage, given: argparse.Namespace, file: Path, limit_s: float) -> dict[str, Any]:
    """Have a stage done by a process of its own; how it ended."""
    began = time.monotonic()
    process = subprocess.Popen(_command(stage, given, given.run, limit_s), cwd=_ROOT)
    code = _await(process, file, given.run, began + limit_s + GRACE_S)
    seconds = round(time.monotonic() - began, 1)
    return {"stage": stage.name, "limit_s": round(limit_s, 1), "seconds": seconds, "code": code}


def _await(process: subprocess.Popen[bytes], file: Path, run: str, deadline: float) -> int | None:
    """Its exit code; killed at the deadline (None) or at that of the thing that it measures."""
    from bench.on_gpu.rows import read_rows

    seen, since = -1, time.monotonic()
    while (left_s := deadline - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(_LOOK_S, left_s))
        rows = read_rows(file, run)
        if len(rows) != seen:
            seen, since = len(rows), time.monotonic()
        if hangs(rows[-1] if rows else None, time.monotonic() - since):
            break
    process.kill()
    # One that the GPU's driver holds is left behind.
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(_KILL_S)
        return code if left_s > 0 else None
    return None


def _do(stage: Stage, given: argparse.Namespace, file: Path, spent_s: Callable[[], float]) -> None:
    """Have a stage done, by another process again where one broke down at something of it."""
    from bench.on_gpu.rows import append_row, begun, read_rows

    before = len(begun(read_rows(file, given.run)))
    while limit_s := allowance_s(stage, spent_s(), given.total):
        ended = _start(stage, given, file, limit_s)
        done = begun(read_rows(file, given.run))
        broke_at = done[-1] if ended["code"] != 0 and len(done) > before else None
        append_row(file, given.run, "stage", left_out=False, **ended, broke_at=broke_at)
        if broke_at is None or ended["code"] is None:
            return
        print(
            f"Stage {stage.name} broke down at: {broke_at}. It continues without that.", flush=True
        )
        before = len(done)
        stage = replace(stage, limit_s=limit_s - float(ended["seconds"]))
    append_row(file, given.run, "stage", stage=stage.name, left_out=True)


def _stages(only: str | None, device: str) -> list[Stage]:
    names = {stage.name for stage in STAGES} if only is None else set(only.split(","))
    if unknown := names - {stage.name for stage in STAGES}:
        known = ", ".join(stage.name for stage in STAGES)
        print(f"no stage {', '.join(sorted(unknown))}; there are {known}", file=sys.stderr)
        raise SystemExit(BAD_ARGUMENTS)
    return [s for s in STAGES if s.name in names and (device != "cpu" or s.without_gpu)]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--only", help="stages, separated by commas")
    parser.add_argument("--total", type=float, default=TOTAL_S, help="seconds for everything")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a smoke test")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--run", default=secrets.token_hex(4), help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=TOTAL_S, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    given.out = given.out.resolve()
    return given


def main(arguments: list[str] | None = None) -> int:
    """Measure stage by stage; returns the exit code."""
    began = time.monotonic()
    given = _parse(arguments)
    file = given.out / "gpu.jsonl"
    if given.stage:
        _run_stage(given.stage, given.device, file, given.run, given.limit)
        return 0
    import torch

    from bench.on_gpu.report import report
    from bench.on_gpu.rows import append_row, read_rows

    if given.device != "cpu" and not torch.cuda.is_available():
        print("No CUDA device here: nothing was measured, and no GPU figure is claimed.")
        return NO_GPU
    stages = _stages(given.only, given.device)
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        file.open("ab").close()
    except OSError as error:
        print(f"Nothing was measured: no row can be written to {file}: {error}", file=sys.stderr)
        return BAD_ARGUMENTS
    compared = any(stage.name == "correctness" for stage in stages)
    planned = []
    if compared:
        from bench.on_gpu.correctness import comparisons  # torch is imported for nothing else here

        planned = list(comparisons(torch.device(given.device)))
    text = "Nothing was measured."
    for stage in stages:
        _do(stage, given, file, lambda: time.monotonic() - began)
        text = report(read_rows(file, given.run), planned)
        file.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)
    if not compared:
        return 0
    code = exit_code(read_rows(file, given.run), planned)
    append_row(file, given.run, "end", seconds=round(time.monotonic() - began, 1), code=code)
    return code


if __name__ == "__main__":
    sys.exit(main())
