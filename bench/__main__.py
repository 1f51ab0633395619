"""What holds on this machine? Every benchmark that it can run, one after another.

    python -m bench              # or: make bench; about a quarter of an hour on a quiet machine
    python -m bench --list
    python -m bench --only attention,quality

Each runs in a process of its own; figures of a busy machine are not worth keeping. Those that train
for long run only when they are named. Exit 0 when all that could run did, else 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

NO_GPU = 3
SUITES = {
    "attention": "bench.attention --pairs 7",
    "attention-bf16": "bench.attention --pairs 5 --dtype bf16 --lengths 1024,2048,4096",
    "decode": "bench.attention --decode --pairs 60 --lengths 512,2048,4096,16384",
    "trainer": "bench.trainer --steps 14",
    "fleet": "bench.fleet",
    "gpu": "bench.gpu",
    "needle": "bench.needle --steps 700",
    "quality": "bench.quality --steps 1000 --global-seqs 1 --validation-batches 32",
}
"""Name → the arguments after `python -m`."""
LONG = {"needle": 15, "quality": 90}
"""Those that train for long, and their minutes on two quiet CPU cores."""


def main(arguments: list[str] | None = None) -> int:
    """Run them; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", allow_abbrev=False)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--list", action="store_true", help="list them, and run nothing")
    given = parser.parse_args(arguments)
    if given.list:
        for name, command in SUITES.items():
            print(f"{name:<15} python -m {command}" + f"  # {LONG[name]} min" * (name in LONG))
        return 0
    chosen = given.only.split(",") if given.only else [name for name in SUITES if name not in LONG]
    if unknown := {*chosen} - {*SUITES}:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(SUITES)}")
    failed = []
    for name in chosen:
        print(f"$ python -m {SUITES[name]}", flush=True)
        command = [sys.executable, "-m", *SUITES[name].split()]
        code = subprocess.run(command, check=False).returncode
        if code == NO_GPU and name == "gpu":
            print("no GPU here: its figures stay open")
        elif code:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
