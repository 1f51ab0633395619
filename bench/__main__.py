"""What holds on this machine? Every benchmark that it can run, one after another.

    python -m bench              # or: make bench; about a quarter of an hour on a quiet machine
    python -m bench --list
    python -m bench --only attention,gpu
    python -m bench --all        # with those that train for hours: quality and needle

Each runs in a process of its own and prints the command that repeats it alone; figures of a busy
machine are not worth keeping. `compare` is not here: it wants packages that are not ours.
Exit 0 when all that could run did, else 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass

NO_GPU = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One benchmark: the arguments after `python -m`, and minutes on two quiet CPU cores."""

    name: str
    arguments: str
    minutes: int
    long: bool = False


SUITES = (
    Suite(name="attention", arguments="bench.attention --pairs 7 --memory", minutes=3),
    Suite(
        name="attention-bf16",
        arguments="bench.attention --pairs 5 --dtype bf16 --lengths 1024,2048,4096",
        minutes=1,
    ),
    Suite(name="speed", arguments="bench.trainer speed --pairs 3 --dtype both", minutes=6),
    Suite(name="overhead", arguments="bench.trainer overhead --steps 14", minutes=1),
    Suite(name="control-plane", arguments="bench.control_plane", minutes=2),
    Suite(name="fleet", arguments="bench.fleet", minutes=6),
    Suite(name="gpu", arguments="bench.gpu", minutes=5),
    Suite(name="needle", arguments="bench.needle --steps 700", minutes=15, long=True),
    Suite(
        name="quality",
        arguments="bench.quality --steps 1000 --global-seqs 1 --validation-batches 32",
        minutes=90,
        long=True,
    ),
)


def chosen_suites(only: str | None, *, with_long: bool) -> list[Suite]:
    """Return the suites to run."""
    if only is None:
        return [suite for suite in SUITES if with_long or not suite.long]
    by_name = {suite.name: suite for suite in SUITES}
    unknown = [name for name in only.split(",") if name not in by_name]
    if unknown:
        raise ValueError(f"no benchmark {unknown[0]!r}; there are {', '.join(by_name)}")
    return [by_name[name] for name in only.split(",")]


def main(arguments: list[str] | None = None) -> int:
    """Run them; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", allow_abbrev=False)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--all", action="store_true", help="with those that train for hours")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    given = parser.parse_args(arguments)
    if given.list:
        for suite in SUITES:
            print(f"{suite.name:<15} {suite.minutes:>3} min  python -m {suite.arguments}")
        return 0
    try:
        suites = chosen_suites(given.only, with_long=given.all)
    except ValueError as error:
        parser.error(str(error))
    failed = []
    for number, suite in enumerate(suites, start=1):
        left = sum(later.minutes for later in suites[number - 1 :])
        print(f"[{number}/{len(suites)}] {suite.name}: about {left} min left", flush=True)
        print(f"$ python -m {suite.arguments}", flush=True)
        began = time.monotonic()
        command = [sys.executable, "-m", *suite.arguments.split()]
        code = subprocess.run(command, check=False).returncode
        if code == NO_GPU and suite.name == "gpu":
            print("no GPU here: its figures stay open")
        elif code:
            failed.append(suite.name)
        print(f"{suite.name}: {time.monotonic() - began:.0f} s, exit {code}\n", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
