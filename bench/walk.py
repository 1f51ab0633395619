"""Count the functions that one heartbeat passes, and the code that judges it, beside the goal.

    python -m bench.walk              # a few seconds

A function counts once, however often it is called. Lambdas and comprehensions count as a part of
the function that holds them. Only code below gonogo/ counts.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gonogo
from bench import judging
from gonogo.contract.records import Tick
from gonogo.judge.directory import judge_directory
from gonogo.rundir import RunDir, iter_lines, load_record
from gonogo.watch import fold, start

ROOT = Path(gonogo.__file__).parent
PACKAGES = ("timeline", "watch", "judge", "ledger")
STEPS, PROFILED = 300, 20
"""Steps of the folded run, and how many of the last ones are profiled: all windows are full."""
RANKS = 2
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


def walk_of_a_line(folder: Path) -> list[set[CodeType]]:
    """Return the functions that each of the last `step_end` lines of a run passes in the fold."""
    judging.write_run(folder, steps=STEPS, ranks=RANKS)
    run_dir = RunDir(folder)
    order = load_record(run_dir.order, judging.Order)
    assert order is not None
    files = {rank: list(iter_lines(run_dir.heartbeat(rank))) for rank in range(RANKS)}
    state, n, walks = start(order), 0, []
    for number in range(len(files[0])):
        for rank in range(RANKS):
            n += 1
            mono = 100.0 + n * judging.STEP_S / 6.0
            tick = Tick(n=n, mono=mono, ts=judging.EPOCH + mono)
            raw = files[rank][number]

            def step(tick: Tick = tick, rank: int = rank, raw: bytes = raw) -> None:
                fold(state, tick, {rank: [raw]})

            if b'"step_end"' in raw and number > len(files[0]) - 3 * PROFILED:
                walks.append(called(step))
            else:
                step()
    return walks


def size_of(package: str) -> tuple[int, int]:
    """Return the lines and modules of a package."""
    files = sorted((ROOT / package).rglob("*.py"))
    return sum(len(file.read_text().splitlines()) for file in files), len(files)


def print_row(what: str, found: str, goal: str) -> None:
    """Print one figure and its goal."""
    print(f"{what:56} {found:>20}   goal {goal}")


def main() -> None:
    """Count, and print one line a figure."""
    with tempfile.TemporaryDirectory() as folder:
        walks = sorted(walk_of_a_line(Path(folder) / "long"), key=len)
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
