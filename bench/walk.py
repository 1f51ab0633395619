"""Count the functions that one heartbeat passes, and the code that judges it, beside the goal.

    python -m bench.walk              # a few seconds

A function counts once, however often it is called. Lambdas and comprehensions count as a part of
the function that holds them. Only code below gonogo/ counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gonogo
from gonogo.contract.order import Order
from gonogo.contract.records import Tick
from gonogo.judge.directory import judge_directory
from gonogo.watch.fold import fold, start
from gonogo.watch.registry import detector_names

ROOT = Path(gonogo.__file__).parent
PACKAGES = ("timeline", "watch", "judge", "ledger")
STEPS, PROFILED = 300, 20
"""Steps of the folded run, and how many of the last ones are profiled: all windows are full."""
RANKS = 2
STEP_S = 1.0
EPOCH = 1_760_000_000.0
STALLED = ROOT.parent / "tests" / "data" / "runs" / "stalled"
FOLD_GOAL, JUDGE_GOAL, SIZE_GOAL = "40 / 12", "400", "15000 / 80"


def called(work: Callable[[], Any]) -> set[CodeType]:
    """Return the functions below gonogo/ that a piece of work calls."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    inside = str(ROOT)
    return {
        code
        for code in seen
        if code.co_filename.startswith(inside) and not code.co_name.startswith("<")
    }


def modules_of(functions: set[CodeType]) -> int:
    """Return the number of modules that hold the functions."""
    return len({code.co_filename for code in functions})


def walk_of_a_line() -> list[set[CodeType]]:
    """Return the functions that each of the last `step_end` lines of a run passes in the fold."""
    order = Order(
        experiment="exp_bench",
        run="run_bench",
        token=1,
        plan="bench",
        plan_digest="0" * 64,
        phase="production",
        steps=STEPS,
        world_size=RANKS,
        profile="cpu",
        train={},
        detectors=detector_names(),
    )
    rows = [(step, row) for step in range(STEPS + 1) for row in range(len(_lines(0, step)))]
    state, n, walks = start(order), 0, []
    for number, (step, row) in enumerate(rows):
        for rank in range(RANKS):
            n += 1
            mono = 100.0 + n * STEP_S / 6.0
            tick = Tick(n=n, mono=mono, ts=EPOCH + mono)
            raw = _lines(rank, step)[row]

            def take(tick: Tick = tick, rank: int = rank, raw: bytes = raw) -> None:
                fold(state, tick, {rank: [raw]})

            if b'"step_end"' in raw and number > len(rows) - 3 * PROFILED:
                walks.append(called(take))
            else:
                take()
    return walks


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


def size_of(package: str) -> tuple[int, int]:
    """Return the lines and modules of a package."""
    files = sorted((ROOT / package).rglob("*.py"))
    return sum(len(file.read_text().splitlines()) for file in files), len(files)


def print_row(what: str, found: str, goal: str) -> None:
    """Print one figure and its goal."""
    print(f"{what:56} {found:>20}   goal {goal}")


def main() -> None:
    """Count, and print one line a figure."""
    walks = sorted(walk_of_a_line(), key=len)
    judged = called(lambda: judge_directory(STALLED))
    low, high = walks[0], walks[-1]
    span = f"{len(low)}-{len(high)} / {modules_of(low)}-{modules_of(high)}"
    print_row("functions / modules of one step_end line", span, FOLD_GOAL)
    print_row(
        "functions / modules of judging 86 heartbeats",
        f"{len(judged)} / {modules_of(judged)}",
        JUDGE_GOAL,
    )
    sizes = {package: size_of(package) for package in PACKAGES}
    for package, (count, files) in sizes.items():
        print_row(f"lines / modules of gonogo/{package}", f"{count} / {files}", "")
    whole = [sum(row[column] for row in sizes.values()) for column in (0, 1)]
    print_row("lines / modules of all four", f"{whole[0]} / {whole[1]}", SIZE_GOAL)


if __name__ == "__main__":
    main()
