"""What does judging a long run cost? CPU and memory beside parsing the same lines.

    python -m bench.judging                      # 1.2 million lines: 50 000 steps, 8 ranks
    python -m bench.judging --steps 5000         # a tenth of it

Writes a run directory with heartbeats and the watcher's ticks, judges it in a process of its own,
and parses the same lines with `model_validate_json` in another; prints the ratio of CPU times.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.order import Order
from gonogo.contract.records import Tick, WatchStart
from gonogo.judge.directory import judge_directory
from gonogo.rundir import RunDir, file_seal, iter_lines, save_json
from gonogo.watch import fold, start, tick_digest, tick_line
from gonogo.watch.registry import detector_names

STEP_S = 1.0
EPOCH = 1_760_000_000.0


def write_run(folder: Path, *, steps: int, ranks: int) -> int:
    """Write a healthy run's directory and return its number of lines."""
    order = Order(
        experiment="exp_bench",
        run="run_bench",
        token=1,
        plan="bench",
        plan_digest="0" * 64,
        phase="production",
        steps=steps,
        world_size=ranks,
        profile="cpu",
        train={},
        detectors=detector_names(),
    )
    run_dir = RunDir(folder)
    save_json(run_dir.order, order.document())
    state, previous, lines = start(order), None, 0
    files = {rank: run_dir.heartbeat(rank).open("wb") for rank in range(ranks)}
    with run_dir.watch.open("wb") as ticks:
        for step in range(steps + 1):
            beats = {rank: _lines(rank, step) for rank in range(ranks)}
            for rank, rows in beats.items():
                files[rank].write(b"".join(rows))
                lines += len(rows)
            mono = 100.0 + step * STEP_S
            tick = Tick(
                n=step,
                mono=mono,
                ts=EPOCH + mono,
                upto={str(rank): files[rank].tell() for rank in beats},
            )
            state, _ = fold(state, tick, beats)
            begins = None
            if previous is None:
                sealed = file_seal(run_dir.order).sha256
                begins = WatchStart(run=order.run, attempt=1, order_sha256=sealed)
            tick = tick.model_copy(
                update={"lines": state.view.lines_seen(beats), "prev": previous, "start": begins}
            )
            line = tick_line(tick)
            previous = tick_digest(line)
            ticks.write(line)
    for file in files.values():
        file.close()
    return lines


def _lines(rank: int, step: int) -> list[bytes]:
    if step == 0:
        return [_line(rank, 1, 0, "boot", 0.0, section="boot")]
    base, mono = 3 * step - 1, step * STEP_S
    loss = 5.5 - 3.0 * min(1.0, step / 5000) + 0.001 * (step * 7 % 13)
    progress: dict[str, Any] = {
        "loss": loss, "grad_norm": 1.0 + 0.01 * (step % 9), "lr": 2e-4, "toks_per_s": 4096.0,
        "dt_fetch_s": 0.0005, "gpu_mem_alloc": 18_000.5, "gpu_mem_reserved": 27_000.0,
        "host_rss_mb": 4_000.25,
    }  # fmt: skip
    end = {
        "dt_step_s": STEP_S, "tokens": 4096,
        "step_sections": {"data": 0.01, "forward": 0.3, "backward": 0.6, "optimizer": 0.05,
                          "wait": 0.02},
    }  # fmt: skip
    return [
        _line(rank, base, step, "step_start", mono - 0.95, section="data"),
        _line(rank, base + 1, step, "progress", mono - 0.05, section="optimizer", **progress),
        _line(rank, base + 2, step, "step_end", mono, **end),
    ]


def _line(rank: int, seq: int, step: int, msg: str, mono: float, **fields: Any) -> bytes:
    line = {
        "v": 1, "ts": EPOCH + 100.0 + mono, "iso": "2025-10-09T08:53:20Z", "mono": 100.0 + mono,
        "pid": 100 + rank, "rank": rank, "boot": f"boot{rank}", "seq": seq, "step": step,
        "msg": msg, "section_seq": seq, **fields,
    }  # fmt: skip
    return json.dumps(line).encode() + b"\n"


def parse_all(folder: Path) -> None:
    """Parse every line, and keep none."""
    run_dir = RunDir(folder)
    for rank in run_dir.ranks():
        for raw in iter_lines(run_dir.heartbeat(rank)):
            Heartbeat.model_validate_json(raw)


PARTS = {"parse": parse_all, "judge": judge_directory}


def measured(what: str, folder: Path) -> tuple[float, float]:
    """Return CPU seconds and peak memory (MiB) of one part in a process of its own."""
    command = [sys.executable, "-m", "bench.judging", "--only", what, "--folder", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    cpu_s, peak_mb = json.loads(done.stdout)
    return cpu_s, peak_mb


def main() -> None:
    """Measure, and print one line a part."""
    parser = argparse.ArgumentParser(prog="bench.judging")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    if asked.only:
        before = time.process_time()
        PARTS[asked.only](asked.folder)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps([time.process_time() - before, peak_mb]))
        return
    with tempfile.TemporaryDirectory() as folder:
        lines = write_run(Path(folder), steps=asked.steps, ranks=asked.ranks)
        parse_s, parse_mb = measured("parse", Path(folder))
        judge_s, judge_mb = measured("judge", Path(folder))
    print(f"{lines} lines")
    for name, cpu_s, peak_mb in (("parse", parse_s, parse_mb), ("judge", judge_s, judge_mb)):
        print(f"{name} {cpu_s:7.1f} s CPU {1e6 * cpu_s / lines:6.1f} µs a line {peak_mb:5.0f} MiB")
    print(f"ratio {judge_s / parse_s:7.2f}")


if __name__ == "__main__":
    main()
